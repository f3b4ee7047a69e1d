//! What the handles and the sessions of one model share, and which calls wait for which.
//!
//! | lock | held | by |
//! |---|---|---|
//! | the engine's (fair) | while one step is submitted and awaited, or the model is made resident again | steps |
//! | of steps in flight, with the engine's | the same | the stream that they are for |
//! | free slots, page pools, recoveries | for a few instructions | everything else |
//!
//! So making and dropping a session, cutting it back and all reports wait for no step.

use std::ops::{ControlFlow, Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use unicorn_artifact::{KvGroupPlan, ModelMeta, Program};

use crate::device::facts::DeviceFacts;
use crate::error::{LoadError, RunError};
use crate::load::artifact::ArtifactFile;
use crate::load::streaming::StreamingState;
use crate::memory::kv_pages::BlockTable;
use crate::memory::requirements::{ContextRequest, KvCapacity, pool_pages};
use crate::npu::NpuUse;
use crate::resident::{Decided, Resident, make_resident};
use crate::session::fair_lock::{FairGuard, FairLock, lock};
use crate::session::sequence::Sequence;
use crate::step::engine::Engine;
use crate::vk::device::Device;
use crate::vk::instance::Instance;

/// A loaded model.
pub struct Shared {
    /// The open artifact.
    pub artifact: Arc<ArtifactFile>,
    /// Target, context and options that were chosen before loading.
    pub decided: Decided,
    /// Facts of the device, read before loading.
    pub facts: DeviceFacts,
    /// Progress and result of the upload, shared with the thread of a lazy load.
    pub streaming: Arc<StreamingState>,
    /// When its loading began.
    pub begun: Instant,
    /// Whether steps take masks of the tokens that may be sampled.
    pub takes_masks: bool,
    /// Programs of its engine keep every buffer alive that they use.
    engine: FairLock<EngineSlot>,
    /// Grows whenever an engine is lost: a sequence's tables are valid for one generation.
    generation: AtomicU64,
    /// Free slots; the last one is taken first.
    free_slots: Mutex<Vec<u32>>,
    recoveries: Mutex<Vec<Recovery>>,
}

/// The engine, while there is one.
pub struct EngineSlot {
    /// `None`: it was lost with its device, and no step has needed it since.
    engine: Option<Engine>,
    /// Cause of the loss of the last engine.
    lost_to: String,
}

/// A device that was lost, and made ready again.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Recovery {
    /// The Vulkan call or the wait that failed, and how.
    pub cause: String,
    /// Seconds until the model was resident again.
    pub seconds: f64,
    /// Its dispatches have had barriers since then, also where they could wait for each other.
    pub barriers: bool,
    /// The GPU has done the NPU's work since then.
    pub without_npu: bool,
}

/// Attempts to make a model resident again.
const MAX_TRIES: u32 = 3;
/// Pause before the second try, doubled before the next: a driver that resets a GPU takes a while.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

impl Shared {
    /// A model whose slots are all free.
    pub fn new(
        artifact: Arc<ArtifactFile>,
        decided: Decided,
        facts: DeviceFacts,
        streaming: Arc<StreamingState>,
        begun: Instant,
        engine: Engine,
    ) -> Shared {
        Shared {
            engine: FairLock::new(EngineSlot { engine: Some(engine), lost_to: String::new() }),
            generation: AtomicU64::new(0),
            free_slots: Mutex::new((0..decided.request.slots).rev().collect()),
            recoveries: Mutex::new(Vec::new()),
            takes_masks: artifact.takes_masks(),
            artifact,
            decided,
            facts,
            streaming,
            begun,
        }
    }

    /// The artifact's description of the model.
    pub fn model(&self) -> &ModelMeta {
        &self.artifact.meta().model
    }

    /// Longest sequence, in tokens.
    pub fn context_tokens(&self) -> u32 {
        self.decided.context_tokens
    }

