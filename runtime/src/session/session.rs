//! One sequence of tokens on a loaded model: feed tokens, draw the next one, go back, start anew.

use std::ops::ControlFlow;

use unicorn_artifact::step::{MAX_HISTORY, Sampler};

use crate::error::RunError;
use crate::memory::kv_pages::BlockTable;
use crate::model::Model;
use crate::program::chunks::{Chunk, StepOutput, next_chunk};
use crate::session::journal::{Entry, Journal};
use crate::session::recovery::{Stop, persist};
use crate::step::batch::BatchRow;
use crate::step::engine::{Drawing, Engine, Rows, Step};
use crate::vk::Failure;

/// One sequence: its tokens and its pages of the KV cache. Dropped, it gives back its slot.
pub struct Session {
    model: Model,
    slot: u32,
    /// One a KV group.
    tables: Vec<BlockTable>,
    /// The engine that the tables are true for.
    generation: u64,
    /// What is in the cache.
    journal: Journal,
    chunk_limit: u32,
    draws: u32,
    /// Since they were last taken.
    gpu_seconds: f64,
    interrupted: fn() -> bool,
}

/// How the next token is drawn from the logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0: greedy.
    pub temperature: f32,
    /// 0: all.
    pub top_k: u32,
    /// 1: all.
    pub top_p: f32,
    /// 0: all.
    pub min_p: f32,
    /// 1: none.
    pub repeat_penalty: f32,
    /// Most recent tokens that the penalty looks at, at most `step::MAX_HISTORY`.
    pub repeat_last_n: u32,
    pub seed: u64,
}

/// A drawn token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    pub token: u32,
    /// Its logit, after penalties and before temperature.
    pub logit: f32,
    /// Tokens that top-k, top-p and min-p left to draw from.
    pub candidates: u32,
}

/// Takes each row's position and logits (vocab_size f32) in order.
pub type LogitsSink<'a> = dyn FnMut(u32, &[f32]) + 'a;

impl Session {
    pub(crate) fn new(model: Model, slot: u32, tables: Vec<BlockTable>, generation: u64) -> Session {
        Session {
            journal: Journal::new(model.context_tokens()),
            model,
            slot,
            tables,
            generation,
            chunk_limit: u32::MAX,
            draws: 0,
            gpu_seconds: 0.0,
            interrupted: || false,
        }
    }

    pub fn len_tokens(&self) -> u32 {
        self.journal.len_tokens()
    }

