//! One step at a time: what the host writes, the submission, what the host reads. A step allocates nothing.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use unicorn_artifact::LogitsRows;
use unicorn_artifact::step::{HISTORY_AT, KEPT_SAMPLES, MAX_HISTORY, MAX_SAMPLERS, Output, ROWS_AT, Row, SAMPLERS_AT};
use unicorn_artifact::step::{Sampler, StepHeader, TABLES_AT, feeds_and_mask, is_image_row, rope_word};

use crate::error::{LoadError, RunError};
use crate::load::streaming::StreamingLoad;
use crate::memory::buffers::{HostViews, KvBuffers};
use crate::memory::kv_copy::{self, Place};
use crate::memory::kv_pages::{BlockTable, PagePools};
use crate::memory::staging::StagingPool;
use crate::memory::state_copies::{StateCopies, StateCopy};
use crate::npu::NpuDevice;
use crate::program::chunks::ProgramShape;
use crate::program::npu_queues::QueueEntry;
use crate::program::profile::StepProfile;
use crate::program::programs::{RecordedProgram, RecordedPrograms};
use crate::program::submissions::DispatchRange;
use crate::step::images::{Image, Images};
use crate::step::masks::Masks;
use crate::step::npu_queues::StepQueues;
use crate::step::sampling::{Sampled, SamplerInput};
use crate::step::steps_in_flight::{SharedStepsInFlight, StepsInFlight, SubmittedSteps};
use crate::step::stop::Stop;
use crate::step::watch::Watch;
use crate::vk::Failure;
use crate::vk::buffer::Mapping;
use crate::vk::command_list::CommandList;
use crate::vk::pipeline::Pipeline;
use crate::vk::submission::{SAMPLER_SLOT, SubmissionQueue};

/// A model on its device, ready to run one step after another.
pub struct Engine {
    /// Dropped first: it waits for what is submitted.
    pub queue: SubmissionQueue,
    /// Steps that were submitted and not read yet, shared with their stream.
    pub in_flight: Option<SharedStepsInFlight>,
    /// `None`: all weights were resident before the first step.
    pub loading: Option<StreamingLoad>,
    /// Steps since they were last taken, where programs were recorded to be profiled.
    pub profiles: Vec<StepProfile>,
    pub views: HostViews,
    /// Present where it has a part in programs.
    pub npu: Option<NpuDevice>,
    /// Rows of the step that was written last.
    pub n_rows: u32,
    pub programs: RecordedPrograms,
    /// Zeros the activations and, before them, the counters by which dispatches wait for each other.
    pub clear_arena: CommandList,
    /// Reads a buffer, by which bandwidth is measured; `None`: the artifact holds no such kernel.
    pub bandwidth_probe: Option<Arc<Pipeline>>,
    /// The KV cache, one entry a KV group.
    pub kv: Vec<KvBuffers>,
    /// Pages of the KV cache that no sequence has. Its lock is never held while a step runs.
    pub pools: PagePools,
    /// Copies of recurrent state, where the model has it.
    pub state_copies: Option<StateCopies>,
    /// For transfers of pages and states to the host and back.
    pub staging: StagingPool,
    pub slots: u32,
    /// Block table entries of one slot.
    pub table_stride: u32,
    /// Words of a sampler's mask in the step buffer, which has one a slot behind the block tables; 0: samplers take none.
    pub mask_words: usize,
    /// Sequences longer than this take LongRoPE's long frequencies.
    pub long_rope_above: u32,
    /// Images of all sequences, which hold those that they have rows of.
    pub images: Arc<Images>,
    /// f32 elements between rows of images where a step reads them.
    pub image_row_stride: usize,
}

/// Consecutive tokens that a step appends to one sequence.
#[derive(Clone, Copy)]
pub struct Rows<'s> {
    pub slot: u32,
    /// Position of the first token.
    pub position: u32,
    pub tokens: &'s [u32],
    /// 0, or 1 for LongRoPE's long frequencies.
    pub rope_variant: u32,
    /// Positions that rotary embeddings leave out before the first token.
    pub rope_shift: u32,
}

