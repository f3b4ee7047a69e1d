//! Steps by either target, and what they give.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use unicorn_artifact::{LogitsRows, Program, TargetKernels};
use unicorn_text::Tokenizer;

use super::row::{spread, top};
use crate::error::CliError;
use crate::files::tuning_file;
use unicorn_runtime::{
    BatchRow, Choice, Model, Programs, RunError, Sampled, Sampling, Session, StepShape, TraceSink, TracedStep,
};

/// Tokens decoded one by one in a check of decode.
const DECODED: usize = 6;
/// Tokens between the beginnings of two texts.
const DISTANCE: usize = 37;
/// Seconds that the conservative kernels may spend on the longest context.
const LONG_SECONDS: f64 = 5.0;
/// Text from which the tokens are, where the model has a tokenizer.
const TEXT: &str = "The first thing that one notices about a lighthouse is its height. It was built of granite, which had \
    to be brought by sea in blocks of two tons, and every block was cut so that it locks into its neighbours. In 1759 the \
    lamp was lit for the first time: 24 candles, each of which had to be trimmed every half hour through the night.";

/// Whose programs run the step that is looked at.
pub enum Who<'p> {
    /// The conservative target's.
    Base,
    /// Those that would run.
    Own,
    /// Others of the same shape.
    Trial(&'p mut Programs),
}

/// What a kind of step gives.
#[derive(Debug, Default)]
pub struct Observation {
    /// Logits of rows, in order.
    pub rows: Vec<Vec<f32>>,
    /// Logits of the tokens that were sampled on the device.
    pub sampled: Vec<f32>,
    /// Hidden rows, of which embeddings are made, in order.
    pub hidden: Vec<Vec<f32>>,
}

impl Observation {
    pub fn is_same(&self, other: &Observation) -> bool {
        let bits = |rows: &[Vec<f32>]| rows.concat().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        bits(&self.rows) == bits(&other.rows)
            && bits(&self.hidden) == bits(&other.hidden)
            && self.sampled == other.sampled
    }

    /// The same without hidden rows.
    pub fn of_logits(&self) -> Observation {
        Observation { rows: self.rows.clone(), sampled: self.sampled.clone(), hidden: Vec::new() }
    }
}

/// A text by the own programs, and what the others make of it.
pub struct Text {
    pub tokens_per_second: f64,
    /// Tokens that the others find the most likely, too.
    pub same: usize,
    /// From each token's logit to the largest, as a part of the logits' spread.
    pub gaps: Vec<f64>,
}

/// A model that runs the conservative programs; its own are kept.
pub struct Sides<'m> {
    model: &'m Model,
    own: &'m TargetKernels,
    base: &'m TargetKernels,
    /// The model's own.
    programs: Programs,
    /// Choices of an earlier tuning, which are tested as they would run.
    choices: Vec<(StepShape, Choice)>,
    tokens: Vec<u32>,
    /// The first of the tokens that steps are given.
    first_token: usize,
}

impl<'m> Sides<'m> {
    pub fn new(model: &'m Model, own: &str, base: &str, artifact: &Path) -> Result<Sides<'m>, CliError> {
        let named = |name: &str| model.targets().iter().find(|target| target.name == name).expect("it was looked for");
        let mut programs = model.record_programs(base, None).map_err(CliError::new)?;
        model.exchange_programs(&mut programs, None)?;
        let is_tuned = model.report().tuning.tuned_steps > 0;
        let tuning = if is_tuned { tuning_file::read(artifact) } else { None };
        let choices = tuning.map(|tuning| tuning.choices.into_iter().collect()).unwrap_or_default();
        let tokens = tokens(model);
        Ok(Sides { model, own: named(own), base: named(base), programs, choices, tokens, first_token: 0 })
    }

    pub fn own(&self) -> &'m TargetKernels {
        self.own
    }

    /// Steps are given other tokens, by the number of a text.
    pub fn begin_at_text(&mut self, text: usize) {
        self.first_token = text * DISTANCE;
    }

    /// Every kind of step of the own target.
    pub fn own_shapes(&self) -> Vec<StepShape> {
        self.model.shapes_of(&self.own.name)
    }