    /// Sequences that can exist at a time.
    pub fn slots(&self) -> u32 {
        self.decided.request.slots
    }

    /// Most sequences that one step takes.
    pub fn batch_rows(&self) -> u32 {
        let programs = &self.artifact.target(self.decided.target).programs;
        programs.iter().filter(|one| one.batch && one.samples).map(|one| one.rows).max().unwrap_or(0)
    }

    /// Rows of the programs that take newest tokens of several sequences and parts of prompts, the smallest first.
    pub fn mixed_rows(&self) -> Vec<u32> {
        let mut rows: Vec<u32> = self.mixed_programs().map(|one| one.rows).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Most prompts of which each of these programs takes parts; 0: there are none.
    pub fn prompts_beside(&self) -> usize {
        self.mixed_programs().map(|one| one.logits.prompts_beside()).min().unwrap_or(0)
    }

    /// None where an NPU computes products of prompts, which has no such programs.
    fn mixed_programs(&self) -> impl Iterator<Item = &Program> {
        let target = self.artifact.target(self.decided.target);
        let has_npu = self.decided.options.npu != NpuUse::Off && self.artifact.npu_steps(&target.name).is_some();
        target.programs.iter().filter(move |one| !has_npu && one.logits.prompts_beside() > 0)
    }

    /// Longest time of several decode steps in one submission, in seconds.
    pub fn multistep_seconds(&self) -> f64 {
        self.decided.options.multistep.as_secs_f64()
    }

    /// The current engine's generation, or the next one's while there is none. Waits for nothing.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether `tokens` can follow a sequence of `len_tokens`.
    ///
    /// # Errors
    /// [`RunError::UnknownToken`] or [`RunError::ContextFull`].
    pub fn check_tokens(&self, len_tokens: u32, tokens: &[u32]) -> Result<(), RunError> {
        let vocab_size = self.model().vocab_size;
        let is_unknown = |token: u32| token >= vocab_size && self.decided.images.of_token(token).is_none();
        if let Some(&token) = tokens.iter().find(|&&token| is_unknown(token)) {
            return Err(RunError::UnknownToken { token, vocab_size });
        }
        let needed_tokens = u64::from(len_tokens) + tokens.len() as u64;
        let context_tokens = self.context_tokens();
        if needed_tokens > u64::from(context_tokens) {
            return Err(RunError::ContextFull { context_tokens, needed_tokens });
        }
        Ok(())
    }

    /// An empty sequence in a free slot. Waits for no step.
    ///
    /// # Errors
    /// [`RunError::NoFreeSlot`] while as many exist as the model was loaded for.
    pub fn new_sequence(&self) -> Result<Sequence, RunError> {
        let slot = self.take_slot()?;
        Ok(Sequence::new(slot, self.empty_tables(), self.context_tokens()))
    }

    /// Frees a sequence's pages and its slot. Waits for no step.
    pub fn end_sequence(&self, sequence: &mut Sequence) {
        sequence.truncate(0);
        self.give_back_slot(sequence.slot());
    }

    /// Takes a free slot. Waits for no step.
    ///
    /// # Errors
    /// [`RunError::NoFreeSlot`] when all slots are taken.
    pub fn take_slot(&self) -> Result<u32, RunError> {
        lock(&self.free_slots).pop().ok_or(RunError::NoFreeSlot { slots: self.slots() })
    }

    /// Marks a slot as free again. Waits for no step.
    pub fn give_back_slot(&self, slot: u32) {
        lock(&self.free_slots).push(slot);
    }

    /// Block tables of an empty sequence, one a KV group.
    pub fn empty_tables(&self) -> Vec<BlockTable> {
        let table = |group| {
            let pages = pool_pages(group, self.context_tokens(), &ContextRequest { slots: 1, ..self.decided.request });
            BlockTable::new(group, pages as u32)
        };
        self.artifact.plan().kv_groups.iter().map(table).collect()
    }

    /// How many of its tokens a sequence could keep to continue with `prompt`: see [`crate::Session::common_start`].
    pub fn usable_start(&self, sequence: &Sequence, prompt: &[u32]) -> u32 {
        let common = self.common_start(sequence, prompt);
        if sequence.first_cached_position(common, self.generation()).is_none() { common } else { 0 }
    }

    /// The same, also where the sequence has given back what the next token would attend to.
    pub fn common_start(&self, sequence: &Sequence, prompt: &[u32]) -> u32 {
        let rope_variant = self.model().rope_variant(prompt.len() as u32);
        sequence.len_of_variant(rope_variant, common_start(sequence.tokens(), prompt))
    }

    /// Whether sequences can need more pages than there are.
    pub fn pages_can_run_out(&self) -> bool {
        let request = &self.decided.request;
        let is_less = |group| {
            let all = ContextRequest { kv_capacity: KvCapacity::Each, ..*request };
            pool_pages(group, self.context_tokens(), request) < pool_pages(group, self.context_tokens(), &all)
        };
        self.artifact.plan().kv_groups.iter().any(is_less)
    }

    /// Whether layers have recurrent state, which continues behind its last token or starts from zero.
    pub fn has_state(&self) -> bool {
        self.artifact.plan().kv_groups.iter().any(KvGroupPlan::is_state)
    }

    /// Whether a sequence that grows loses what others could continue from at its beginning: pages of sliding windows, or recurrent state.
    pub fn loses_beginnings(&self) -> bool {
        self.artifact.plan().kv_groups.iter().any(|group| group.window_tokens.is_some() || group.is_state())
    }

    /// Waits for the steps of others that came before, one of each thread that generates.
    pub fn lock_engine(&self) -> EngineGuard<'_> {
        EngineGuard { slot: self.engine.lock(), artifact: &self.artifact }
    }