impl<'s> Rows<'s> {
    /// The first `n_tokens` of them, and the others.
    pub fn split_at(&self, n_tokens: usize) -> (Rows<'s>, Rows<'s>) {
        let (first, others) = self.tokens.split_at(n_tokens);
        (Rows { tokens: first, ..*self }, Rows { position: self.position + n_tokens as u32, tokens: others, ..*self })
    }
}

/// One forward pass of a program.
pub struct Step<'s> {
    /// Index into the programs.
    pub program: usize,
    pub rows: &'s [Rows<'s>],
    /// Which rows are apart from those behind them, in a program that is mixed, as `StepHeader::apart_rows` has it; else 0.
    pub apart_rows: u32,
    /// One a token that is to be sampled.
    pub samplers: &'s [SamplerInput<'s>],
}

impl Engine {
    /// Runs one step to its end. Its rows have their pages, and nothing is in flight. `masks` are computed while the device computes the logits, or
    /// before that where `watch` is needed or weights are being loaded.
    ///
    /// # Errors
    /// [`RunError::Cancelled`] when `watch` is cancelled before the last submission; otherwise when the device fails.
    pub fn run(&mut self, step: &Step<'_>, watch: Watch<'_>, masks: &mut Masks<'_>) -> Result<(), Stop> {
        self.write(step, masks)?;
        let begin = Instant::now();
        if watch.is_needed() {
            self.write_masks(masks)?;
            self.run_watched(step.program, watch)?;
        } else {
            if self.begin_before_masks(step.program, 0, masks)? {
                self.begin_sampler(step.program, 0, masks)?;
            }
            self.end(0)?;
        }
        self.keep_profile(step.program, step.rows.iter().map(|rows| rows.tokens.len() as u32).sum(), begin);
        Ok(())
    }

    /// Keeps the times of a step that began then and has ended, if its program was recorded to be profiled.
    fn keep_profile(&mut self, program: usize, n_rows: u32, begin: Instant) {
        if let Some(timestamps) = &self.programs.recorded[program].timestamps {
            self.profiles.extend(timestamps.read(n_rows, begin, begin.elapsed().as_secs_f64()));
        }
    }

    /// Submits a program on what the step buffer holds, after the other slot's steps. While weights are being loaded, each
    /// submission waits for what it reads.
    pub fn begin(&mut self, program: usize, step_slot: usize) -> Result<(), Stop> {
        match &self.loading {
            Some(loading) if !loading.state.is_complete()? => {
                let waiting = &loading.programs[program];
                let ready = |list: usize| Ok(loading.state.wait_for(waiting.chunks_needed[list])?);
                self.queue.begin_when(step_slot, &waiting.slots[step_slot], ready)
            }
            _ => self.begin_resident(program, step_slot),
        }
    }

    /// Submits a program whose weights are resident. Where an NPU takes part, it returns when the last of its products is computed.
    fn begin_resident(&mut self, program: usize, step_slot: usize) -> Result<(), Stop> {
        self.begin_lists(program, step_slot, |recorded| &recorded.slots[step_slot].lists)
    }

    /// Whether a program can be submitted without its sampler: not while weights are being loaded. Records its lists for that the first time.
    fn can_sample_apart(&mut self, program: usize) -> Result<bool, Stop> {
        Ok(self.has_weights()? && self.programs.recorded[program].record_samplers_apart(self.queue.device())?)
    }

    /// Submits a program on what the step buffer holds, as [`Engine::begin`]. If there are masks, and the program can be submitted without its
    /// sampler, that is yet to follow by [`Engine::begin_sampler`]: then it returns `true`.
    pub fn begin_before_masks(
        &mut self,
        program: usize,
        step_slot: usize,
        masks: &mut Masks<'_>,
    ) -> Result<bool, Stop> {
        let is_apart = !masks.is_empty() && self.can_sample_apart(program)?;
        if is_apart {
            self.begin_before_sampler(program, step_slot)?;
        } else {
            self.write_masks(masks)?;
            self.begin(program, step_slot)?;
        }
        Ok(is_apart)
    }

    /// Submits the next step, without its sampler, behind one that samples its tokens. `false`: not while weights are being loaded, nor where an
    /// NPU takes part, for which the host would wait.
    pub fn begin_behind_sampler(&mut self, program: usize, step_slot: usize) -> Result<bool, Stop> {
        let is_apart = self.programs.recorded[program].npu.is_empty() && self.can_sample_apart(program)?;
        if is_apart {
            self.begin_before_sampler(program, step_slot)?;
        }
        Ok(is_apart)
    }