    /// Names of the kernels that only programs with hidden rows use, of this shape; or where there are none, of all that those use.
    pub fn kernels_of_hidden_rows(&self, shape: StepShape) -> BTreeSet<&'m str> {
        let of_shape = || self.own.programs.iter().filter(|program| StepShape::of(program) == shape);
        let (hidden, others): (Vec<&Program>, Vec<&Program>) =
            of_shape().partition(|program| program.logits == LogitsRows::Hidden);
        let used = |programs: &[&Program]| -> BTreeSet<u32> {
            programs.iter().flat_map(|program| &program.dispatches).map(|dispatch| dispatch.pipeline).collect()
        };
        let (hidden, others) = (used(&hidden), used(&others));
        let alone: BTreeSet<u32> = hidden.difference(&others).copied().collect();
        let pipelines = if alone.is_empty() { hidden } else { alone };
        pipelines.iter().map(|&pipeline| self.own.pipelines[pipeline as usize].name.as_str()).collect()
    }

    /// As it would run.
    pub fn choice(&self, shape: StepShape) -> Choice {
        self.choices.iter().find(|(one, _)| *one == shape).map(|(_, choice)| choice.clone()).unwrap_or_default()
    }

    /// Why a kind of step cannot be checked after `cached` tokens.
    pub fn why_not(&self, shape: StepShape, cached: u32) -> Option<String> {
        let sequences = if shape.batch { shape.rows } else { 1 };
        if sequences > self.model.slots() {
            return Some(format!("sequences that the model was loaded for: {}", self.model.slots()));
        }
        let rows_each = if shape.batch || shape.rows == 1 { DECODED as u32 } else { shape.rows };
        let needed = cached + rows_each + 2;
        let context = self.model.context_tokens();
        (needed > context).then(|| format!("it needs a context of {needed} tokens, found {context}"))
    }

    pub fn why_no_text(&self, tokens: u32) -> Option<String> {
        let (needed, context) = (PROMPT as u32 + tokens + 1, self.model.context_tokens());
        (needed > context).then(|| format!("it needs a context of {needed} tokens, found {context}"))
    }

    /// Cached tokens of a check of long contexts: what the conservative kernels feed in a few seconds.
    pub fn affordable_context(&mut self) -> u32 {
        let longest = self.model.context_tokens().saturating_sub(DECODED as u32 + 2);
        let trial = longest.min(64);
        let begin = Instant::now();
        let fed = self.model.session().and_then(|mut session| session.feed(&self.window(0, trial as usize)));
        let rate = f64::from(trial) / begin.elapsed().as_secs_f64().max(1e-6);
        if fed.is_err() { 0 } else { longest.min((LONG_SECONDS * rate) as u32) }
    }

    /// Runs steps of a shape after `cached` tokens of each sequence, and reads what they give.
    pub fn observe(&mut self, shape: StepShape, mut who: Who<'_>, cached: u32) -> Result<Observation, CliError> {
        let mut seen = Observation::default();
        if shape.batch {
            self.observe_batch(shape, &mut who, cached, &mut seen)?;
            return Ok(seen);
        }
        let rows = shape.rows as usize;
        let (before, after) = (self.window(0, cached as usize), self.window(cached as usize, rows.max(DECODED)));
        let follower = self.window(cached as usize + after.len(), 1);
        let gives = |target: &TargetKernels, logits| {
            target.programs.iter().any(|program| StepShape::of(program) == shape && program.logits == logits)
        };
        let has_logits = gives(self.own, LogitsRows::All);
        // A target that was added to an artifact from before format 8.3 may be the only one with programs for them.
        let has_hidden_rows = [self.own, self.base].iter().all(|target| gives(target, LogitsRows::Hidden));
        let mut session = self.model.session()?;
        // Fed once, unless a sliding window has given back what the next step attends to.
        let prefix = |session: &mut Session| -> Result<(), RunError> {
            session.set_chunk_tokens(0);
            if session.len_tokens() < cached || session.truncate(cached).is_err() {
                session.clear();
                session.feed(&before)?;
            }
            session.restart_samples();
            session.set_chunk_tokens(shape.rows);
            Ok(())
        };
        if has_logits {
            prefix(&mut session)?;
            let rows = &mut seen.rows;
            self.within(shape, &mut who, |_| {
                session.feed_with_logits(&after, &mut |_, logits| rows.push(logits.to_vec()))
            })?;
        }
        if has_hidden_rows {
            prefix(&mut session)?;
            let rows = &mut seen.hidden;
            self.within(shape, &mut who, |_| {
                session.feed_with_hidden_rows(&after, after.len(), &mut |_, row| rows.push(row.to_vec()))
            })?;
        }
        prefix(&mut session)?;
        let last = self.within(shape, &mut who, |_| session.feed_and_sample(&after, &Sampling::default()))?;
        seen.sampled.push(last.logit);
        // Other programs of the shape give no logits but K and V, on which the next token's logits depend.
        if has_logits {
            prefix(&mut session)?;
            self.within(shape, &mut who, |_| session.feed(&after))?;
        }
        session.set_chunk_tokens(1);
        session.feed_with_logits(&follower, &mut |_, logits| seen.rows.push(logits.to_vec()))?;
        Ok(seen)
    }

    fn observe_batch(
        &mut self,
        shape: StepShape,
        who: &mut Who<'_>,
        cached: u32,
        seen: &mut Observation,
    ) -> Result<(), CliError> {
        let sampling = Sampling::default();
        let mut sessions = (0..shape.rows).map(|_| self.model.session()).collect::<Result<Vec<_>, RunError>>()?;
        for (number, session) in sessions.iter_mut().enumerate() {
            // Sequences of different lengths.
            session.feed(&self.window(number, cached as usize - number % 4))?;
        }
        for step in 0..2 {
            let tokens: Vec<u32> =
                (0..shape.rows as usize).map(|number| self.window(3 * number + step, 1)[0]).collect();
            let sampled: Vec<Sampled> = self.within(shape, who, |model| {
                let rows = sessions.iter_mut().zip(&tokens);
                model.decode_batch(rows.map(|(session, &token)| BatchRow { session, token, sampling: &sampling }))
            })?;
            seen.sampled.extend(sampled.iter().map(|sampled| sampled.logit));
        }
        for session in sessions.iter_mut().take(4) {
            session.set_chunk_tokens(1);
            session.feed_with_logits(&self.window(9, 1), &mut |_, logits| seen.rows.push(logits.to_vec()))?;
        }
        Ok(())
    }

    /// Does `work` with the programs of `who` in place for steps of this shape.
    fn within<T>(
        &mut self,
        shape: StepShape,
        who: &mut Who<'_>,
        work: impl FnOnce(&Model) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let programs = match who {
            Who::Base => return work(self.model),
            Who::Own => &mut self.programs,
            Who::Trial(programs) => programs,
        };
        self.model.exchange_programs(programs, Some(shape))?;
        let done = work(self.model);
        self.model.exchange_programs(programs, Some(shape))?;
        done
    }

    /// A greedy text by all of the own programs.
    pub fn text(&mut self, n_tokens: u32) -> Result<Text, CliError> {
        let prompt = self.window(0, PROMPT);
        let mut session = self.model.session()?;
        self.model.exchange_programs(&mut self.programs, None)?;
        let generated = generate(&mut session, &prompt, n_tokens);
        self.model.exchange_programs(&mut self.programs, None)?;
        let (text, seconds) = generated?;
        session.clear();
        let mut rows: Vec<Vec<f32>> = Vec::new();
        session.feed(&prompt[..PROMPT - 1])?;
        let fed = [&prompt[PROMPT - 1..], &text[..text.len() - 1]].concat();
        session.feed_with_logits(&fed, &mut |_, logits| rows.push(logits.to_vec()))?;
        let gap = |(row, &token): (&Vec<f32>, &u32)| f64::from(row[top(row)] - row[token as usize]) / spread(row);
        let same = rows.iter().zip(&text).filter(|(row, token)| top(row) == **token as usize).count();
        let gaps = rows.iter().zip(&text).map(gap).collect();
        let tokens_per_second = f64::from(n_tokens - 1) / seconds;
        Ok(Text { tokens_per_second, same, gaps })
    }

    /// Programs of one shape with an alternative in the place of a pipeline.
    pub fn record(&self, shape: StepShape, choice: &Choice) -> Result<Programs, CliError> {
        self.model.record_programs(&self.own.name, Some((shape, choice))).map_err(CliError::new)
    }

    /// Traces a step of either target after `cached` tokens that the conservative one feeds.
    pub fn trace(&self, is_own: bool, shape: StepShape, cached: u32, sink: &mut TraceSink<'_>) -> Result<(), CliError> {
        let target = if is_own { self.own } else { self.base };
        let choice = if is_own { self.choice(shape) } else { Choice::default() };
        let has_it = |target: &TargetKernels| target.programs.iter().any(|program| StepShape::of(program) == shape);
        // The conservative target may have no program for long contexts alone.
        let shape = if has_it(target) { shape } else { StepShape { from_tokens: 0, ..shape } };
        let (cached, tokens) = (self.window(0, cached as usize), self.window(cached as usize, shape.rows as usize));
        let step = TracedStep { shape, choice: &choice, cached: &cached, tokens: &tokens };
        self.model.trace_step(&target.name, &step, sink).map_err(CliError::new)
    }

    /// `count` tokens from number `from` of the present text on; all tokens are repeated.
    fn window(&self, from: usize, count: usize) -> Vec<u32> {
        let skipped = (self.first_token + from) % self.tokens.len();
        self.tokens.iter().copied().cycle().skip(skipped).take(count).collect()
    }
}

/// Tokens of a prompt.
const PROMPT: usize = 24;

fn generate(session: &mut Session, prompt: &[u32], n_tokens: u32) -> Result<(Vec<u32>, f64), CliError> {
    let first = session.feed_and_sample(prompt, &Sampling::default())?.token;
    let begin = Instant::now();
    let rest = session.generate(first, &Sampling::default(), n_tokens - 1);
    let mut text = vec![first];
    for sampled in rest {
        text.push(sampled?.token);
    }
    Ok((text, begin.elapsed().as_secs_f64()))
}

/// Tokens of the text; where the model has no tokenizer, made-up ones.
fn tokens(model: &Model) -> Vec<u32> {
    let vocab_size = model.meta().model.vocab_size;
    let encoded = Tokenizer::new(model.tokenizer_section()).and_then(|tokenizer| tokenizer.encode_prompt(TEXT));
    let mut tokens = encoded.unwrap_or_default();
    tokens.retain(|&token| token < vocab_size);
    if tokens.len() < PROMPT {
        tokens = (0..509u32).map(|index| index.wrapping_mul(7919) % vocab_size).collect();
    }
    tokens
}
