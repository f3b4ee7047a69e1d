//! A sequence's tokens and its pages of the KV cache, without the model that it runs on.

use std::borrow::Cow;
use std::ops::{Deref, Range};

use unicorn_artifact::kv_segment::{KvPages, KvStep, pages_of};
use unicorn_artifact::step::is_image_row;
use unicorn_artifact::{KvGroupPlan, KvSegment};

use crate::error::RunError;
use crate::memory::kv_pages::{BlockTable, PagePool, PagePools};
use crate::memory::state_copies::StateCopy;
use crate::program::chunks::Chunk;
use crate::session::journal::{Entry, Journal};
use crate::session::kv_payload::Payload;
use crate::step::engine::{Engine, Rows, Step};
use crate::step::images::{Image, Images, rope_shift};
use crate::step::masks::Masks;
use crate::step::sampling::{SamplerInput, Sampling};
use crate::step::stop::Stop;
use crate::step::watch::Watch;
use crate::vk::Failure;

/// One sequence. Its journal lists the tokens of the cache; its tables locate their pages in the cache of one engine.
pub struct Sequence {
    slot: u32,
    /// One a KV group.
    tables: Vec<BlockTable>,
    /// `None`: it was not computed on any engine yet, or not as a whole.
    cache: Option<Cache>,
    journal: Journal,
    /// Tokens sampled so far, which let equal seeds sample other random numbers at each step.
    samples: u32,
    /// Seconds that the device spent in its steps since they were last taken.
    gpu_seconds: f64,
    /// Images whose rows are among its tokens, and perhaps others.
    images: Vec<Image>,
    /// Recurrent state of a beginning, which has no page for it: see [`Engine::read_state`].
    state: Vec<u8>,
}

/// The engine that a sequence's tables are valid for.
struct Cache {
    generation: u64,
    pools: PagePools,
    /// How far the journal was run again, while that is not finished.
    replay: Option<Replay>,
    /// A copy of its recurrent state on the device.
    saved: Option<SavedState>,
}

/// Recurrent state to which a sequence can go back.
struct SavedState {
    copy: StateCopy,
    /// Number of tokens that it includes, where a step has ended.
    position: u32,
}

/// What a segment of a sequence is made of.
pub struct SequencePart {
    /// The steps that appended its tokens.
    pub steps: Vec<KvStep>,
    /// One a KV group.
    pub groups: Vec<KvPages>,
    /// Physical pages, one list a KV group.
    pub pages: Vec<Vec<u32>>,
}

#[derive(Clone, Copy)]
struct Replay {
    next_entry: usize,
    /// Position of the entry's first token.
    position: u32,
}

impl Sequence {
    /// An empty sequence. Appending up to `context_tokens` allocates nothing.
    pub fn new(slot: u32, tables: Vec<BlockTable>, context_tokens: u32) -> Sequence {
        let journal = Journal::new(context_tokens);
        let (images, state) = (Vec::new(), Vec::new());
        Sequence { slot, tables, cache: None, journal, samples: 0, gpu_seconds: 0.0, images, state }
    }

    /// The slot of the model that the sequence occupies, below [`crate::Model::slots`].
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// All tokens, in order.
    pub fn tokens(&self) -> &[u32] {
        self.journal.tokens()
    }

    /// Number of tokens.
    pub fn len_tokens(&self) -> u32 {
        self.journal.len_tokens()
    }

    /// Tokens from the first on, at most `most`, that were fed with LongRoPE's frequencies of this variant.
    pub fn len_of_variant(&self, rope_variant: u32, most: u32) -> u32 {
        self.journal.len_of_variant(rope_variant, most)
    }

    /// Tokens from the first on that steps of these programs appended.
    pub fn len_of_steps(&self, is_one: impl Fn(usize) -> bool) -> u32 {
        self.journal.len_of_steps(is_one)
    }

    /// The engine that its tables are valid for.
    pub fn generation(&self) -> Option<u64> {
        self.cache.as_ref().map(|cache| cache.generation)
    }