    /// Submits what comes before a program's sampler, which is recorded apart.
    fn begin_before_sampler(&mut self, program: usize, step_slot: usize) -> Result<(), Stop> {
        self.begin_lists(program, step_slot, |recorded| &recorded.sampler_apart(step_slot).before)
    }

    /// Submits these lists of a program. Where an NPU takes part, it returns when the last of its products is computed.
    fn begin_lists(
        &mut self,
        program: usize,
        step_slot: usize,
        lists: impl Fn(&RecordedProgram) -> &[CommandList],
    ) -> Result<(), Stop> {
        match self.npu_queues(program, step_slot, &lists) {
            Some((queues, entries)) => queues.run(entries, &mut |_| true).map(drop),
            None => Ok(self.queue.begin(step_slot, lists(&self.programs.recorded[program]))?),
        }
    }

    /// Both queues of a program, and their entries; `None`: no NPU takes part.
    fn npu_queues(
        &mut self,
        program: usize,
        step_slot: usize,
        lists: impl Fn(&RecordedProgram) -> &[CommandList],
    ) -> Option<(StepQueues<'_>, &[QueueEntry])> {
        let recorded = &self.programs.recorded[program];
        if recorded.npu.is_empty() {
            return None;
        }
        let npu = self.npu.as_mut().expect("loaded with the programs that it has a part in");
        let (queue, views, n_rows) = (&mut self.queue, &mut self.views, self.n_rows);
        Some((StepQueues { queue, npu, views, n_rows, step_slot, lists: lists(recorded) }, &recorded.npu))
    }

    /// Writes the masks of a step that was submitted without its sampler, and submits that. The samplers of steps before have ended.
    pub fn begin_sampler(&mut self, program: usize, step_slot: usize, masks: &mut Masks<'_>) -> Result<(), Failure> {
        self.write_masks(masks)?;
        self.queue.begin(SAMPLER_SLOT, &self.programs.recorded[program].sampler_apart(step_slot).sampler)
    }

    /// Writes the masks to the places that [`Engine::write`] has given to the samplers. Dispatches before the samplers may be in flight: they read
    /// other words of the buffer.
    fn write_masks(&mut self, masks: &mut Masks<'_>) -> Result<(), Failure> {
        if masks.is_empty() {
            return Ok(());
        }
        let begin = self.mask_begin(0);
        self.views.step.write_words(begin, masks.words(self.mask_words));
        self.views.step.flush()
    }

    /// Runs a program on what the step buffer holds, and asks `watch` before each submission.
    fn run_watched(&mut self, program: usize, mut watch: Watch<'_>) -> Result<(), Stop> {
        let all_ran = match &self.loading {
            Some(loading) if !loading.state.is_complete()? => {
                let streamed = &loading.programs[program];
                let lists = &streamed.slots[0];
                let ready = |list: usize| -> Result<bool, Stop> {
                    loading.state.wait_for(streamed.chunks_needed[list])?;
                    Ok(watch.goes_on(list, lists.len()))
                };
                self.queue.run_while(lists, ready)?
            }
            _ => {
                let count = self.programs.recorded[program].slots[0].lists.len();
                let mut goes_on = |list| watch.goes_on(list, count);
                match self.npu_queues(program, 0, |recorded| &recorded.slots[0].lists) {
                    Some((queues, entries)) => {
                        let all_ran = queues.run(entries, &mut goes_on)?;
                        self.queue.end(0)?;
                        all_ran
                    }
                    None => {
                        let lists = &self.programs.recorded[program].slots[0].lists;
                        self.queue.run_while(lists, |list| Ok::<bool, Failure>(goes_on(list)))?
                    }
                }
            }
        };
        if !all_ran {
            // Counters of dispatches that others were to wait for are not at 0.
            self.queue.run(std::slice::from_ref(&self.clear_arena))?;
            return Err(RunError::Cancelled.into());
        }
        Ok(())
    }

    /// Whether one submission can have several steps of a program: not while weights are being loaded.
    pub fn has_steps_together(&self, program: usize) -> Result<bool, Stop> {
        Ok(self.has_weights()? && !self.programs.recorded[program].multistep_slots.is_empty())
    }