    /// Whether someone else needs the engine that the caller has locked.
    pub fn is_contended(&self) -> bool {
        self.engine.is_contended()
    }

    /// The engine, created again if it was lost, and its generation.
    ///
    /// # Errors
    /// When the device cannot be made ready again, or the file whose pages it reads was changed.
    pub fn ready<'e>(&self, slot: &'e mut EngineSlot) -> Result<(u64, &'e mut Engine), RunError> {
        if let Err(error) = self.artifact.begin_reading() {
            // A program that waits to write the file waits for these.
            if slot.engine.as_mut().is_some_and(|engine| engine.settle(None).is_err()) {
                self.lose(slot, error.to_string());
            }
            return Err(RunError::Loading { source: Arc::new(error) });
        }
        if slot.engine.is_none() {
            let begin = Instant::now();
            let cause = slot.lost_to.clone();
            let again = self.make_resident_again();
            slot.engine =
                Some(again.map_err(|error| RunError::NotRecovered { cause: cause.clone(), source: Box::new(error) })?);
            let seconds = begin.elapsed().as_secs_f64();
            lock(&self.recoveries).push(Recovery {
                cause,
                seconds,
                barriers: self.has_barriers(),
                without_npu: self.decided.without_npu.load(Ordering::Relaxed),
            });
        }
        Ok((self.generation(), slot.engine.as_mut().expect("it was just made")))
    }

    /// Drops the engine with all that is on its device, so that there is memory for the next.
    pub fn lose(&self, slot: &mut EngineSlot, cause: String) {
        slot.engine = None;
        slot.lost_to = cause;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Recoveries since the last call, oldest first. Waits for no step.
    pub fn take_recoveries(&self) -> Vec<Recovery> {
        std::mem::take(&mut lock(&self.recoveries))
    }

    /// From the next engine on, dispatches have barriers instead of counters.
    pub fn do_without_counters(&self) {
        self.decided.barriers.store(true, Ordering::Relaxed);
    }

    /// Whether the GPU may do the NPU's work.
    pub fn is_npu_optional(&self) -> bool {
        self.decided.options.npu == NpuUse::Optional
    }

    /// From the next engine on, the GPU does the NPU's work.
    pub fn do_without_npu(&self) {
        self.decided.without_npu.store(true, Ordering::Relaxed);
    }

    /// Whether dispatches have barriers also where they could wait for each other by themselves.
    pub fn has_barriers(&self) -> bool {
        self.decided.barriers.load(Ordering::Relaxed)
    }

    fn make_resident_again(&self) -> Result<Engine, LoadError> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..MAX_TRIES {
            match self.try_make_resident_again() {
                Err(error) if error.may_pass() => {}
                done => return done,
            }
            thread::sleep(pause);
            pause *= 2;
        }
        self.try_make_resident_again()
    }

    /// Makes the model resident on the device that was lost, which is found by its name.
    fn try_make_resident_again(&self) -> Result<Engine, LoadError> {
        let instance = Instance::create()?;
        let devices = instance.devices()?;
        let is_it = |found: &&DeviceFacts| {
            (&found.name, found.vendor_id, found.device_id)
                == (&self.facts.name, self.facts.vendor_id, self.facts.device_id)
        };
        // Among several alike, the one with the same UUID, or else at the same position.
        let mut alike: Vec<&DeviceFacts> = devices.iter().filter(is_it).collect();
        alike.sort_by_key(|found| (found.uuid != self.facts.uuid, found.index != self.facts.index));
        let facts = *alike.first().ok_or_else(|| LoadError::NoDevice {
            wanted: format!("{}, which was lost", self.facts.name),
            found: devices.iter().map(DeviceFacts::to_string).collect(),
        })?;
        let (decided, progress) = (&self.decided, &mut |_, _| ControlFlow::Continue(()));
        let device = Device::open(instance, facts, decided.options.robust_buffer_access)?;
        let Resident { engine, report, .. } =
            make_resident(&self.artifact, decided, device, self.begun, false, progress)?;
        self.streaming.replace(report.upload.expect("this load was not lazy"));
        Ok(engine)
    }
}