    /// The first token that a sliding window still holds, if that is too late to continue after `len_tokens` tokens; with recurrent
    /// state, the number of tokens that it includes, if that differs. `generation` is the current engine's: tables of a lost engine
    /// are not cut, because the cache is computed again from the journal.
    pub fn first_cached_position(&self, len_tokens: u32, generation: u64) -> Option<u32> {
        let is_current =
            self.cache.as_ref().is_some_and(|cache| cache.generation == generation && cache.replay.is_none());
        let tables = if is_current { self.tables.as_slice() } else { &[] };
        tables.iter().find(|table| !table.can_continue_at(len_tokens)).map(|table| table.kept_from())
    }

    /// Removes tokens from `len_tokens` on and gives their pages back. Waits for no step: one in flight that still reads or
    /// writes such a page ends before that of any other sequence.
    pub fn truncate(&mut self, len_tokens: u32) {
        match &mut self.cache {
            Some(Cache { pools, replay: None, saved, .. }) => {
                truncate(&mut self.tables, pools, len_tokens);
                saved.take_if(|saved| saved.position > len_tokens || len_tokens == 0);
            }
            _ => self.drop_cache(),
        }
        self.journal.truncate(len_tokens);
        if len_tokens == 0 {
            self.images.clear();
        }
    }

    /// Keeps the images whose rows are among `tokens`, which are about to be appended.
    pub fn hold_images(&mut self, tokens: &[u32], images: &Images) {
        for &token in tokens.iter().filter(|&&token| is_image_row(token)) {
            if !self.images.iter().any(|image| image.has(token)) {
                self.images.extend(images.of_token(token));
            }
        }
    }

    /// Whether it has, or had, rows of images.
    pub fn has_images(&self) -> bool {
        !self.images.is_empty()
    }

    /// Begins with the first tokens of `donor`, at most `len_tokens`, and holds their pages as well: whole pages, which neither writes
    /// again. It gets a copy of recurrent state. Removes what it held. Nothing changes where the cache of `donor` is not that of this engine, or
    /// is too short.
    ///
    /// # Errors
    /// When the device fails; the sequence is empty then.
    pub fn adopt(
        &mut self,
        donor: &Sequence,
        len_tokens: u32,
        engine: &mut Engine,
        generation: u64,
    ) -> Result<(), Failure> {
        let len_tokens = donor.len_in_whole_pages(len_tokens, generation);
        if len_tokens <= self.len_tokens() {
            return Ok(());
        }
        self.truncate(0);
        let state = match donor.state.as_slice() {
            [] => Cow::Owned(engine.read_state(&donor.tables)?),
            state => Cow::Borrowed(state),
        };
        self.cache = Some(Cache { generation, pools: engine.pools.clone(), replay: None, saved: None });
        engine.adopt(self.slot, &mut self.tables, &donor.tables, len_tokens);
        if let Err(failure) = engine.write_state(&self.tables, &state) {
            self.truncate(0);
            return Err(failure);
        }
        self.journal.adopt(&donor.journal, len_tokens);
        self.images.clone_from(&donor.images);
        Ok(())
    }

    /// The largest length, at most `len_tokens`, of whole pages that others may hold to continue there; 0: its cache is not that of the engine
    /// of this generation, or is too short.
    pub fn len_in_whole_pages(&self, len_tokens: u32, generation: u64) -> u32 {
        let page_tokens = self.page_tokens();
        let len_tokens = len_tokens.min(self.len_tokens()) / page_tokens * page_tokens;
        let is_current =
            self.cache.as_ref().is_some_and(|cache| cache.generation == generation && cache.replay.is_none());
        let is_held = self.tables.iter().all(|table| table.can_continue_at(len_tokens));
        if is_current && is_held { len_tokens } else { 0 }
    }

    /// Tokens of the largest page of K and V.
    pub fn page_tokens(&self) -> u32 {
        let pages = self.tables.iter().filter(|table| !table.is_state());
        pages.map(BlockTable::page_tokens).max().unwrap_or(1)
    }