    /// Whether all weights are resident.
    fn has_weights(&self) -> Result<bool, Stop> {
        Ok(self.loading.as_ref().map_or(Ok(true), |loading| loading.state.is_complete())?)
    }

    /// As [`Engine::begin`], for several steps in one submission. The program has them.
    pub fn begin_together(&mut self, program: usize, step_slot: usize) -> Result<(), Stop> {
        Ok(self.queue.begin(step_slot, &self.programs.recorded[program].multistep_slots[step_slot].lists)?)
    }

    /// Returns when the weights that these ranges of a program read are resident.
    pub fn wait_for_weights(&self, program: usize, ranges: &[DispatchRange]) -> Result<(), LoadError> {
        let Some(loading) = &self.loading else { return Ok(()) };
        let needed = ranges.iter().map(|range| loading.chunks_needed[program][range.dispatch]).max();
        Ok(loading.state.wait_for(needed.unwrap_or(0))?)
    }

    /// Waits for the slot's steps, the older ones of those in flight.
    pub fn end(&mut self, step_slot: usize) -> Result<(), Failure> {
        self.queue.end(SAMPLER_SLOT)?;
        self.queue.end(step_slot)
    }

    /// Waits for steps in flight unless they are `mine`, and keeps their samples for their stream. Afterwards the step buffer may
    /// be written.
    ///
    /// # Errors
    /// When one of them fails: nothing is in flight then.
    pub fn settle(&mut self, mine: Option<&SharedStepsInFlight>) -> Result<(), Failure> {
        let Some(flight) = self.in_flight.take_if(|flight| !mine.is_some_and(|mine| mine.is(flight))) else {
            return Ok(());
        };
        let is_abandoned = flight.is_abandoned();
        let mut flight = flight.lock();
        while flight.first().is_some() {
            self.end_first(&mut flight, is_abandoned)?;
        }
        Ok(())
    }

    /// Whether these steps are in flight, so that the next ones can be submitted behind them.
    pub fn is_in_flight(&self, flight: &SharedStepsInFlight) -> bool {
        self.in_flight.as_ref().is_some_and(|one| one.is(flight))
    }

    /// Waits for the oldest steps in flight and reads their samples, or the logits of a step without a sampler, for which only the stream has
    /// masks; nothing where their stream was dropped.
    ///
    /// # Errors
    /// When the device fails. The samples before stay.
    pub fn end_first(&mut self, flight: &mut StepsInFlight, is_abandoned: bool) -> Result<(), Failure> {
        let Some(SubmittedSteps { program, step_slot, n_steps, awaits_masks }) = flight.pop() else { return Ok(()) };
        self.end(step_slot)?;
        if awaits_masks {
            if !is_abandoned {
                let row_len = self.programs.recorded[program].logits_stride;
                flight.keep_logits(program, |n_rows, logits| self.read_logits(program, 0..n_rows, row_len, logits))?;
            }
            // Its tokens mean nothing, and it changes the logits. It runs because every step leaves the counters at 0.
            self.begin_sampler(program, step_slot, &mut Masks::none())?;
            self.end(step_slot)?;
        }
        flight.add_gpu_seconds(self.gpu_seconds(program, step_slot), n_steps);
        let n_read = if is_abandoned || awaits_masks { 0 } else { n_steps };
        (0..n_read).try_for_each(|_| flight.keep(program, |row, number| self.sampled(row, number)))
    }

    /// Seconds that the device spent in the slot's last submissions; `None`: it has no timestamps.
    pub fn gpu_seconds(&self, program: usize, step_slot: usize) -> Option<f64> {
        self.programs.recorded[program].slots[step_slot].timer.as_ref()?.seconds_between(0, 1)
    }

    /// The token that sampler `sampler` of a step that ended has sampled, as its sample of that number.
    pub fn sampled(&self, sampler: usize, number: u32) -> Result<Sampled, Failure> {
        self.views.output.invalidate()?;
        let mut words = [0; Output::WORDS];
        let at = (number as usize % KEPT_SAMPLES) * MAX_SAMPLERS + sampler;
        self.views.output.read_words(at * Output::WORDS, &mut words);
        let [token, logit, candidates, stalled] = words;
        if stalled != 0 {
            return Err(Failure::stalled());
        }
        Ok(Sampled { token, logit: f32::from_bits(logit), candidates })
    }

