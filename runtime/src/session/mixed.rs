//! One step that decodes several sequences and feeds a part of a prompt: weights are read once for both, and no sequence waits while
//! the prompt is fed.
//!
//! ```text
//! rows    │ newest token of each sequence │ last token of the prompt, if it ends │ the other tokens of the part │
//!         └───────────── apart: a row each, a token is sampled behind each ──────┘
//! ```

use std::slice;
use std::sync::Arc;

use crate::error::RunError;
use crate::program::chunks::mixed_program;
use crate::session::batch::{BatchRow, of_model};
use crate::session::model_state::Shared;
use crate::session::recovery::persist;
use crate::session::sequence::Sequence;
use crate::session::session::Session;
use crate::step::engine::{Engine, Rows, Step};
use crate::step::masks::Masks;
use crate::step::sampling::{Sampled, SamplerInput, Sampling};
use crate::step::stop::Stop;
use crate::step::watch::Watch;

/// What a step appends of a prompt, which has no rows of images.
pub struct PromptPart<'p> {
    /// The sequence.
    pub session: &'p mut Session,
    /// The rest of the prompt.
    pub rest: &'p [u32],
    /// Tokens of it that are appended, at least 1.
    pub n_tokens: usize,
    /// How the token behind the prompt is sampled, if these are all.
    pub sampling: &'p Sampling,
}

/// Appends each row's token and a part of a prompt, and samples what follows each row and, if it ends, the prompt, as the last one. Appends the
/// logits of some of these samples to `logits`, which is empty. Nothing is appended to any sequence when it fails. `masks`: of these samples.
pub fn decode_beside_prompt(
    shared: &Arc<Shared>,
    rows: Vec<BatchRow<'_>>,
    prompt: PromptPart<'_>,
    (with_logits, logits): (&[usize], &mut Vec<f32>),
    masks: &mut Masks<'_>,
) -> Result<Vec<Sampled>, RunError> {
    let PromptPart { session, rest, n_tokens, sampling } = prompt;
    sampling.check()?;
    shared.check_tokens(session.len_tokens(), rest)?;
    let rows = of_model(shared, rows);
    for row in &rows {
        row.sampling.check()?;
        shared.check_tokens(row.sequence.len_tokens(), slice::from_ref(&row.token))?;
    }
    let ends = n_tokens == rest.len();
    let mut samplings: Vec<Sampling> = rows.iter().map(|row| row.sampling.clone()).collect();
    samplings.extend(ends.then(|| sampling.clone()));
    let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
    let step = MixedStep {
        shared,
        parts: tokens.iter().map(slice::from_ref).chain([&rest[..n_tokens]]).collect(),
        // As for the whole prompt, however it is cut.
        prompt_variant: shared.model().rope_variant(session.len_tokens() + rest.len() as u32),
        samplings,
    };
    let mut sequences: Vec<&mut Sequence> =
        rows.into_iter().map(|row| row.sequence).chain([session.sequence_mut()]).collect();
    persist(shared, &mut sequences, None, |engine, sequences| {
        let lens: Vec<u32> = sequences.iter().map(|sequence| sequence.len_tokens()).collect();
        logits.clear();
        let ran = step.run(engine, sequences, (with_logits, &mut *logits), masks);
        if ran.is_err() {
            sequences.iter_mut().zip(lens).for_each(|(sequence, len)| sequence.take_back(len));
        }
        ran
    })
}

struct MixedStep<'s> {
    shared: &'s Shared,
    /// What each sequence gets; the last one is the prompt's.
    parts: Vec<&'s [u32]>,
    prompt_variant: u32,
    /// One a sequence whose next token is sampled.
    samplings: Vec<Sampling>,
}

impl MixedStep<'_> {
    fn run(
        &self,
        engine: &mut Engine,
        sequences: &mut [&mut Sequence],
        (with_logits, logits): (&[usize], &mut Vec<f32>),
        masks: &mut Masks<'_>,
    ) -> Result<Vec<Sampled>, Stop> {
        let n_rows = self.parts.iter().map(|part| part.len() as u32).sum();
        let program = mixed_program(&engine.programs.shapes, n_rows)
            .ok_or(RunError::NoProgram { wanted: "newest tokens and a part of a prompt" })?;
        let with_parts = || self.parts.iter().enumerate();
        for (number, part) in with_parts() {
            sequences[number].take_pages(part.len() as u32, engine)?;
        }
        for (number, part) in with_parts() {
            let variant = self.rope_variant(number, sequences[number].len_tokens() + 1);
            sequences[number].append(part, program, variant);
        }
        let samplers: Vec<SamplerInput> = sequences
            .iter()
            .zip(&self.samplings)
            .map(|(sequence, sampling)| sequence.sampler(sampling, false))
            .collect();
        engine.run(
            &Step { program, rows: &self.rows(sequences), apart_rows: samplers.len() as u32, samplers: &samplers },
            Watch::default(),
            masks,
        )?;
        let sampled = (0..samplers.len()).map(|row| engine.sampled(row, sequences[row].samples()));
        let sampled = sampled.collect::<Result<Vec<Sampled>, _>>()?;
        if !with_logits.is_empty() {
            let vocab_size = self.shared.model().vocab_size;
            engine.read_logits(program, with_logits.iter().copied(), vocab_size, logits)?;
        }
        let gpu_seconds = engine.gpu_seconds(program, 0).unwrap_or_default();
        for (number, sequence) in sequences.iter_mut().enumerate() {
            sequence.add_gpu_seconds(gpu_seconds);
            if number < sampled.len() {
                sequence.count_sample();
            }
        }
        Ok(sampled)
    }

    /// LongRoPE's variant for a sequence of `len_tokens`, its newest included.
    fn rope_variant(&self, number: usize, len_tokens: u32) -> u32 {
        if number + 1 == self.parts.len() { self.prompt_variant } else { self.shared.model().rope_variant(len_tokens) }
    }

    /// The rows of what was just appended.
    fn rows<'r>(&self, sequences: &'r [&mut Sequence]) -> Vec<Rows<'r>> {
        let all = |number: usize| -> Rows<'r> {
            let sequence = &*sequences[number];
            sequence.newest_rows(self.parts[number].len(), self.rope_variant(number, sequence.len_tokens()))
        };
        let prompt = self.parts.len() - 1;
        let n_fed = self.parts[prompt].len();
        let of_prompt = all(prompt);
        let (others, last) = of_prompt.split_at(if self.samplings.len() > prompt { n_fed - 1 } else { n_fed });
        (0..prompt).map(all).chain([last, others]).filter(|rows| !rows.tokens.is_empty()).collect()
    }
}