    /// Its first tokens, at most `len_tokens`, as a sequence that has ended and holds their pages as well, whole pages, with its recurrent
    /// `state`. `tables` are empty. `None`: there are none, see [`Sequence::adopt`].
    pub fn beginning(
        &self,
        len_tokens: u32,
        tables: Vec<BlockTable>,
        state: Vec<u8>,
        generation: u64,
    ) -> Option<EndedSequence> {
        let len_tokens = self.len_in_whole_pages(len_tokens, generation);
        let pools = &self.cache.as_ref().filter(|_| len_tokens > 0)?.pools;
        let mut beginning = Sequence::new(self.slot, tables, self.len_tokens());
        for ((table, donor), pool) in beginning.tables.iter_mut().zip(&self.tables).zip(pools.lock().iter_mut()) {
            match table.is_state() {
                true => table.keep_state_at(len_tokens),
                false => table.adopt(pool, donor, len_tokens, |_, _| {}),
            }
            table.end(pool);
        }
        beginning.cache = Some(Cache { generation, pools: pools.clone(), replay: None, saved: None });
        beginning.journal.adopt(&self.journal, len_tokens);
        beginning.images.clone_from(&self.images);
        beginning.state = state;
        Some(EndedSequence(beginning))
    }

    /// The steps that appended its tokens from `from` on, and of each KV group the pages of a segment of these tokens and where they are.
    /// `None`: its cache is not that of the engine of this generation, or includes more than its tokens.
    pub fn segment_from(&self, from: u32, groups: &[KvGroupPlan], generation: u64) -> Option<SequencePart> {
        let is_current =
            self.cache.as_ref().is_some_and(|cache| cache.generation == generation && cache.replay.is_none());
        let len_tokens = self.len_tokens();
        if !is_current || from >= len_tokens || !self.tables.iter().all(|table| table.can_continue_at(len_tokens)) {
            return None;
        }
        let mut part = SequencePart { steps: self.journal.steps_from(from), groups: Vec::new(), pages: Vec::new() };
        for (table, group) in self.tables.iter().zip(groups) {
            let pages = pages_of(group, from..len_tokens);
            let first = (pages.start - table.held().start) as usize;
            part.groups.push(KvPages { first_page: pages.start, n_pages: pages.len() as u32 });
            part.pages.push(table.pages().skip(first).take(pages.len()).collect());
        }
        Some(part)
    }

