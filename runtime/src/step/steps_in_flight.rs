//! Steps that run ahead of the host: submitted for one stream of tokens, and not read yet.
//!
//! ```text
//! submitted, at most two        ended            taken
//! [steps 5 to 8] [9 to 12]  ──► step 4, step 3 ──► the stream's next token
//!                            read by the stream, or by the next user of the device
//! ```
//!
//! The device keeps the samples of the last few steps only, and other steps overwrite them. Before the device is used for
//! another sequence, the steps in flight are awaited and their samples stored here, from where their stream takes them
//! without the device.
//!
//! Where the host computes masks of the tokens that may follow, the step behind is submitted without its sampler:
//!
//! ```text
//! device   │ step 0 │ sampler 0 │ step 1 …      │ sampler 1 │ step 2 …
//! host                submits both   reads 0, computes the masks of 1, submits both
//! ```
//!
//! If the device is used for another sequence meanwhile, such a step has no masks: its logits are read, and the host samples.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::step::sampling::Sampled;

/// The steps in flight of one stream, which the stream and the engine share. A leaf lock, held for a few instructions or, by the
/// owner of the engine, while its steps end.
#[derive(Clone, Default)]
pub struct SharedStepsInFlight(Arc<Mutex<StepsInFlight>>);

/// Steps of the same sequences, one behind the other.
#[derive(Default)]
pub struct StepsInFlight {
    /// Oldest first.
    submitted: VecDeque<SubmittedSteps>,
    /// Oldest first.
    ended: VecDeque<EndedStep>,
    /// Generation of the engine that they ran on.
    generation: u64,
    /// One a row: the number of its oldest sample in `submitted`.
    sample_numbers: Vec<u32>,
    /// Rows whose tokens are sampled among those of masks, in order.
    masked_rows: Vec<usize>,
    /// Seconds that the device spent in submissions that ended and were not counted yet.
    gpu_seconds: f64,
    /// Mean seconds of a step in the submission that ended last; `None`: none ended, or the device measures no time.
    step_seconds: Option<f64>,
}

/// Consecutive steps of one program, in one step slot of the queue.
#[derive(Clone, Copy)]
pub struct SubmittedSteps {
    pub program: usize,
    pub step_slot: usize,
    pub n_steps: u32,
    /// Its sampler is not submitted yet: the masks depend on the token before, which the host has not read.
    pub awaits_masks: bool,
}

/// A step whose results were read.
pub struct EndedStep {
    pub program: usize,
    pub samples: Samples,
}

/// What was read of a step.
pub enum Samples {
    /// One a row.
    Sampled(Vec<Sampled>),
    /// Logits of all rows, one behind the other: its masks did not come in time.
    Logits(Vec<f32>),
}

impl SharedStepsInFlight {
    /// The owner of the engine locks this while steps end, so that only the owner calls it without a wait.
    pub fn lock(&self) -> MutexGuard<'_, StepsInFlight> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether both belong to the same stream.
    pub fn is(&self, other: &SharedStepsInFlight) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the stream was dropped, so that the samples are not read.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl StepsInFlight {
    /// Nothing is in flight or kept: the next steps run on the engine of that generation, their samples have these numbers, and these rows have
    /// masks.
    pub fn restart(&mut self, generation: u64, sample_numbers: impl Iterator<Item = u32>, masked_rows: &[usize]) {
        self.submitted.clear();
        self.ended.clear();
        self.generation = generation;
        self.sample_numbers.clear();
        self.sample_numbers.extend(sample_numbers);
        self.masked_rows.clear();
        self.masked_rows.extend_from_slice(masked_rows);
        self.step_seconds = None;
    }

    /// The oldest step that ended, if the sequences' cache is still that of its engine. Otherwise it is dropped: recovery
    /// computes a cache without its rows, and the step runs again.
    pub fn take(&mut self, generation: u64) -> Option<EndedStep> {
        if self.generation != generation {
            self.ended.clear();
        }
        self.ended.pop_front()
    }

    /// Whether a step that ended on the engine of that generation was not taken yet.
    pub fn has_ended(&self, generation: u64) -> bool {
        self.generation == generation && !self.ended.is_empty()
    }

    /// The oldest steps in flight.
    pub fn first(&self) -> Option<SubmittedSteps> {
        self.submitted.front().copied()
    }

    /// Whether the steps have masks for these rows and no others, as their samplers were told.
    pub fn has_masks_for(&self, rows: &[usize]) -> bool {
        self.masked_rows == rows
    }

    /// The sampler of the oldest steps in flight was submitted.
    pub fn set_sampled(&mut self) {
        self.submitted.iter_mut().take(1).for_each(|first| first.awaits_masks = false);
    }

    /// Steps in flight, and those that ended and were not taken.
    pub fn n_steps(&self) -> u32 {
        self.submitted.iter().map(|steps| steps.n_steps).sum::<u32>() + self.ended.len() as u32
    }

    pub fn push(&mut self, steps: SubmittedSteps) {
        self.submitted.push_back(steps);
    }

    pub fn step_seconds(&self) -> Option<f64> {
        self.step_seconds
    }

    /// Seconds of submissions that ended since the last call.
    pub fn take_gpu_seconds(&mut self) -> f64 {
        std::mem::take(&mut self.gpu_seconds)
    }

    /// The oldest steps in flight, which are about to be awaited.
    pub fn pop(&mut self) -> Option<SubmittedSteps> {
        self.submitted.pop_front()
    }

    /// Counts the time that the device spent in a submission of `n_steps` steps; `None`: it measures no time.
    pub fn add_gpu_seconds(&mut self, gpu_seconds: Option<f64>, n_steps: u32) {
        self.gpu_seconds += gpu_seconds.unwrap_or_default();
        self.step_seconds = gpu_seconds.map(|seconds| seconds / f64::from(n_steps));
    }

    /// Keeps the samples of a step of `program` that ended: `read` is called with each row and the number of its sample.
    ///
    /// # Errors
    /// The first error of `read`; nothing is kept then.
    pub fn keep<E>(&mut self, program: usize, read: impl Fn(usize, u32) -> Result<Sampled, E>) -> Result<(), E> {
        let numbers = self.sample_numbers.iter().enumerate();
        let sampled = numbers.map(|(row, &number)| read(row, number)).collect::<Result<_, _>>()?;
        self.push_ended(program, Samples::Sampled(sampled));
        Ok(())
    }

    /// Keeps the logits of a step of `program` that ended without masks: `read` appends those of that many rows.
    ///
    /// # Errors
    /// That of `read`; nothing is kept then.
    pub fn keep_logits<E>(
        &mut self,
        program: usize,
        read: impl FnOnce(usize, &mut Vec<f32>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut logits = Vec::new();
        read(self.sample_numbers.len(), &mut logits)?;
        self.push_ended(program, Samples::Logits(logits));
        Ok(())
    }

    fn push_ended(&mut self, program: usize, samples: Samples) {
        self.sample_numbers.iter_mut().for_each(|number| *number = number.wrapping_add(1));
        self.ended.push_back(EndedStep { program, samples });
    }
}