    /// Tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        self.journal.tokens()
    }

    /// Steps append at most `chunk_tokens` from now on; 0: as many as the artifact's programs take.
    pub fn set_chunk_tokens(&mut self, chunk_tokens: u32) {
        self.chunk_limit = if chunk_tokens == 0 { u32::MAX } else { chunk_tokens };
    }

    /// Asks `interrupted` before each step of a feed, which ends with [`RunError::Interrupted`] when it says so.
    pub fn interrupt_when(&mut self, interrupted: fn() -> bool) {
        self.interrupted = interrupted;
    }

    /// Appends tokens to the cache without looking at their logits.
    ///
    /// # Errors
    /// When the context is too short, a token unknown, or the device fails and cannot be had back. Tokens whose step
    /// succeeded stay.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<(), RunError> {
        self.feed_part(tokens, tokens.len())
    }

    /// Appends the first `n_tokens` of `tokens`, the rest of which will follow: LongRoPE looks at all of them.
    ///
    /// # Errors
    /// As [`Session::feed`] for all of them.
    pub fn feed_part(&mut self, tokens: &[u32], n_tokens: usize) -> Result<(), RunError> {
        self.feed_steps(tokens, n_tokens, StepOutput::Nothing, &Sampling::default(), |_, _, _| Ok(()))
    }

    /// Appends tokens and draws the one that follows, which is not appended yet.
    ///
    /// # Errors
    /// As [`Session::feed`], and for no tokens at all or a sampling parameter out of range.
    pub fn feed_and_sample(&mut self, tokens: &[u32], sampling: &Sampling) -> Result<Sampled, RunError> {
        sampling.check()?;
        if tokens.is_empty() {
            return Err(RunError::NoTokens);
        }
        let mut sampled = None;
        let draws = self.draws;
        self.feed_steps(tokens, tokens.len(), StepOutput::Token, sampling, |engine, chunk, _| {
            if engine.programs.shapes[chunk.program].samples {
                sampled = Some(engine.sampled(0, draws)?);
            }
            Ok(())
        })?;
        self.count_draw();
        Ok(sampled.expect("the last step of a feed that wants a token samples"))
    }

    /// Appends tokens and hands every row's logits to `sink`, in order.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn feed_with_logits(&mut self, tokens: &[u32], sink: &mut LogitsSink<'_>) -> Result<(), RunError> {
        let vocab_size = self.model.meta().model.vocab_size;
        let mut logits = Vec::new();
        self.feed_steps(tokens, tokens.len(), StepOutput::AllLogits, &Sampling::default(), |engine, chunk, position| {
            logits.clear();
            engine.read_logits(chunk.program, chunk.n_rows, vocab_size, &mut logits)?;
            for (position, row) in (position..).zip(logits.chunks_exact(vocab_size as usize)) {
                sink(position, row);
            }
            Ok(())
        })
    }

    /// Forgets tokens from `len_tokens` on; a longer length changes nothing.
    ///
    /// # Errors
    /// [`RunError::Forgotten`] when a sliding window has already given back what the next token would attend to.
    pub fn truncate(&mut self, len_tokens: u32) -> Result<(), RunError> {
        if len_tokens >= self.len_tokens() {
            return Ok(());
        }
        if let Some(kept_from) = self.forgotten(len_tokens) {
            return Err(RunError::Forgotten { len_tokens, kept_from });
        }
        self.give_back_from(len_tokens);
        Ok(())
    }

    /// The first token that a sliding window still holds, where that is too late to go on behind `len_tokens` of them.
    fn forgotten(&self, len_tokens: u32) -> Option<u32> {
        // Tables of an engine that is gone forget nothing: the journal makes the cache anew.
        let is_current = self.model.shared().engine_of(self.generation).is_some();
        let tables = if is_current { self.tables.as_slice() } else { &[] };
        tables.iter().find(|table| !table.can_continue_at(len_tokens)).map(|table| table.kept_from())
    }

    /// Forgets everything, so that equal seeds draw equal tokens again.
    pub fn clear(&mut self) {
        self.give_back_from(0);
        self.restart_draws();
    }

    /// Equal seeds draw after equal tokens what they drew in a new sequence.
    pub fn restart_draws(&mut self) {
        self.draws = 0;
    }

    /// How many of its tokens the sequence could keep to go on with `prompt`: those that are the same, and were fed with
    /// LongRoPE's frequencies for a text of its length; none where a sliding window has forgotten what the next would attend to.
    /// The prompt's last token is always fed, because its logits are wanted.
    pub fn common_start(&self, prompt: &[u32]) -> u32 {
        let rope_variant = self.model.meta().model.rope_variant(prompt.len() as u32);
        let common = common_start(self.tokens(), prompt).min(self.journal.len_of_variant(rope_variant));
        let goes_on = common == self.len_tokens() || self.forgotten(common).is_none();
        if goes_on { common } else { 0 }
    }

    /// Goes back to what the sequence shares with `prompt`, or to its beginning where a sliding window has forgotten what the
    /// next token would attend to. Returns how many tokens of the prompt are still there.
    pub fn keep_common_start(&mut self, prompt: &[u32]) -> u32 {
        if self.truncate(self.common_start(prompt)).is_err() {
            self.clear();
        }
        self.len_tokens()
    }

    /// Seconds that the device spent in this sequence's steps since this was last asked (those of a batch count for each
    /// of its sequences, and those of a submission for all of its steps, also if a draw was forgotten); `None`: it keeps no time,
    /// or there was no step.
    pub fn take_gpu_seconds(&mut self) -> Option<f64> {
        let seconds = std::mem::take(&mut self.gpu_seconds);
        (seconds > 0.0).then_some(seconds)
    }

    /// Appends `first` and then each token that is drawn, at most `most` in all, until `each`, which hears of every drawn token in
    /// order, breaks off, or until the context is full: [`Model::generate_batch`] for this sequence alone.
    ///
    /// # Errors
    /// Those of [`Model::generate_batch`].
    pub fn generate(
        &mut self,
        first: u32,
        sampling: &Sampling,
        most: u32,
        each: &mut dyn FnMut(Sampled) -> ControlFlow<()>,
    ) -> Result<(), RunError> {
        let model = self.model.clone();
        let row = BatchRow { session: self, token: first, sampling };
        model.generate_batch(&mut [row], most, &mut |sampled| each(sampled[0]))
    }

    /// Runs the first `n_tokens` of `tokens` through as many steps as it takes. `after_step` gets the engine, the step and its first position.
    fn feed_steps(
        &mut self,
        tokens: &[u32],
        n_tokens: usize,
        wanted: StepOutput,
        sampling: &Sampling,
        mut after_step: impl FnMut(&mut Engine, Chunk, u32) -> Result<(), Failure>,
    ) -> Result<(), RunError> {
        self.check(tokens)?;
        let model = self.model.clone();
        // LongRoPE looks at the whole sequence as it will be with all tokens. Those that were fed while it was shorter keep the
        // keys that they got, as in every implementation with a cache.
        let rope_variant = self.model.meta().model.rope_variant(self.len_tokens() + tokens.len() as u32);
        let mut rest = &tokens[..n_tokens];
        while !rest.is_empty() {
            if (self.interrupted)() {
                return Err(RunError::Interrupted);
            }
            let n_rows = persist(&model, &mut [self], |engine, sessions| {
                let session = &mut *sessions[0];
                let position = session.len_tokens();
                let chunk =
                    next_chunk(&engine.programs.shapes, wanted, position, rest.len() as u32, session.chunk_limit)
                        .ok_or(RunError::NoProgram { wanted: wanted.name() })?;
                let now = &rest[..chunk.n_rows as usize];
                session.journal.append(now, chunk.program, rope_variant);
                let drawing = sampling.drawing(session.draws, false, session.journal.tokens());
                let entry = Entry { program: chunk.program, position, tokens: now, rope_variant };
                let ran = run_entry(engine, session.slot, &mut session.tables, &entry, drawing)
                    .and_then(|()| Ok(after_step(engine, chunk, position)?));
                session.count_gpu_seconds(engine.gpu_seconds(chunk.program, 0));
                if ran.is_err() {
                    session.journal.truncate(position);
                }
                ran?;
                Ok(chunk.n_rows)
            })?;
            rest = &rest[n_rows as usize..];
        }
        Ok(())
    }

    /// Makes the cache anew if the engine is another than the one that this session's tables are true for.
    pub(crate) fn catch_up(&mut self, engine: &mut Engine, generation: u64) -> Result<(), Stop> {
        if self.generation == generation {
            return Ok(());
        }
        self.tables.iter_mut().for_each(BlockTable::forget);
        let drawing = Sampling::default().drawing(0, false, &[]);
        for entry in self.journal.entries() {
            run_entry(engine, self.slot, &mut self.tables, &entry, drawing)?;
        }
        self.generation = generation;
        Ok(())
    }

    pub(crate) fn check(&self, tokens: &[u32]) -> Result<(), RunError> {
        let vocab_size = self.model.meta().model.vocab_size;
        if let Some(&token) = tokens.iter().find(|&&token| token >= vocab_size) {
            return Err(RunError::UnknownToken { token, vocab_size });
        }
        let needed_tokens = u64::from(self.len_tokens()) + tokens.len() as u64;
        let context_tokens = self.model.context_tokens();
        if needed_tokens > u64::from(context_tokens) {
            return Err(RunError::ContextFull { context_tokens, needed_tokens });
        }
        Ok(())
    }

    pub(crate) fn is_of(&self, model: &Model) -> bool {
        self.model.is(model)
    }

    /// Appends a token whose step is yet to run.
    pub(crate) fn push(&mut self, token: u32, program: usize, engine: &mut Engine) {
        self.make_room(1, engine);
        self.append(token, program);
    }

    /// Appends a token whose step `program` runs on the device's own account: it has its pages.
    pub(crate) fn append(&mut self, token: u32, program: usize) {
        let rope_variant = self.model.meta().model.rope_variant(self.len_tokens() + 1);
        self.journal.append(&[token], program, rope_variant);
    }

    /// Sees to pages for so many tokens behind the last.
    pub(crate) fn make_room(&mut self, n_tokens: u32, engine: &mut Engine) {
        let end = self.len_tokens();
        engine.advance(self.slot, end..end + n_tokens, &mut self.tables);
    }

    /// Takes the last token back: its step did not run.
    pub(crate) fn pop(&mut self) -> u32 {
        let token = *self.tokens().last().expect("a token was pushed");
        self.journal.truncate(self.len_tokens() - 1);
        token
    }

    /// The last token as a row of a step.
    pub(crate) fn newest_row(&self) -> Rows<'_> {
        let position = self.len_tokens() - 1;
        let rope_variant = self.model.meta().model.rope_variant(position + 1);
        Rows { slot: self.slot, position, tokens: &self.tokens()[position as usize..], rope_variant }
    }

    /// How the token after the last is drawn.
    pub(crate) fn drawing<'s>(&'s self, sampling: &Sampling, feeds: bool) -> Drawing<'s> {
        sampling.drawing(self.draws, feeds, self.tokens())
    }

    /// Draws so far.
    pub(crate) fn draws(&self) -> u32 {
        self.draws
    }

    /// A step has made a draw, and its result is there.
    pub(crate) fn count_draw(&mut self) {
        self.draws = self.draws.wrapping_add(1);
    }

    /// What was submitted has ended.
    pub(crate) fn count_gpu_seconds(&mut self, gpu_seconds: Option<f64>) {
        self.gpu_seconds += gpu_seconds.unwrap_or_default();
    }

    fn give_back_from(&mut self, len_tokens: u32) {
        // Pages of an engine that is gone went with it.
        if let Some(engine) = self.model.shared().engine_of(self.generation) {
            for (table, pool) in self.tables.iter_mut().zip(&mut engine.pools) {
                table.truncate(pool, len_tokens);
            }
        }
        self.journal.truncate(len_tokens);
    }
}

