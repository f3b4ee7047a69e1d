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

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::step::engine::Engine;
use crate::step::sampling::Sampled;
use crate::vk::Failure;

/// The steps in flight of one stream, which the stream and the engine share. A leaf lock, held for a few instructions or, by who
/// has the engine, while its steps end.
#[derive(Clone, Default)]
pub struct SharedFlight(Arc<Mutex<Flight>>);

/// Steps of the same sequences, one behind the other.
#[derive(Default)]
pub struct Flight {
    /// Oldest first.
    submitted: VecDeque<SubmittedSteps>,
    /// Oldest first.
    ended: VecDeque<EndedStep>,
    /// The engine that they ran on.
    generation: u64,
    /// Of each row, the number of its oldest sample in `submitted`.
    sample_numbers: Vec<u32>,
    /// That the device spent in submissions that ended and were not taken into account yet.
    gpu_seconds: f64,
    /// Of a step of the submission that ended last; `None`: none did, or the device keeps no time.
    step_seconds: Option<f64>,
}

/// Consecutive steps of one program, in one turn of the lane.
#[derive(Clone, Copy)]
pub struct SubmittedSteps {
    pub program: usize,
    pub turn: usize,
    pub n_steps: u32,
}

/// A step whose samples were read.
pub struct EndedStep {
    pub program: usize,
    /// One a row.
    pub sampled: Vec<Sampled>,
}

impl SharedFlight {
    /// Whoever has the engine holds this while steps end, so that only who has the engine, too, calls it without a wait.
    pub fn lock(&self) -> MutexGuard<'_, Flight> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn is(&self, other: &SharedFlight) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the stream was dropped, so that nobody takes the samples.
    fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Flight {
    /// Nothing is in flight or kept: the next steps run on the engine of that generation, and their samples have these numbers.
    pub fn restart(&mut self, generation: u64, sample_numbers: impl Iterator<Item = u32>) {
        self.submitted.clear();
        self.ended.clear();
        self.generation = generation;
        self.sample_numbers.clear();
        self.sample_numbers.extend(sample_numbers);
        self.step_seconds = None;
    }

    /// The oldest step that ended, if the sequences' cache is still that of its engine. Otherwise it is forgotten: recovery
    /// makes a cache without its rows, and the step runs again.
    pub fn take(&mut self, generation: u64) -> Option<EndedStep> {
        if self.generation != generation {
            self.ended.clear();
        }
        self.ended.pop_front()
    }

    /// The oldest steps in flight.
    pub fn first(&self) -> Option<SubmittedSteps> {
        self.submitted.front().copied()
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
}

impl Engine {
    /// Waits for steps in flight unless they are `mine`, and keeps their samples for their stream. Afterwards the step buffer may
    /// be written.
    ///
    /// # Errors
    /// When one of them fails: nothing is in flight then.
    pub fn settle(&mut self, mine: Option<&SharedFlight>) -> Result<(), Failure> {
        let Some(flight) = self.in_flight.take_if(|flight| !mine.is_some_and(|mine| mine.is(flight))) else {
            return Ok(());
        };
        let is_abandoned = flight.is_abandoned();
        let mut flight = flight.lock();
        while !flight.submitted.is_empty() {
            self.end_first(&mut flight, is_abandoned)?;
        }
        Ok(())
    }

    /// Whether these steps are in flight, so that the next ones can be submitted behind them.
    pub fn is_in_flight(&self, flight: &SharedFlight) -> bool {
        self.in_flight.as_ref().is_some_and(|one| one.is(flight))
    }

    /// Waits for the oldest steps in flight and reads their samples, unless nobody takes them.
    ///
    /// # Errors
    /// When the device fails. The samples before stay.
    pub fn end_first(&mut self, flight: &mut Flight, is_abandoned: bool) -> Result<(), Failure> {
        let Some(SubmittedSteps { program, turn, n_steps }) = flight.submitted.pop_front() else { return Ok(()) };
        self.end(turn)?;
        let gpu_seconds = self.gpu_seconds(program, turn);
        flight.gpu_seconds += gpu_seconds.unwrap_or_default();
        flight.step_seconds = gpu_seconds.map(|seconds| seconds / f64::from(n_steps));
        if is_abandoned {
            return Ok(());
        }
        for _ in 0..n_steps {
            let numbers = flight.sample_numbers.iter().enumerate();
            let sampled = numbers.map(|(row, &number)| self.sampled(row, number)).collect::<Result<_, _>>()?;
            flight.sample_numbers.iter_mut().for_each(|number| *number = number.wrapping_add(1));
            flight.ended.push_back(EndedStep { program, sampled });
        }
        Ok(())
    }
}