/// The engine's slot, locked. When it is unlocked and no step is in flight, other programs may write the artifact's file.
pub struct EngineGuard<'s> {
    slot: FairGuard<'s, EngineSlot>,
    artifact: &'s ArtifactFile,
}

impl Deref for EngineGuard<'_> {
    type Target = EngineSlot;

    fn deref(&self) -> &EngineSlot {
        &self.slot
    }
}

impl DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut EngineSlot {
        &mut self.slot
    }
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        if self.slot.engine.as_ref().is_none_or(|engine| engine.in_flight.is_none()) {
            self.artifact.end_reading();
        }
    }
}

impl EngineSlot {
    /// The engine if it is there.
    pub fn engine(&mut self) -> Option<&mut Engine> {
        self.engine.as_mut()
    }
}

/// Tokens that both begin with, but not the prompt's last one. Whole blocks are compared first: a prompt is compared with all sequences, and many
/// begin as it does.
fn common_start(cached: &[u32], prompt: &[u32]) -> u32 {
    const BLOCK: usize = 64;
    let blocks = cached.chunks_exact(BLOCK).zip(prompt.chunks_exact(BLOCK));
    let in_blocks = BLOCK * blocks.take_while(|(a, b)| a == b).count();
    let behind = cached[in_blocks..].iter().zip(&prompt[in_blocks..]);
    let common = in_blocks + behind.take_while(|(a, b)| a == b).count();
    common.min(prompt.len().saturating_sub(1)) as u32
}

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
        let long: Vec<u32> = (0..200).collect();
        for len in [0, 1, 63, 64, 65, 128, 199] {
            let mut other = long.clone();
            other[len] = 1000;
            assert_eq!(common_start(&other, &long), len as u32);
            assert_eq!(common_start(&long[..len], &long), len as u32);
        }
    }
}