fn common_start(held: &[u32], prompt: &[u32]) -> u32 {
    let common = held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    common.min(prompt.len().saturating_sub(1)) as u32
}

/// Runs one step of a sequence.
fn run_entry(
    engine: &mut Engine,
    slot: u32,
    tables: &mut [BlockTable],
    entry: &Entry<'_>,
    drawing: Drawing<'_>,
) -> Result<(), Stop> {
    let &Entry { program, position, tokens, rope_variant } = entry;
    engine.advance(slot, position..position + tokens.len() as u32, tables);
    let rows = [Rows { slot, position, tokens, rope_variant }];
    engine.run(&Step { program, rows: &rows, drawings: &[drawing] })
}

impl Drop for Session {
    fn drop(&mut self) {
        self.give_back_from(0);
        self.model.shared().free_slots.push(self.slot);
    }
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, repeat_last_n: 64, seed: 0 }
    }
}

impl Sampling {
    pub fn check(&self) -> Result<(), RunError> {
        let wrong = |what, expected, found: String| Err(RunError::Sampling { what, expected, found });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return wrong("temperature", "0 or more", self.temperature.to_string());
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top-p", "above 0 and at most 1", self.top_p.to_string());
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong("min-p", "0 to 1", self.min_p.to_string());
        }
        if !(self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0) {
            return wrong("repeat penalty", "above 0", self.repeat_penalty.to_string());
        }
        if self.repeat_last_n as usize > MAX_HISTORY {
            return wrong("tokens of the repeat penalty", "at most 256", self.repeat_last_n.to_string());
        }
        Ok(())
    }

    /// Tokens that must be written down for the penalty.
    fn history_tokens(&self) -> usize {
        if self.repeat_penalty == 1.0 { 0 } else { self.repeat_last_n as usize }
    }

    /// Of draw number `draw`, after `tokens`.
    pub(crate) fn drawing<'s>(&self, draw: u32, feeds: bool, tokens: &'s [u32]) -> Drawing<'s> {
        let history = &tokens[tokens.len().saturating_sub(self.history_tokens())..];
        let sampler = Sampler {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed_low: self.seed as u32,
            seed_high: (self.seed >> 32) as u32,
            draw,
            history_capacity: self.history_tokens() as u32,
            feeds: u32::from(feeds),
            ..Sampler::default()
        };
        Drawing { sampler, history }
    }
}

// The error above names the number.
const _: () = assert!(MAX_HISTORY == 256);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_start_is_kept_but_for_the_last_token() {
        assert_eq!(common_start(&[], &[1, 2]), 0);
        assert_eq!(common_start(&[1, 2, 3], &[1, 2, 4, 5]), 2);
        assert_eq!(common_start(&[1, 2], &[1, 2, 3]), 2);
        assert_eq!(common_start(&[1, 2, 3], &[1, 2]), 1);
        assert_eq!(common_start(&[1, 2], &[]), 0);
    }
}