    /// Becomes the first `len_tokens` of the sequence of these segments, whose payloads `payload` opens. The last one's pages of sliding
    /// windows and recurrent state are those that the token behind it depends on. Returns the number of a segment whose payload is gone or
    /// damaged. Then, and if it fails, the sequence is empty.
    pub fn restore<'s>(
        &mut self,
        segments: &[&KvSegment],
        len_tokens: u32,
        groups: &[KvGroupPlan],
        engine: &mut Engine,
        generation: u64,
        payload: impl Fn(usize) -> Option<Payload<'s>>,
    ) -> Result<Option<usize>, Stop> {
        self.truncate(0);
        let Some(last) = segments.last() else { return Ok(None) };
        let held = |(group, pages): (&KvGroupPlan, &KvPages)| match is_kept_whole(group) {
            true => 0..len_tokens.div_ceil(group.page_tokens),
            false => pages.first_page..pages.first_page + pages.n_pages,
        };
        let held: Vec<Range<u32>> = groups.iter().zip(&last.groups).map(held).collect();
        self.cache = Some(Cache { generation, pools: engine.pools.clone(), replay: None, saved: None });
        engine.restore(self.slot, &mut self.tables, &held, len_tokens)?;
        for (number, segment) in segments.iter().enumerate() {
            let (mut places, mut at) = (Vec::new(), 0);
            for (index, (group, pages)) in groups.iter().zip(&segment.groups).enumerate() {
                if is_kept_whole(group) || number + 1 == segments.len() {
                    let first = (pages.first_page - held[index].start) as usize;
                    let physical: Vec<u32> =
                        self.tables[index].pages().skip(first).take(pages.n_pages as usize).collect();
                    places.extend(engine.places(index, &physical, pages.n_pages, at));
                }
                at += group.bytes(pages.n_pages);
            }
            let is_right = match payload(number) {
                None => false,
                Some(payload) => {
                    let read = |at, part: &mut [u8]| payload.read(at, part);
                    let subtrees = engine.write_places(&places, payload.len_bytes(), &read)?;
                    subtrees.is_some_and(|subtrees| payload.is_right(subtrees.concat()))
                }
            };
            if !is_right {
                self.truncate(0);
                return Ok(Some(number));
            }
            self.journal.extend(segment);
        }
        self.truncate(len_tokens);
        Ok(None)
    }

    /// Its tokens and pages as a sequence that has ended, of which others can adopt the start; this one is empty then, with `tables`.
    /// `None`, and nothing changes: it has no whole page, or its cache is not that of the engine of this generation.
    pub fn end(&mut self, tables: Vec<BlockTable>, generation: u64) -> Option<EndedSequence> {
        if tables.iter().any(|table| table.page_tokens() > self.len_tokens()) {
            return None;
        }
        let cache = self.cache.take_if(|cache| cache.generation == generation && cache.replay.is_none())?;
        let context_tokens = self.journal.capacity();
        let mut ended = Sequence::new(self.slot, tables, context_tokens);
        std::mem::swap(&mut ended.tables, &mut self.tables);
        std::mem::swap(&mut ended.journal, &mut self.journal);
        std::mem::swap(&mut ended.images, &mut self.images);
        for (table, pool) in ended.tables.iter_mut().zip(cache.pools.lock().iter_mut()) {
            table.end(pool);
        }
        ended.cache = Some(cache);
        Some(EndedSequence(ended))
    }

    /// The largest length, at most `len_tokens`, at which it may append: not in the middle of a page that another sequence holds.
    pub fn exclusive_start(&self, len_tokens: u32) -> u32 {
        let Some(Cache { pools, replay: None, .. }) = &self.cache else { return len_tokens };
        let pools = pools.lock();
        let shared =
            self.tables.iter().zip(pools.iter()).filter(|(table, pool)| table.is_inside_shared_page(pool, len_tokens));
        shared.map(|(table, _)| len_tokens / table.page_tokens() * table.page_tokens()).min().unwrap_or(len_tokens)
    }

    /// Copies its recurrent state on the device, so that it can go back to its present length. Waits for steps in flight.
    pub fn save_state(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        if let Some(cache) = &mut self.cache {
            let position = self.journal.len_tokens();
            cache.saved = engine.save_state(&self.tables)?.map(|copy| SavedState { copy, position });
        }
        Ok(())
    }

    /// Number of tokens in the copy of its recurrent state, if it can be cut to `len_tokens` although the state includes more: then it goes back
    /// to the copy, and the tokens behind that are computed again. `generation` is the current engine's.
    pub fn saved_position(&self, len_tokens: u32, generation: u64) -> Option<u32> {
        let Some(Cache { pools, replay: None, saved: Some(saved), .. }) = &self.cache else { return None };
        let is_held = self.generation() == Some(generation) && saved.copy.is_held();
        let position = Some(saved.position).filter(|&position| position <= len_tokens && is_held)?;
        let pools = pools.lock();
        let is_kept = |(table, pool): (&BlockTable, &PagePool)| {
            table.is_state() || table.can_continue_at(position) && !table.is_inside_shared_page(pool, position)
        };
        self.tables.iter().zip(pools.iter()).all(is_kept).then_some(position)
    }

    /// Where recurrent state includes more tokens than the sequence has, and none is in flight, goes back to the copy of an earlier state, or
    /// drops the cache: after a draft that was rejected, or steps that ran ahead of a stream that was dropped, or that failed. What is missing
    /// then is computed again from the journal.
    pub fn leave_state_ahead(&mut self, engine: &mut Engine, generation: u64) -> Result<(), Failure> {
        let is_ahead = !self.tables.iter().all(|table| table.can_continue_at(self.len_tokens()));
        let is_current = |cache: &Cache| cache.generation == generation && cache.replay.is_none();
        if !is_ahead || !self.cache.as_ref().is_some_and(is_current) {
            return Ok(());
        }
        let saved_position = self.saved_position(self.len_tokens(), generation);
        let (Some(position), Some(cache)) = (saved_position, &mut self.cache) else {
            self.drop_cache();
            return Ok(());
        };
        engine.restore_state(&self.tables)?;
        self.tables.iter_mut().for_each(|table| table.keep_state_at(position));
        cache.replay = Some(Replay { next_entry: self.journal.steps_before(position), position });
        Ok(())
    }

    /// Runs the next step of the journal again if the cache is not that of the engine of this generation. `false`: it is, now or
    /// already, and no step ran.
    pub fn catch_up(&mut self, engine: &mut Engine, generation: u64) -> Result<bool, Stop> {
        if self.generation() != Some(generation) {
            self.drop_cache();
            let replay = Some(Replay { next_entry: 0, position: 0 });
            self.cache = Some(Cache { generation, pools: engine.pools.clone(), replay, saved: None });
        }
        let Some(cache) = &mut self.cache else { return Ok(false) };
        let Some(Replay { next_entry, position }) = cache.replay else { return Ok(false) };
        let Some(entry) = self.journal.entry(next_entry, position) else {
            cache.replay = None;
            return Ok(false);
        };
        let input = Sampling::default().input(0, false, &[]);
        let rope_shift = rope_shift(&self.journal.tokens()[..position as usize], &self.images);
        let (watch, masks) = (Watch::default(), &mut Masks::none());
        run_entry(engine, self.slot, &mut self.tables, &entry, rope_shift, input, (watch, masks))?;
        cache.replay = Some(Replay { next_entry: next_entry + 1, position: position + entry.tokens.len() as u32 });
        Ok(true)
    }

    /// Appends `tokens` by a step of `program` that runs now, to its end. `masks`: of its sampler, number 0.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        program: usize,
        tokens: &[u32],
        rope_variant: u32,
        sampling: &Sampling,
        (watch, masks): (Watch<'_>, &mut Masks<'_>),
    ) -> Result<(), Stop> {
        let position = self.len_tokens();
        let rope_shift = rope_shift(self.tokens(), &self.images);
        self.journal.append(tokens, program, rope_variant);
        let input = sampling.input(self.samples, false, self.journal.tokens());
        let entry = Entry { program, position, tokens, rope_variant };
        let ran = run_entry(engine, self.slot, &mut self.tables, &entry, rope_shift, input, (watch, masks));
        self.add_gpu_seconds(engine.gpu_seconds(program, 0).unwrap_or_default());
        if ran.is_err() {
            self.journal.truncate(position);
        }
        ran
    }

    /// Appends tokens whose step, of `program`, has their pages.
    pub fn append(&mut self, tokens: &[u32], program: usize, rope_variant: u32) {
        self.journal.append(tokens, program, rope_variant);
    }

    /// The steps that append the tokens from `position` on are others, which are yet to run: `next` is called with a step's position and the
    /// number of tokens that are left.
    pub fn replace_steps(&mut self, position: u32, rope_variant: u32, next: impl Fn(u32, u32) -> Option<Chunk>) {
        let tokens = self.tokens()[position as usize..].to_vec();
        let mut chunks = Vec::new();
        let mut n_placed = 0;
        while n_placed < tokens.len() as u32 {
            let Some(chunk) = next(position + n_placed, tokens.len() as u32 - n_placed) else { return };
            n_placed += chunk.n_rows;
            chunks.push(chunk);
        }
        self.journal.truncate(position);
        let mut rest = &tokens[..];
        for Chunk { program, n_rows } in chunks {
            let now;
            (now, rest) = rest.split_at(n_rows as usize);
            self.journal.append(now, program, rope_variant);
        }
    }

    /// Removes the tokens from `len_tokens` on, whose steps did not run.
    pub fn take_back(&mut self, len_tokens: u32) {
        self.journal.truncate(len_tokens);
    }

    /// Allocates pages for `n_tokens` tokens behind the last.
    ///
    /// # Errors
    /// [`RunError::NoPages`] where other sequences hold too many.
    pub fn take_pages(&mut self, n_tokens: u32, engine: &mut Engine) -> Result<(), RunError> {
        let end = self.len_tokens();
        engine.advance(self.slot, end..end + n_tokens, &mut self.tables)
    }

    /// The step that pages were taken for last does not run: its recurrent state stays that of its tokens and `ahead` more, which steps in
    /// flight append.
    pub fn keep_state(&mut self, ahead: u32) {
        let position = self.len_tokens() + ahead;
        self.tables.iter_mut().for_each(|table| table.keep_state_at(position));
    }

    /// From now on, small steps keep this number of tokens behind sliding windows.
    pub fn keep_behind_window(&mut self, n_tokens: u32) {
        self.tables.iter_mut().for_each(|table| table.keep_behind_window(n_tokens));
    }

    /// Its pages, one table a KV group.
    pub fn tables(&self) -> &[BlockTable] {
        &self.tables
    }

    /// The last `n_tokens` as rows of a step.
    pub fn newest_rows(&self, n_tokens: usize, rope_variant: u32) -> Rows<'_> {
        let position = self.tokens().len() - n_tokens;
        let (before, tokens) = self.tokens().split_at(position);
        let rope_shift = rope_shift(before, &self.images);
        Rows { slot: self.slot, position: position as u32, tokens, rope_variant, rope_shift }
    }

    /// How the token after the last is sampled; `feeds`: on the device, it is the next step's.
    pub fn sampler<'s>(&'s self, sampling: &Sampling, feeds: bool) -> SamplerInput<'s> {
        sampling.input(self.samples, feeds, self.tokens())
    }

    /// Tokens sampled so far.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// A token was sampled and read.
    pub fn count_sample(&mut self) {
        self.samples = self.samples.wrapping_add(1);
    }

    /// The last `n_samples` count as not sampled.
    pub fn take_back_samples(&mut self, n_samples: u32) {
        self.samples = self.samples.wrapping_sub(n_samples);
    }

    /// Later samples are those of a sequence that has sampled `n_samples` tokens; 0: of a new one.
    pub fn restart_samples(&mut self, n_samples: u32) {
        self.samples = n_samples;
    }

    /// Adds the seconds that steps of this sequence took on the device.
    pub fn add_gpu_seconds(&mut self, gpu_seconds: f64) {
        self.gpu_seconds += gpu_seconds;
    }

    /// Seconds that the device spent in this sequence's steps since the last call.
    pub fn take_gpu_seconds(&mut self) -> f64 {
        std::mem::take(&mut self.gpu_seconds)
    }

    /// Gives all pages back, to the pools that they came from.
    fn drop_cache(&mut self) {
        if let Some(cache) = self.cache.take() {
            truncate(&mut self.tables, &cache.pools, 0);
        }
    }
}

