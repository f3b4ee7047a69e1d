//! An NPU for tests, as llvmpipe is a GPU for tests: a driver of [`unicorn_runtime::npu`] behind which the array is simulated.
//!
//! ```text
//! Driver's calls ─ driver ─► order, limits, alignment, caches        memory   buffers, each with the host's and the array's bytes
//!                    └ submit ─► packet ─ array ─► instruction stream as encoded ─► `unicorn_npu::interpret` ─► outputs
//! ```
//!
//! It executes the given bytes: the packet in the command's buffer, the instruction stream in the heap, activations and weights at
//! their addresses. No compiler here can make the cores' programs of a control image, which configures the array on silicon: the simulated
//! array is configured by the shape in the program's record. Not simulated: time, the firmware, rounding modes of the silicon.
//!
//! Only tests and builds with the feature `npu-simulator` of `unicorn-run` have it.

#![deny(missing_docs)]

mod array;
mod driver;
mod faults;
mod memory;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unicorn_runtime::npu::driver::Driver;

// The packages whose types are part of this one's public signatures, so that one dependency is enough.
pub use unicorn_artifact;
pub use unicorn_kernels;
pub use unicorn_npu;
pub use unicorn_runtime;

pub use array::Array;
pub use faults::Fault;
use faults::Faults;

/// A handle on simulated NPUs: makes them, makes their runs fail, and reports their runs.
#[derive(Clone, Debug, Default)]
pub struct Simulator {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    /// Runs of a program so far.
    runs: u64,
    /// Why runs ended in an error.
    errors: Vec<String>,
    /// Contexts of other processes.
    taken: usize,
    /// Commands run when they are waited for.
    runs_late: bool,
    /// As an older driver, which makes no buffers of others' memory.
    refuses_sharing: bool,
    events: Vec<Event>,
}

/// What happened to a command; commands are numbered from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was submitted.
    Submitted(u64),
    /// It has ended, and was waited for.
    Ended(u64),
}

impl Simulator {
    /// Another process's open node of the same NPU.
    pub fn open(&self) -> Box<dyn Driver> {
        Box::new(driver::Simulated::new(self.clone()))
    }

    /// Makes run `run` of a program, counted from 0, fail in this way.
    pub fn inject(&self, run: u64, fault: Fault) {
        self.state().faults.inject(run, fault);
    }

    /// Number of contexts that other processes have.
    pub fn take_contexts(&self, count: usize) {
        self.state().taken = count;
    }

    /// Runs commands as late as an NPU may, when they are waited for, and not as early, when they are submitted.
    pub fn run_late(&self) {
        self.state().runs_late = true;
    }

    /// Makes no buffers of memory that a GPU has, too, as drivers before Linux 6.18.
    pub fn refuse_sharing(&self) {
        self.state().refuses_sharing = true;
    }

    /// What happened to commands so far, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.state().events.clone()
    }

    /// Runs of programs so far.
    pub fn runs(&self) -> u64 {
        self.state().runs
    }

    /// Why runs ended in an error, oldest first.
    pub fn errors(&self) -> Vec<String> {
        self.state().errors.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
