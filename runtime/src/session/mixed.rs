//! One step that decodes several sequences and feeds parts of prompts: weights are read once for all, and no sequence waits while a prompt
//! is fed.
//!
//! ```text
//! rows    │ newest token of each sequence │ last token of each prompt that ends │ the other tokens of a part │ of the next │
//!         └──────────── apart: a row each, a token is sampled behind each ──────┘
//! ```

use std::slice;
use std::sync::Arc;

use unicorn_artifact::step::rows_apart;

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

/// Appends each row's token and parts of prompts, and samples what follows each row and, behind these, each prompt that ends. Appends the logits of
/// some of these samples to `logits`, which is empty. Nothing is appended to any sequence when it fails. `masks`: of these samples.
pub fn decode_beside_prompts(
    shared: &Arc<Shared>,
    rows: Vec<BatchRow<'_>>,
    prompts: Vec<PromptPart<'_>>,
    (with_logits, logits): (&[usize], &mut Vec<f32>),
    masks: &mut Masks<'_>,
) -> Result<Vec<Sampled>, RunError> {
    for PromptPart { session, rest, sampling, .. } in &prompts {
        sampling.check()?;
        shared.check_tokens(session.len_tokens(), rest)?;
    }
    let rows = of_model(shared, rows);
    for row in &rows {
        row.sampling.check()?;
        shared.check_tokens(row.sequence.len_tokens(), slice::from_ref(&row.token))?;
    }
    let n_rows = rows.len();
    let ends = |part: &PromptPart<'_>| part.n_tokens == part.rest.len();
    let ended = (n_rows..).zip(&prompts).filter(|(_, part)| ends(part));
    let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
    // As for the whole prompt, however it is cut.
    let variant =
        |part: &PromptPart<'_>| shared.model().rope_variant(part.session.len_tokens() + part.rest.len() as u32);
    let step = MixedStep {
        shared,
        n_rows,
        parts: tokens
            .iter()
            .map(slice::from_ref)
            .chain(prompts.iter().map(|part| &part.rest[..part.n_tokens]))
            .collect(),
        prompt_variants: prompts.iter().map(variant).collect(),
        sampled: (0..n_rows).chain(ended.clone().map(|(number, _)| number)).collect(),
        samplings: rows.iter().map(|row| &row.sampling).chain(ended.map(|(_, part)| part.sampling)).cloned().collect(),
    };
    let of_prompts = prompts.into_iter().map(|part| part.session.sequence_mut());
    let mut sequences: Vec<&mut Sequence> = rows.into_iter().map(|row| row.sequence).chain(of_prompts).collect();
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
    /// Sequences that get their newest token; behind them are those of prompts.
    n_rows: usize,
    /// What each sequence gets.
    parts: Vec<&'s [u32]>,
    /// LongRoPE's variant of each prompt.
    prompt_variants: Vec<u32>,
    /// Sequences whose next token is sampled, in order.
    sampled: Vec<usize>,
    /// How, one each.
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
        let n_tokens = self.parts.iter().map(|part| part.len() as u32).sum();
        let program = mixed_program(&engine.programs.shapes, n_tokens, self.prompt_variants.len())
            .ok_or(RunError::NoProgram { wanted: "newest tokens and parts of prompts" })?;
        let with_parts = || self.parts.iter().enumerate();
        for (number, part) in with_parts() {
            sequences[number].take_pages(part.len() as u32, engine)?;
        }
        for (number, part) in with_parts() {
            let variant = self.rope_variant(number, sequences[number].len_tokens() + 1);
            sequences[number].append(part, program, variant);
        }
        let sampled = || self.sampled.iter().map(|&number| &*sequences[number]);
        let samplers: Vec<SamplerInput> =
            sampled().zip(&self.samplings).map(|(sequence, sampling)| sequence.sampler(sampling, false)).collect();
        let (rows, apart_rows) = self.rows(sequences);
        engine.run(&Step { program, rows: &rows, apart_rows, samplers: &samplers }, Watch::default(), masks)?;
        let samples = sampled().enumerate().map(|(sampler, sequence)| engine.sampled(sampler, sequence.samples()));
        let samples = samples.collect::<Result<Vec<Sampled>, _>>()?;
        if !with_logits.is_empty() {
            let vocab_size = self.shared.model().vocab_size;
            engine.read_logits(program, with_logits.iter().copied(), vocab_size, logits)?;
        }
        let gpu_seconds = engine.gpu_seconds(program, 0).unwrap_or_default();
        sequences.iter_mut().for_each(|sequence| sequence.add_gpu_seconds(gpu_seconds));
        self.sampled.iter().for_each(|&number| sequences[number].count_sample());
        Ok(samples)
    }

    /// LongRoPE's variant for a sequence of `len_tokens`, its newest included.
    fn rope_variant(&self, number: usize, len_tokens: u32) -> u32 {
        match number.checked_sub(self.n_rows) {
            Some(prompt) => self.prompt_variants[prompt],
            None => self.shared.model().rope_variant(len_tokens),
        }
    }

    /// The rows of what was just appended, and which of them are apart.
    fn rows<'r>(&self, sequences: &'r [&mut Sequence]) -> (Vec<Rows<'r>>, u32) {
        let all = |number: usize| -> Rows<'r> {
            let sequence = &*sequences[number];
            sequence.newest_rows(self.parts[number].len(), self.rope_variant(number, sequence.len_tokens()))
        };
        let mut rows: Vec<Rows<'r>> = (0..self.n_rows).map(all).collect();
        let mut behind = Vec::new();
        for prompt in self.n_rows..self.parts.len() {
            let n_last = usize::from(self.sampled.contains(&prompt));
            let (others, last) = all(prompt).split_at(self.parts[prompt].len() - n_last);
            rows.extend((n_last > 0).then_some(last));
            behind.push(others);
        }
        let (apart, first) = (rows.len(), behind.first().map_or(0, |rows| rows.tokens.len()));
        let second = if behind.len() > 1 { apart + first } else { 0 };
        rows.extend(behind.into_iter().filter(|rows| !rows.tokens.is_empty()));
        (rows, rows_apart(apart, second))
    }
}