    /// Appends the last step's logits of these of its rows to `logits`, `row_len` a row: `vocab_size`, or `hidden_size` of a program
    /// that writes hidden rows.
    pub fn read_logits(
        &mut self,
        program: usize,
        rows: impl IntoIterator<Item = usize>,
        row_len: u32,
        logits: &mut Vec<f32>,
    ) -> Result<(), Failure> {
        let recorded = &self.programs.recorded[program];
        self.queue.run(&recorded.read_logits)?;
        self.views.readback.invalidate()?;
        let (all, row_bytes) = (self.views.readback.bytes(), 4 * recorded.logits_stride as usize);
        for row in rows {
            let (values, _) = all[row * row_bytes..][..row_bytes].as_chunks::<4>();
            logits.extend(values[..row_len as usize].iter().map(|&bytes| f32::from_le_bytes(bytes)));
        }
        Ok(())
    }

    /// Gives a sequence the pages of positions `rows`, which begin where the sequence ends. Steps in flight may have rows of the
    /// first of them: those have their pages, and what is written here are pages behind, which only later steps read. A page
    /// of a sliding window that no position of `rows` attends to is given back, and may be given out at once: a step in flight may
    /// still read it, but a later writer runs behind a barrier after that step.
    ///
    /// # Errors
    /// [`RunError::NoPages`] where other sequences hold too many; nothing changes then.
    pub fn advance(&mut self, slot: u32, rows: Range<u32>, tables: &mut [BlockTable]) -> Result<(), RunError> {
        let mut pools = self.pools.lock();
        if tables.iter().zip(pools.iter()).any(|(table, pool)| !table.can_advance(pool, rows.clone())) {
            return Err(RunError::NoPages);
        }
        for (group, (table, pool)) in tables.iter_mut().zip(pools.iter_mut()).enumerate() {
            let begin = self.table_begin(group, slot);
            let view = &mut self.views.step;
            table.advance(pool, rows.clone(), |logical, physical| {
                view.write_words(begin + logical as usize, &[physical]);
            });
        }
        Ok(())
    }

    /// Gives a sequence without pages those of another one's first `len_tokens`, whole pages, and one for each recurrent state.
    pub fn adopt(&mut self, slot: u32, tables: &mut [BlockTable], donor: &[BlockTable], len_tokens: u32) {
        let mut pools = self.pools.lock();
        for (group, ((table, donor), pool)) in tables.iter_mut().zip(donor).zip(pools.iter_mut()).enumerate() {
            let begin = self.table_begin(group, slot);
            let view = &mut self.views.step;
            table.adopt(pool, donor, len_tokens, |logical, physical| {
                view.write_words(begin + logical as usize, &[physical]);
            });
        }
    }

    /// Bytes of these physical pages, one list a KV group, in the order of [`unicorn_artifact::kv_segment`]. Waits for steps in flight.
    pub fn read_pages(&mut self, pages: &[Vec<u32>]) -> Result<Vec<u8>, Failure> {
        self.settle(None)?;
        let lengths = || self.kv.iter().zip(pages).map(|(group, pages)| group.bytes_of(pages) as usize);
        let mut payload = vec![0; lengths().sum()];
        let mut rest = payload.as_mut_slice();
        for ((group, pages), len_bytes) in self.kv.iter().zip(pages).zip(lengths()) {
            let of_group;
            (of_group, rest) = rest.split_at_mut(len_bytes);
            kv_copy::read_pages(&self.staging, group, pages, of_group)?;
        }
        Ok(payload)
    }

    /// Where these physical pages of a KV group, the first of `n_pages`, are in a payload whose bytes of the group begin at `at`.
    pub fn places(&self, group: usize, pages: &[u32], n_pages: u32, at: u64) -> impl Iterator<Item = Place> {
        kv_copy::places(&self.kv[group], pages, n_pages, at)
    }