/// A sequence that has ended and keeps its pages, which it gives back when it is dropped. It has no slot.
pub struct EndedSequence(Sequence);

impl Deref for EndedSequence {
    type Target = Sequence;

    fn deref(&self) -> &Sequence {
        &self.0
    }
}

impl Drop for EndedSequence {
    fn drop(&mut self) {
        self.0.truncate(0);
    }
}

/// Whether a sequence keeps the pages of all its tokens.
fn is_kept_whole(group: &KvGroupPlan) -> bool {
    group.window_tokens.is_none() && !group.is_state()
}

fn truncate(tables: &mut [BlockTable], pools: &PagePools, len_tokens: u32) {
    for (table, pool) in tables.iter_mut().zip(pools.lock().iter_mut()) {
        table.truncate(pool, len_tokens);
    }
}

/// Runs one step of a sequence, before whose first token rotary embeddings leave out `rope_shift` positions.
fn run_entry(
    engine: &mut Engine,
    slot: u32,
    tables: &mut [BlockTable],
    entry: &Entry<'_>,
    rope_shift: u32,
    input: SamplerInput<'_>,
    (watch, masks): (Watch<'_>, &mut Masks<'_>),
) -> Result<(), Stop> {
    let &Entry { program, position, tokens, rope_variant } = entry;
    engine.advance(slot, position..position + tokens.len() as u32, tables)?;
    let rows = [Rows { slot, position, tokens, rope_variant, rope_shift }];
    engine.run(&Step { program, rows: &rows, apart_rows: 0, samplers: &[input] }, watch, masks)
}
