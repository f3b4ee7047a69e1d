//! One sequence of tokens on a loaded model: feed tokens, sample the next one, go back, start again.

use std::io;
use std::sync::Arc;

use unicorn_artifact::KvSegment;
use unicorn_artifact::kv_segment::KvStep;

use crate::error::RunError;
use crate::memory::kv_pages::BlockTable;
use crate::program::chunks::{Chunk, StepOutput};
use crate::session::kv_store::KvStore;
use crate::session::model_state::Shared;
use crate::session::recovery::persist;
use crate::session::sequence::{EndedSequence, Sequence, SequencePart};
use crate::session::speculation::draft_length::StepTimes;
use crate::session::speculation::predictor::predict;
use crate::session::speculation::speculator::{DraftCounts, Speculation};
use crate::session::speculation::verify::{ChooseToken, Verified, verify};
use crate::session::stream::StreamRow;
use crate::session::tokens::{MaskedTokens, SessionSpeculation, Tokens};
use crate::step::cancel::CancelToken;
use crate::step::engine::Engine;
use crate::step::masks::Masks;
use crate::step::sampling::{Sampled, Sampling};
use crate::step::stop::Stop;
use crate::step::watch::Watch;
use crate::vk::Failure;

/// One sequence: its tokens and its pages of the KV cache.
///
/// It keeps its model loaded, and can be moved to another thread. Steps of several sessions alternate on the device, step by
/// step, in the order in which they were requested; nothing else waits for a step. Dropped, it gives back its slot and its
/// pages at once, also between two tokens of another session's [`Tokens`].
///
/// A device that is lost is made ready again, with a few attempts each time, and the work continues with the same tokens
/// bit for bit: see [`crate::Model::take_recoveries`].
pub struct Session {
    shared: Arc<Shared>,
    sequence: Sequence,
    chunk_limit: u32,
    cancel: Option<CancelToken>,
    on_feed: Option<FeedProgress>,
    speculation: Option<SessionSpeculation>,
    /// Tokens from the first on that were offered to a store.
    offered_tokens: u32,
    /// Whether feeds keep a checkpoint.
    keeps_checkpoint: bool,
    /// The beginning of what was fed last, with a copy of its recurrent state.
    checkpoint: Option<EndedSequence>,
}

/// Is called as a feed proceeds with the number of tokens that are fed and the number that will be: before the first step, after each
/// submission to the device, and after each step. Of a step of which only some submissions have ended, a share of its tokens counts.
pub type FeedProgress = Box<dyn FnMut(u32, u32) + Send>;

/// Is called with each row's position in the sequence and its logits (`vocab_size` f32), in order.
pub type LogitsSink<'a> = dyn FnMut(u32, &[f32]) + 'a;

/// Is called with each row's position in the sequence and its hidden state (`hidden_size` f32), in order.
pub type HiddenSink<'a> = dyn FnMut(u32, &[f32]) + 'a;

/// Why a sequence could not be kept.
pub(crate) enum KeepError {
    /// The device failed.
    Device,
    /// The store cannot write.
    Store(io::Error),
}

impl From<Failure> for KeepError {
    fn from(_: Failure) -> KeepError {
        KeepError::Device
    }
}