    /// Writes what `places` have of a payload like that of [`Engine::read_pages`]: see [`kv_copy::write_places`]. Waits for steps in flight.
    pub fn write_places<R: Send>(
        &mut self,
        places: &[Place],
        len_bytes: u64,
        read: &(dyn Fn(u64, &mut [u8]) -> Option<R> + Sync),
    ) -> Result<Option<Vec<R>>, Failure> {
        self.settle(None)?;
        kv_copy::write_places(&self.staging, places, len_bytes, read)
    }

    /// Copies a sequence's recurrent state on the device. `None`: it has none, or there is no place for a copy. Waits for steps in flight.
    pub fn save_state(&mut self, tables: &[BlockTable]) -> Result<Option<StateCopy>, Failure> {
        self.settle(None)?;
        self.state_copies.as_mut().map_or(Ok(None), |copies| copies.save(&mut self.queue, tables))
    }

    /// Gives a sequence back the state that [`Engine::save_state`] has copied last of it, and whose copy is still held. Waits for steps in
    /// flight.
    pub fn restore_state(&mut self, tables: &[BlockTable]) -> Result<(), Failure> {
        self.settle(None)?;
        self.state_copies.as_ref().map_or(Ok(()), |copies| copies.restore(&mut self.queue, tables))
    }

    /// Bytes of a sequence's recurrent state, none where it has no such layers. Waits for steps in flight.
    pub fn read_state(&mut self, tables: &[BlockTable]) -> Result<Vec<u8>, Failure> {
        if !tables.iter().any(BlockTable::is_state) {
            return Ok(Vec::new());
        }
        let pages = |table: &BlockTable| if table.is_state() { table.pages().collect() } else { Vec::new() };
        self.read_pages(&tables.iter().map(pages).collect::<Vec<_>>())
    }

    /// Writes what [`Engine::read_state`] has read to the pages of another sequence. Where that is something, it waits for steps in flight.
    pub fn write_state(&mut self, tables: &[BlockTable], state: &[u8]) -> Result<(), Failure> {
        if state.is_empty() {
            return Ok(());
        }
        let (mut places, len_bytes) = (Vec::new(), state.len() as u64);
        let mut at = 0;
        for (group, table) in tables.iter().enumerate().filter(|(_, table)| table.is_state()) {
            let pages: Vec<u32> = table.pages().collect();
            places.extend(self.places(group, &pages, pages.len() as u32, at));
            at += self.kv[group].bytes_of(&pages);
        }
        let read = |at: u64, part: &mut [u8]| {
            part.copy_from_slice(&state[at as usize..][..part.len()]);
            Some(())
        };
        self.write_places(&places, len_bytes, &read).map(drop)
    }

    /// Gives a sequence without pages these logical ones, one range a KV group, for its first `len_tokens` tokens.
    ///
    /// # Errors
    /// [`RunError::NoPages`] where other sequences hold too many; nothing changes then.
    pub fn restore(
        &mut self,
        slot: u32,
        tables: &mut [BlockTable],
        pages: &[Range<u32>],
        len_tokens: u32,
    ) -> Result<(), RunError> {
        let mut pools = self.pools.lock();
        if pages.iter().zip(pools.iter()).any(|(pages, pool)| pages.len() > pool.n_free() as usize) {
            return Err(RunError::NoPages);
        }
        for (group, ((table, pages), pool)) in tables.iter_mut().zip(pages).zip(pools.iter_mut()).enumerate() {
            let begin = self.table_begin(group, slot);
            let view = &mut self.views.step;
            table.restore(pool, pages.clone(), len_tokens, |logical, physical| {
                view.write_words(begin + logical as usize, &[physical]);
            });
        }
        Ok(())
    }

    /// Where the block table of a slot begins in the step buffer, in words.
    fn table_begin(&self, group: usize, slot: u32) -> usize {
        TABLES_AT + (group * self.slots as usize + slot as usize) * self.table_stride as usize
    }

    /// Where the mask of that number begins in the step buffer, in words.
    fn mask_begin(&self, number: usize) -> usize {
        assert!(self.mask_words > 0, "a step has masks where samplers take them");
        self.table_begin(self.kv.len(), 0) + number * self.mask_words
    }

