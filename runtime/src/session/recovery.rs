//! A lost device is no end: the model is made resident again, sequences are computed again from their journals, and whoever
//! was waiting gets what they would have got. Only a submission that neither ends nor fails keeps the memory of its device:
//! then there may be no room for the model a second time, which is said. A dispatch that waited in vain for the one before it
//! (`kernels/src/chain.rs`) counts as a lost device, and from then on dispatches have barriers; also when a device is lost twice
//! without a token between: a driver that resets a GPU may not wait until a dispatch has given up.
//!
//! ```text
//! persist ─► engine there? ─ no ─► Model::revive ──► engine, of a new generation
//!    ▲           │ yes
//!    │       sessions of this generation? ─ no ─► each runs the steps of its journal again
//!    │           │ yes
//!    └─ failed ─ work ─► done
//! ```

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{LoadError, RunError};
use crate::model::Model;
use crate::session::session::Session;
use crate::step::engine::Engine;
use crate::vk::Failure;

/// What the sessions of a model share. They take turns.
pub struct Shared {
    /// `None`: it went with its device, and nobody has needed it since.
    engine: Option<Engine>,
    /// Grows whenever an engine is lost: what a session knows of the cache is true for one generation.
    generation: u64,
    pub free_slots: Vec<u32>,
    recoveries: Vec<Recovery>,
    /// What took the last engine.
    lost_to: String,
}

/// A device that was lost and had back.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// The Vulkan call or the wait that failed, and how.
    pub cause: String,
    /// Until the model was resident again.
    pub seconds: f64,
    /// Its dispatches have barriers since, also where they could wait for each other.
    pub barriers: bool,
}

/// Why work stopped.
pub enum Stop {
    /// The device failed; work may be tried again on another.
    Device(Failure),
    /// Weights that steps were to wait for do not come.
    Loading(Arc<LoadError>),
    /// Trying again would not help.
    Caller(RunError),
}

/// Failures in a row, without a token between them, after which a caller hears of it.
const MAX_FAILURES_IN_A_ROW: u32 = 3;
/// Pause before the second try in a row, doubled before the next: a driver that resets a GPU takes a while.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Runs `work` on a live engine whose cache holds what the sessions were fed; again if the device fails under it. `work`
/// leaves its sessions as it found them, or further, when it fails.
///
/// # Errors
/// What `work` says to its caller, or that the device cannot be had back. The next call tries again.
pub fn persist<T>(
    model: &Model,
    sessions: &mut [&mut Session],
    mut work: impl FnMut(&mut Engine, &mut [&mut Session]) -> Result<T, Stop>,
) -> Result<T, RunError> {
    let mut shared = model.shared();
    let mut failures = 0;
    let mut reached = 0;
    loop {
        let (generation, engine) = shared.ready(model)?;
        let mut attempt = || {
            sessions.iter_mut().try_for_each(|session| session.catch_up(engine, generation))?;
            work(engine, sessions)
        };
        let stop = match attempt() {
            Ok(done) => return Ok(done),
            Err(stop) => stop,
        };
        let (cause, may_pass) = match &stop {
            Stop::Caller(_) => return Err(stop.into()),
            // Nothing is made anew for a file that is damaged, or gone: whoever asks again hears the same.
            Stop::Loading(source) if !source.may_pass() => return Err(stop.into()),
            Stop::Loading(source) => (source.to_string(), true),
            Stop::Device(failure) => (failure.to_string(), failure.may_pass()),
        };
        shared.lose(cause);
        let progress = sessions.iter().map(|session| u64::from(session.len_tokens())).sum();
        failures = if progress > reached { 1 } else { failures + 1 };
        reached = progress;
        if failures >= MAX_FAILURES_IN_A_ROW || !may_pass {
            return Err(stop.into());
        }
        if matches!(stop, Stop::Device(failure) if failure.is_stall() || failures > 1) {
            model.do_without_chains();
        }
    }
}

impl Shared {
    pub fn new(engine: Engine, slots: u32) -> Shared {
        Shared {
            engine: Some(engine),
            generation: 0,
            free_slots: (0..slots).rev().collect(),
            recoveries: Vec::new(),
            lost_to: String::new(),
        }
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The engine if it is there, and of that generation.
    pub fn engine_of(&mut self, generation: u64) -> Option<&mut Engine> {
        self.engine.as_mut().filter(|_| generation == self.generation)
    }

    /// The engine, made anew if it was lost, and its generation.
    ///
    /// # Errors
    /// When the device cannot be had back.
    pub fn ready(&mut self, model: &Model) -> Result<(u64, &mut Engine), RunError> {
        if self.engine.is_none() {
            let begin = Instant::now();
            let cause = self.lost_to.clone();
            let revived = revive(model)
                .map_err(|error| RunError::NotRecovered { cause: cause.clone(), source: Box::new(error) })?;
            self.engine = Some(revived);
            let seconds = begin.elapsed().as_secs_f64();
            self.recoveries.push(Recovery { cause, seconds, barriers: model.has_barriers() });
        }
        Ok((self.generation, self.engine.as_mut().expect("it was just made")))
    }

    pub fn take_recoveries(&mut self) -> Vec<Recovery> {
        std::mem::take(&mut self.recoveries)
    }

    /// Drops the engine with all that is on its device, so that there is room for the next.
    fn lose(&mut self, cause: String) {
        self.engine = None;
        self.generation += 1;
        self.lost_to = cause;
    }
}

fn revive(model: &Model) -> Result<Engine, LoadError> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..MAX_FAILURES_IN_A_ROW {
        match model.revive() {
            Err(error) if error.may_pass() => {}
            done => return done,
        }
        thread::sleep(pause);
        pause *= 2;
    }
    model.revive()
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Device(failure)
    }
}

impl From<Arc<LoadError>> for Stop {
    fn from(error: Arc<LoadError>) -> Stop {
        Stop::Loading(error)
    }
}

impl From<Stop> for RunError {
    fn from(stop: Stop) -> RunError {
        match stop {
            Stop::Device(failure) => failure.into(),
            Stop::Loading(source) => RunError::Loading { source },
            Stop::Caller(error) => error,
        }
    }
}

impl From<RunError> for Stop {
    fn from(error: RunError) -> Stop {
        Stop::Caller(error)
    }
}