/// Fewest tokens that are written to a store, or read from one, or kept as a checkpoint: computing fewer is no matter.
const MIN_SEGMENT_TOKENS: u32 = 64;

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Session, RunError> {
        let sequence = shared.new_sequence()?;
        Ok(Session {
            shared,
            sequence,
            chunk_limit: u32::MAX,
            cancel: None,
            on_feed: None,
            speculation: None,
            offered_tokens: 0,
            keeps_checkpoint: false,
            checkpoint: None,
        })
    }

    /// Tokens in the cache.
    pub fn len_tokens(&self) -> u32 {
        self.sequence.len_tokens()
    }

    /// The tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// Steps append at most `chunk_tokens` from now on; 0: as many as the artifact's programs take, which is the default.
    pub fn set_chunk_tokens(&mut self, chunk_tokens: u32) {
        self.chunk_limit = if chunk_tokens == 0 { u32::MAX } else { chunk_tokens };
    }

    /// From now on, or not any more, a feed to a model with recurrent state ends a step at the last whole page, and keeps a copy of the state
    /// there, to which [`Session::keep_common_start`] can go back. It takes as much host memory as the state, and a short step more.
    pub fn set_checkpoint(&mut self, keeps_checkpoint: bool) {
        self.keeps_checkpoint = keeps_checkpoint;
    }

    /// From now on, work of this session ends with [`RunError::Cancelled`] once `token` is cancelled, from whatever thread.
    /// Feeding checks it before each submission to the device, about ten times a second; generating checks it before each step.
    /// What was fed by whole steps stays.
    pub fn set_cancel(&mut self, token: CancelToken) {
        self.cancel = Some(token);
    }

    /// From now on, `progress` is called as a feed proceeds, on the thread that feeds; `None` ends that.
    pub fn set_feed_progress(&mut self, progress: Option<FeedProgress>) {
        self.on_feed = progress;
    }

    /// From now on, [`Session::generate`] speculates, which changes how long its tokens take and not which they are; but see
    /// [`Speculation`]. `None`, the default: it does not.
    ///
    /// # Errors
    /// For an option out of its range.
    pub fn set_speculation(&mut self, speculation: Option<&Speculation>) -> Result<(), RunError> {
        speculation.map_or(Ok(()), Speculation::check)?;
        let of = |one: &Speculation| SessionSpeculation { speculator: one.speculator(), times: StepTimes::default() };
        self.speculation = speculation.map(of);
        Ok(())
    }

    /// Drafts since the last call.
    pub fn take_draft_counts(&mut self) -> DraftCounts {
        self.speculation.as_mut().map(|one| std::mem::take(&mut one.speculator.counts)).unwrap_or_default()
    }

    /// Appends tokens to the cache without reading their logits. Blocks until the last step has ended.
    ///
    /// # Errors
    /// When the context is too short or a token unknown; nothing is appended then. When the session is cancelled, or the device
    /// fails and cannot be made ready again; tokens whose step succeeded stay.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<(), RunError> {
        self.feed_part(tokens, tokens.len())
    }

    /// Appends the first `n_tokens` of `tokens`, the rest of which will follow: for texts of some lengths, LongRoPE gives all
    /// tokens other frequencies.
    ///
    /// # Errors
    /// As [`Session::feed`] for all of them.
    ///
    /// # Panics
    /// If there are fewer tokens than `n_tokens`.
    pub fn feed_part(&mut self, tokens: &[u32], n_tokens: usize) -> Result<(), RunError> {
        let sampler = (&Sampling::default(), Masks::none());
        self.feed_steps(tokens, n_tokens, StepOutput::Nothing, sampler, |_, _, _| Ok(()), |_, ()| ())
    }

    /// Appends tokens and samples the one that follows, which is not appended yet. Blocks until the last step has ended.
    ///
    /// # Errors
    /// As [`Session::feed`], and for no tokens at all or a sampling parameter out of range.
    pub fn feed_and_sample(&mut self, tokens: &[u32], sampling: &Sampling) -> Result<Sampled, RunError> {
        self.feed_and_sample_among(tokens, sampling, Masks::none())
    }

    /// Whether the device can be told which tokens it may sample: see [`crate::Model::takes_masks`].
    pub fn takes_masks(&self) -> bool {
        self.shared.takes_masks
    }

    /// The same among the tokens that `fill` allows: it sets their bits in words of 0, the first token's in the lowest bit of the first word,
    /// while the device computes the logits, and may not use the model. Where it allows none, the sampled token has no meaning.
    ///
    /// # Errors
    /// As [`Session::feed_and_sample`].
    ///
    /// # Panics
    /// If the model takes no masks: see [`crate::Model::takes_masks`].
    pub fn feed_and_sample_masked(
        &mut self,
        tokens: &[u32],
        sampling: &Sampling,
        fill: impl FnOnce(&mut [u32]) + Send,
    ) -> Result<Sampled, RunError> {
        assert!(self.takes_masks(), "a model that takes masks");
        self.feed_and_sample_among(tokens, sampling, Masks::of(vec![(0, Box::new(fill))]))
    }

    fn feed_and_sample_among(
        &mut self,
        tokens: &[u32],
        sampling: &Sampling,
        masks: Masks<'_>,
    ) -> Result<Sampled, RunError> {
        sampling.check()?;
        if tokens.is_empty() {
            return Err(RunError::NoTokens);
        }
        let mut sampled = None;
        let read = |engine: &mut Engine, chunk: Chunk, number: u32| match engine.programs.shapes[chunk.program].samples
        {
            true => engine.sampled(0, number).map(Some),
            false => Ok(None),
        };
        let sampler = (sampling, masks);
        self.feed_steps(tokens, tokens.len(), StepOutput::Token, sampler, read, |_, one| sampled = one)?;
        self.sequence.count_sample();
        Ok(sampled.expect("the last step of a feed with sampling samples"))
    }

    /// Appends tokens and returns the logits of the one that follows, `vocab_size` of them. Blocks until the last step has ended.
    ///
    /// # Errors
    /// As [`Session::feed`], and for no tokens at all.
    pub fn feed_and_read_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, RunError> {
        if tokens.is_empty() {
            return Err(RunError::NoTokens);
        }
        let vocab_size = self.shared.model().vocab_size;
        let mut last = Vec::new();
        let read = |engine: &mut Engine, chunk: Chunk, _| {
            let mut logits = Vec::new();
            if engine.programs.shapes[chunk.program].samples {
                engine.read_logits(chunk.program, [0], vocab_size, &mut logits)?;
            }
            Ok(logits)
        };
        // The default is greedy, and leaves the logits as they are.
        let sampler = (&Sampling::default(), Masks::none());
        self.feed_steps(tokens, tokens.len(), StepOutput::Token, sampler, read, |_, logits| last = logits)?;
        self.sequence.count_sample();
        Ok(last)
    }

    /// Appends tokens and calls `sink` with every row's logits, in order. No lock is held while it runs. Blocks until the
    /// last step has ended.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn feed_with_logits(&mut self, tokens: &[u32], sink: &mut LogitsSink<'_>) -> Result<(), RunError> {
        self.feed_part_with_logits(tokens, tokens.len(), sink)
    }

    /// The same for the first `n_tokens` of `tokens`, the rest of which will follow.
    ///
    /// # Errors
    /// As [`Session::feed_part`].
    ///
    /// # Panics
    /// If there are fewer tokens than `n_tokens`.
    pub fn feed_part_with_logits(
        &mut self,
        tokens: &[u32],
        n_tokens: usize,
        sink: &mut LogitsSink<'_>,
    ) -> Result<(), RunError> {
        let vocab_size = self.shared.model().vocab_size;
        self.feed_rows(tokens, n_tokens, StepOutput::AllLogits, vocab_size, sink)
    }

    /// Appends the first `n_tokens` of `tokens`, the rest of which will follow, and calls `sink` with every row's hidden state, in order:
    /// `hidden_size` f32 after the final norm, which the model's head would read (times the model's factor of the logits, if it has
    /// one). No lock is held while it runs. Blocks until the last step has ended.
    ///
    /// # Errors
    /// As [`Session::feed_part`], and [`RunError::NoProgram`] for an artifact from before format 8.3.
    ///
    /// # Panics
    /// If there are fewer tokens than `n_tokens`.
    pub fn feed_with_hidden_rows(
        &mut self,
        tokens: &[u32],
        n_tokens: usize,
        sink: &mut HiddenSink<'_>,
    ) -> Result<(), RunError> {
        let row_len = self.shared.model().hidden_size;
        self.feed_rows(tokens, n_tokens, StepOutput::Hidden, row_len, sink)
    }

    /// Appends the first `n_tokens` of `tokens` and calls `sink` with `row_len` numbers that the step gives for each.
    fn feed_rows(
        &mut self,
        tokens: &[u32],
        n_tokens: usize,
        output: StepOutput,
        row_len: u32,
        sink: &mut dyn FnMut(u32, &[f32]),
    ) -> Result<(), RunError> {
        let read = |engine: &mut Engine, chunk: Chunk, _| {
            let mut rows = Vec::with_capacity(chunk.n_rows as usize * row_len as usize);
            engine.read_logits(chunk.program, 0..chunk.n_rows as usize, row_len, &mut rows)?;
            Ok(rows)
        };
        let each = |position: u32, rows: Vec<f32>| {
            for (position, row) in (position..).zip(rows.chunks_exact(row_len as usize)) {
                sink(position, row);
            }
        };
        self.feed_steps(tokens, n_tokens, output, (&Sampling::default(), Masks::none()), read, each)
    }

    /// Appends `first` and then each token that is sampled, at most `max_tokens` in all, as the iterator is advanced. It
    /// ends when the context is full. The token that it gave last is not appended: it is the `first` of what follows.
    ///
    /// What a caller could have known (a token that is unknown, a context that is full already, a sampling parameter out of
    /// range) is the first item.
    ///
    /// # Errors
    /// Each item: as [`Session::feed_and_sample`]. What was sampled before stays.
    pub fn generate(&mut self, first: u32, sampling: &Sampling, max_tokens: u32) -> Tokens<'_> {
        let Session { shared, sequence, cancel, speculation, .. } = self;
        let row = StreamRow { sequence, cancel: cancel.as_ref(), token: first, sampling: sampling.clone() };
        Tokens::new(shared, row, max_tokens, speculation.as_mut())
    }

    /// The same without speculation, where only some tokens may follow, others each time.
    pub fn generate_masked(&mut self, first: u32, sampling: &Sampling, max_tokens: u32) -> MaskedTokens<'_> {
        let Session { shared, sequence, cancel, .. } = self;
        let row = StreamRow { sequence, cancel: cancel.as_ref(), token: first, sampling: sampling.clone() };
        MaskedTokens::new(shared, row, max_tokens)
    }

    /// Removes tokens from `len_tokens` on; a longer length changes nothing. Waits for no step.
    ///
    /// # Errors
    /// [`RunError::NotInCache`] when a sliding window has already given back what the next token would attend to, or a model has recurrent
    /// state, which continues behind its last token, behind a copy of an earlier state, as that of before a draft, or starts from zero.
    pub fn truncate(&mut self, len_tokens: u32) -> Result<(), RunError> {
        if len_tokens >= self.len_tokens() {
            return Ok(());
        }
        if let Some(kept_from) = self.first_cached_position(len_tokens)
            && !self.can_go_back_to(len_tokens)
        {
            return Err(RunError::NotInCache { len_tokens, kept_from });
        }
        self.sequence.truncate(len_tokens);
        self.offered_tokens = self.offered_tokens.min(len_tokens);
        Ok(())
    }

    /// Removes everything, so that equal seeds sample equal tokens again. Waits for no step.
    pub fn clear(&mut self) {
        self.sequence.truncate(0);
        (self.offered_tokens, self.checkpoint) = (0, None);
        self.restart_samples();
    }

    /// Equal seeds sample after equal tokens what they sampled in a new sequence.
    pub fn restart_samples(&mut self) {
        self.sequence.restart_samples(0);
    }

    /// Later samples are those of a sequence that has sampled `n_samples` tokens.
    pub(crate) fn resume_samples(&mut self, n_samples: u32) {
        self.sequence.restart_samples(n_samples);
    }

    /// From now on, small steps keep this number of tokens behind sliding windows, so that it can go back by as many.
    pub(crate) fn keep_behind_window(&mut self, n_tokens: u32) {
        self.sequence.keep_behind_window(n_tokens);
    }

    /// Tokens sampled so far.
    pub(crate) fn samples(&self) -> u32 {
        self.sequence.samples()
    }

    /// Its pages, one table a KV group.
    pub(crate) fn tables(&self) -> &[BlockTable] {
        self.sequence.tables()
    }

    /// How many of its tokens the sequence could keep to continue with `prompt`: those that are the same, and were fed with
    /// LongRoPE's frequencies for a text of its length; none where a sliding window has given back what the next would attend to, or where
    /// recurrent state includes more tokens and cannot go back to a copy, as that of before a draft.
    /// The prompt's last token is always fed, because its logits are needed. Waits for no step.
    pub fn common_start(&self, prompt: &[u32]) -> u32 {
        let common = self.shared.common_start(&self.sequence, prompt);
        match self.can_go_back_to(common) {
            true => common,
            false => self.shared.usable_start(&self.sequence, prompt),
        }
    }

    /// Its tokens and pages.
    pub(crate) fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Gives up all it has for a prompt that shares less than half of it, and returns that for later ones; `None`: it goes on from what it
    /// has, or that is of no use to others.
    pub(crate) fn end_for(&mut self, prompt: &[u32]) -> Option<EndedSequence> {
        if self.shared.has_state() || 2 * self.common_start(prompt) >= self.len_tokens() {
            return None;
        }
        let ended = self.sequence.end(self.shared.empty_tables(), self.shared.generation())?;
        self.offered_tokens = 0;
        Some(ended)
    }

    /// Its first tokens, at most `len_tokens`, for prompts that begin with them: whole pages, which both hold then. `None`: there are none.
    /// Waits for steps of others where there is recurrent state, which is copied to the host.
    pub(crate) fn beginning(&self, len_tokens: u32) -> Option<EndedSequence> {
        beginning(&self.shared, &self.sequence, len_tokens)
    }

    /// Goes back to what the sequence shares with `prompt`, or to its checkpoint or its beginning where a sliding window has given back what the
    /// next token would attend to, or recurrent state includes other tokens. Returns how many tokens of the prompt are still there. Waits for
    /// no step, but with a checkpoint for those of others.
    pub fn keep_common_start(&mut self, prompt: &[u32]) -> u32 {
        let checkpoint = self.checkpoint.take().filter(|checkpoint| prompt.starts_with(checkpoint.tokens()));
        let kept = self.sequence.exclusive_start(self.common_start(prompt));
        if self.truncate(kept).is_err() {
            self.clear();
        }
        if let Some(checkpoint) = checkpoint {
            self.adopt_start(&checkpoint, prompt);
            self.checkpoint = Some(checkpoint);
        }
        self.len_tokens()
    }

    /// Keeps the first tokens that were fed in whole parts of `part_tokens`, without a sample.
    pub(crate) fn keep_reproducible_start(&mut self, part_tokens: u32) {
        let fed = {
            let mut slot = self.shared.lock_engine();
            let shapes = slot.engine().map(|engine| engine.programs.shapes.as_slice()).unwrap_or_default();
            self.sequence.len_of_steps(|program| shapes.get(program).is_some_and(|shape| !shape.samples))
        };
        let mut whole_parts = (0..=fed / part_tokens).rev().map(|parts| parts * part_tokens);
        let kept = whole_parts.find(|&len| self.sequence.exclusive_start(len) == len).unwrap_or(0);
        if self.truncate(kept).is_err() {
            self.clear();
        }
    }

    /// Begins with the whole pages of `donor` whose tokens `prompt` begins with, if those are more tokens than it has: both hold them, and
    /// neither writes them again. Nothing changes where the device was lost since. Waits for steps of others.
    pub(crate) fn adopt_start(&mut self, donor: &Sequence, prompt: &[u32]) {
        let len_tokens = self.shared.usable_start(donor, prompt);
        if len_tokens <= self.len_tokens() {
            return;
        }
        let mut slot = self.shared.lock_engine();
        // A device that cannot be made ready, or fails, is an error of the next step.
        if let Ok((generation, engine)) = self.shared.ready(&mut slot) {
            let _ = self.sequence.adopt(donor, len_tokens, engine, generation);
            self.offered_tokens = 0;
        }
    }

    /// Whether it has so many tokens that were not offered to a store that these are worth a segment.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        // Numbers of images hold for this run of the model alone.
        self.len_tokens() >= self.offered_tokens + MIN_SEGMENT_TOKENS && !self.sequence.has_images()
    }

    /// Offers what it has computed since the last time to `store`, which writes it. Waits for steps of others.
    ///
    /// # Errors
    /// [`KeepError::Device`] when the device fails; [`KeepError::Store`] when the store cannot write.
    pub(crate) fn keep(&mut self, store: &mut KvStore) -> Result<(), KeepError> {
        let len_tokens = self.len_tokens();
        self.offered_tokens = len_tokens;
        let rope_variant = self.shared.model().rope_variant(len_tokens);
        let found = store.find_whole(self.tokens(), rope_variant);
        let from = found.len_tokens;
        if len_tokens < from + MIN_SEGMENT_TOKENS || self.sequence.len_of_variant(rope_variant, len_tokens) < len_tokens
        {
            return Ok(());
        }
        let groups = &self.shared.artifact.plan().kv_groups;
        let mut slot = self.shared.lock_engine();
        let generation = self.shared.generation();
        let Some(engine) = slot.engine() else { return Ok(()) };
        let Some(SequencePart { steps, groups, pages }) = self.sequence.segment_from(from, groups, generation) else {
            return Ok(());
        };
        let payload = engine.read_pages(&pages)?;
        drop(slot);
        let tokens = self.tokens()[from as usize..].to_vec();
        store.add(&found, tokens, steps, groups, payload).map_err(KeepError::Store)
    }

    /// Continues from what `store` has of `prompt`, if that is worth reading it: more tokens than the sequence has. What cannot be read is
    /// not found again. Waits for steps of others.
    ///
    /// # Errors
    /// [`RunError::NoPages`] where other sequences hold too many; the sequence is empty then.
    pub(crate) fn restore(&mut self, store: &mut KvStore, prompt: &[u32]) -> Result<(), RunError> {
        let rope_variant = self.shared.model().rope_variant(prompt.len() as u32);
        let found = store.find(prompt, rope_variant);
        if found.len_tokens < self.len_tokens() + MIN_SEGMENT_TOKENS {
            return Ok(());
        }
        let groups = &self.shared.artifact.plan().kv_groups;
        let mut slot = self.shared.lock_engine();
        // A device that cannot be made ready is an error of the next step.
        let Ok((generation, engine)) = self.shared.ready(&mut slot) else { return Ok(()) };
        let segments = store.segments(&found);
        let (vocab_size, programs) = (self.shared.model().vocab_size, &engine.programs.shapes);
        let is_possible = |segment: &&KvSegment| {
            let fits = |step: &KvStep| programs.get(step.program as usize).is_some_and(|one| step.n_tokens <= one.rows);
            segment.steps.iter().all(fits) && segment.tokens.iter().all(|&token| token < vocab_size)
        };
        let mut damaged = segments.iter().position(|segment| !is_possible(segment));
        if damaged.is_none() {
            let payload = |number| store.payload(&found, number);
            match self.sequence.restore(&segments, found.len_tokens, groups, engine, generation, payload) {
                Ok(found) => damaged = found,
                Err(stop) => {
                    self.sequence.truncate(0);
                    if let Stop::Caller(error) = stop {
                        return Err(error);
                    }
                }
            }
        }
        drop(slot);
        match damaged {
            Some(number) => store.forget(&found, number),
            None => store.touch(&found),
        }
        self.offered_tokens = self.len_tokens();
        Ok(())
    }

    /// Seconds that the device spent in this sequence's steps since the last call (those of a batch count for each
    /// of its sequences, and those of a submission for all of its steps, also if a sample was not taken); `None`: it keeps no
    /// time, or there was no step.
    pub fn take_gpu_seconds(&mut self) -> Option<f64> {
        Some(self.sequence.take_gpu_seconds()).filter(|&seconds| seconds > 0.0)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The session's sequence, and the token that is to be appended to it, as a row of a stream.
    pub(crate) fn stream_row(&mut self, token: u32, sampling: &Sampling) -> StreamRow<'_> {
        let sampling = sampling.clone();
        StreamRow { sequence: &mut self.sequence, cancel: self.cancel.as_ref(), token, sampling }
    }

    /// The session's sequence, to which a part of a prompt is to be appended.
    pub(crate) fn sequence_mut(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    /// At most `max_tokens` tokens that may follow `newest`, which is not appended yet, as the model's own head for drafts predicts them one behind
    /// the other: see [`crate::Model::own_speculation`]. None behind an empty sequence. Blocks for as many short steps; nothing is appended.
    ///
    /// # Errors
    /// As [`Session::feed`], and [`RunError::NoProgram`] for a model without such a head.
    pub fn predict(&mut self, newest: u32, max_tokens: u32) -> Result<Vec<u32>, RunError> {
        predict(&self.shared, &mut self.sequence, newest, max_tokens, &mut |_, _| Ok(()))
    }

    /// The logits of which [`Session::predict`] takes its first token, `vocab_size` of them; none behind an empty sequence.
    ///
    /// # Errors
    /// As [`Session::predict`].
    pub fn predicted_logits(&mut self, newest: u32) -> Result<Vec<f32>, RunError> {
        let (vocab_size, mut logits) = (self.shared.model().vocab_size, Vec::new());
        predict(&self.shared, &mut self.sequence, newest, 1, &mut |engine, program| {
            logits.clear();
            engine.read_logits(program, [0], vocab_size, &mut logits)
        })?;
        Ok(logits)
    }

    /// Appends `rows` in one step and chooses what follows each, as long as that is the next row: see [`verify`].
    pub(crate) fn verify(
        &mut self,
        rows: &[u32],
        logits: &mut Vec<f32>,
        choose: &mut ChooseToken<'_>,
    ) -> Result<Verified, RunError> {
        let Session { shared, sequence, cancel, .. } = self;
        verify(shared, sequence, cancel.as_ref(), rows, logits, choose)
    }

    /// The first token that a sliding window still holds, where that is too late to continue after `len_tokens` of them.
    fn first_cached_position(&self, len_tokens: u32) -> Option<u32> {
        self.sequence.first_cached_position(len_tokens, self.shared.generation())
    }

    /// Where a feed of `n_tokens` keeps a checkpoint; `None`: nowhere.
    fn checkpoint_at(&self, n_tokens: u32) -> Option<u32> {
        let (begin, page_tokens) = (self.len_tokens(), self.sequence.page_tokens());
        // The last token is always fed.
        let at = (begin + n_tokens).saturating_sub(1) / page_tokens * page_tokens;
        let is_worth_it = at > begin && at >= MIN_SEGMENT_TOKENS;
        Some(at).filter(|_| self.keeps_checkpoint && self.shared.has_state() && is_worth_it)
    }

    /// Runs the first `n_tokens` of `tokens` through as many steps as it takes. After each, `read` is called with the engine, the
    /// step and the number of its sample; then, with nothing locked, `each` with the step's first position and what was read.
    fn feed_steps<R>(
        &mut self,
        tokens: &[u32],
        n_tokens: usize,
        output: StepOutput,
        (sampling, mut masks): (&Sampling, Masks<'_>),
        mut read: impl FnMut(&mut Engine, Chunk, u32) -> Result<R, Failure>,
        mut each: impl FnMut(u32, R),
    ) -> Result<(), RunError> {
        let checkpoint_at = self.checkpoint_at(tokens.len() as u32);
        let Session { shared, sequence, chunk_limit, cancel, on_feed, checkpoint, .. } = self;
        shared.check_tokens(sequence.len_tokens(), tokens)?;
        sequence.hold_images(tokens, &shared.decided.images);
        // LongRoPE's frequencies depend on the final length of the sequence. Tokens that were fed while it was shorter keep their
        // keys, as in every implementation with a cache.
        let rope_variant = shared.model().rope_variant(sequence.len_tokens() + tokens.len() as u32);
        let mut rest = &tokens[..n_tokens];
        let reports = on_feed.is_some();
        let mut report = |n_fed: usize| {
            if let Some(progress) = on_feed {
                progress(n_fed as u32, n_tokens as u32);
            }
        };
        report(0);
        while !rest.is_empty() {
            if cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Err(RunError::Cancelled);
            }
            let position = sequence.len_tokens();
            let to_checkpoint = checkpoint_at.filter(|&at| at > position).map_or(u32::MAX, |at| at - position);
            let limit = to_checkpoint.min(*chunk_limit);
            let (n_rows, what) = persist(shared, &mut [&mut *sequence], None, |engine, sequences| {
                let sequence = &mut *sequences[0];
                let shapes = &engine.programs.shapes;
                let chunk = engine.images.next_chunk(shapes, output, position, rest, limit);
                let chunk = chunk.ok_or(RunError::NoProgram { wanted: output.name() })?;
                let now = &rest[..chunk.n_rows as usize];
                let mut on_ended = |ended, all| report(n_tokens - rest.len() + now.len() * ended / all);
                let mut watch = Watch::of(cancel.as_ref());
                if reports {
                    watch.on_ended = Some(&mut on_ended);
                }
                let mut none = Masks::none();
                // The last step samples.
                let masks = if now.len() == rest.len() { &mut masks } else { &mut none };
                sequence.run(engine, chunk.program, now, rope_variant, sampling, (watch, masks))?;
                let what = read(engine, chunk, sequence.samples());
                if what.is_err() {
                    sequence.take_back(position);
                }
                Ok((chunk.n_rows, what?))
            })?;
            each(position, what);
            if checkpoint_at == Some(sequence.len_tokens()) {
                *checkpoint = beginning(shared, sequence, sequence.len_tokens());
            }
            rest = &rest[n_rows as usize..];
            report(n_tokens - rest.len());
        }
        Ok(())
    }
}

/// See [`Session::beginning`].
fn beginning(shared: &Shared, sequence: &Sequence, len_tokens: u32) -> Option<EndedSequence> {
    let mut slot = shared.has_state().then(|| shared.lock_engine());
    let generation = shared.generation();
    let state = match &mut slot {
        // A device that fails is an error of the next step.
        Some(slot) if sequence.len_in_whole_pages(len_tokens, generation) > 0 => {
            slot.engine()?.read_state(sequence.tables()).ok()?
        }
        _ => Vec::new(),
    };
    sequence.beginning(len_tokens, shared.empty_tables(), state, generation)
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.end_sequence(&mut self.sequence);
    }
}