    /// Writes header, rows, samplers and histories, and where the samplers' masks will be. Nothing is in flight.
    pub fn write(&mut self, step: &Step<'_>, masks: &Masks<'_>) -> Result<(), Failure> {
        let n_rows: usize = step.rows.iter().map(|rows| rows.tokens.len()).sum();
        self.n_rows = n_rows as u32;
        let header = StepHeader {
            n_rows: n_rows as u32,
            logits_row: n_rows as u32 - 1,
            long_rope_above: self.long_rope_above,
            table_stride: self.table_stride,
            table_slots: self.slots,
            n_samplers: step.samplers.len() as u32,
            apart_rows: step.apart_rows,
            ..StepHeader::default()
        };
        self.write_image_rows(step)?;
        let mask_at = |sampler: usize| masks.number(sampler).map_or(0, |number| self.mask_begin(number));
        let masks_at: Vec<usize> = (0..step.samplers.len()).map(mask_at).collect();
        let view = &mut self.views.step;
        view.write_words(0, &header.to_words());
        let mut at = ROWS_AT;
        for rows in step.rows {
            let mut shift = rows.rope_shift;
            for (&token, position) in rows.tokens.iter().zip(rows.position..) {
                let image = self.images.of_token(token);
                let across = image.as_ref().map_or(0, Image::across);
                // A model has variants, or places, or neither.
                let rope_variant = rows.rope_variant | rope_word(shift, across);
                let row = Row { token, position, sequence: rows.slot, rope_variant };
                view.write_words(at, &row.to_words());
                at += Row::WORDS;
                shift += image.filter(|image| image.ends_with(token)).map_or(0, |image| image.left_out());
            }
        }
        for (index, input) in step.samplers.iter().enumerate() {
            let n_history = input.history.len() as u32;
            let capacity = input.sampler.history_capacity;
            let history_next = if capacity == 0 { 0 } else { n_history % capacity };
            let feeds_and_mask = input.sampler.feeds_and_mask | feeds_and_mask(false, masks_at[index]);
            let sampler = Sampler { n_history, history_next, feeds_and_mask, ..input.sampler };
            view.write_words(SAMPLERS_AT + index * Sampler::WORDS, &sampler.to_words());
            view.write_words(HISTORY_AT + index * MAX_HISTORY, input.history);
        }
        view.flush()
    }
}

impl Engine {
    /// Writes the step's rows of images to their places in the input buffer.
    fn write_image_rows(&mut self, step: &Step<'_>) -> Result<(), Failure> {
        if !self.programs.shapes[step.program].images {
            return Ok(());
        }
        let view = self.views.input.as_mut().expect("a model with such programs takes images");
        for (at, &token) in step.rows.iter().flat_map(|rows| rows.tokens).enumerate() {
            if is_image_row(token) {
                let (image, row) = self.images.row_of_token(token).expect("a sequence holds its images");
                write_floats(view, at * self.image_row_stride, image.row(row));
            }
        }
        view.flush()
    }

    /// Makes rows of the patches of an image, `patches`, in rows of the stride that the artifact names; `across`: rows from left to right.
    /// Nothing is in flight. Returns the rows, `width` elements each.
    ///
    /// # Errors
    /// When the device fails, or there is no such program.
    pub fn run_image(&mut self, patches: &[f32], n_rows: u32, across: u32, width: u32) -> Result<Vec<f32>, Stop> {
        let is_it = |shape: &ProgramShape| shape.logits == LogitsRows::Image;
        let program = self.programs.shapes.iter().position(is_it);
        let program = program.ok_or(RunError::NoProgram { wanted: "rows of an image" })?;
        let view = self.views.input.as_mut().expect("a model with such programs takes images");
        write_floats(view, 0, patches);
        view.flush()?;
        self.views
            .step
            .write_words(0, &StepHeader { n_rows, image_across: across, ..StepHeader::default() }.to_words());
        self.views.step.flush()?;
        let begin = Instant::now();
        self.begin(program, 0)?;
        self.end(0)?;
        self.keep_profile(program, n_rows, begin);
        let mut rows = Vec::new();
        self.read_logits(program, 0..n_rows as usize, width, &mut rows)?;
        Ok(rows)
    }
}

/// Writes f32 elements from element `at` on.
fn write_floats(view: &mut Mapping, at: usize, elements: &[f32]) {
    let (words, _) = view.bytes_mut()[4 * at..].as_chunks_mut::<4>();
    words.iter_mut().zip(elements).for_each(|(word, element)| *word = element.to_le_bytes());
}
