//! Recovery from a lost device: the model is made resident again, sequences are computed again from their journals, and the
//! work continues with the same result. Only a submission that neither ends nor fails keeps the memory of its device: then there
//! may be no memory for the model a second time, which is an error. A dispatch that gave up waiting for the one before it
//! (`kernels/src/counter_sync.rs`) counts as a lost device, and from then on dispatches have barriers; also when a device is lost twice
//! without a token between: a driver that resets a GPU may not wait until a dispatch has given up. An NPU that fails counts as a lost device
//! where it is optional, and from then on the GPU does its work.
//!
//! ```text
//! persist ─► engine there? ─ no ─► Shared::ready ──► engine, of a new generation
//!    ▲           │ yes
//!    │       sequences of this generation? ─ no ─► the next step of a journal runs again ─► unlock, from the top
//!    │           │ yes
//!    └─ failed ─ work ─► done
//! ```

use crate::error::RunError;
use crate::session::model_state::Shared;
use crate::session::sequence::Sequence;
use crate::step::engine::Engine;
use crate::step::steps_in_flight::SharedStepsInFlight;
use crate::step::stop::Stop;

/// Failures in a row, without a token between them, after which the caller gets the error.
const MAX_FAILURES_IN_A_ROW: u32 = 3;

/// Runs one step, `work`, on an engine whose cache holds what the sequences were fed; again if the device fails. The engine is
/// locked for that step, or for one that computes a cache again, and not from one to the next. When `work` begins, only the steps of
/// `mine` are in flight. If it fails, each sequence has at least the tokens that it had before.
///
/// # Errors
/// Errors of `work` that another attempt would not change, or that the device cannot be made ready again. The next call retries.
pub fn persist<T>(
    shared: &Shared,
    sequences: &mut [&mut Sequence],
    mine: Option<&SharedStepsInFlight>,
    mut work: impl FnMut(&mut Engine, &mut [&mut Sequence]) -> Result<T, Stop>,
) -> Result<T, RunError> {
    let mut failures = 0;
    let mut reached = 0;
    loop {
        let mut slot = shared.lock_engine();
        let (generation, engine) = shared.ready(&mut slot)?;
        let mut attempt = || {
            engine.settle(mine)?;
            // Steps of this stream that ran ahead are yet to be taken.
            let runs_ahead = mine.is_some_and(|mine| engine.is_in_flight(mine) || mine.lock().has_ended(generation));
            for sequence in sequences.iter_mut() {
                if !runs_ahead {
                    sequence.leave_state_ahead(engine, generation)?;
                }
                if sequence.catch_up(engine, generation)? {
                    return Ok(None);
                }
            }
            work(engine, sequences).map(Some)
        };
        let stop = match attempt() {
            Ok(Some(done)) => return Ok(done),
            Ok(None) => continue,
            Err(stop) => stop,
        };
        let (cause, may_pass) = match &stop {
            Stop::Caller(_) => return Err(stop.into()),
            // Nothing is loaded again for a file that is damaged, or gone: every call fails the same way.
            Stop::Loading(source) if !source.may_pass() => return Err(stop.into()),
            Stop::Loading(source) => (source.to_string(), true),
            Stop::Device(failure) => (failure.to_string(), failure.may_pass()),
            Stop::Npu(error) if shared.is_npu_optional() => (error.to_string(), true),
            Stop::Npu(_) => return Err(stop.into()),
        };
        if matches!(stop, Stop::Npu(_)) {
            shared.do_without_npu();
        }
        shared.lose(&mut slot, cause);
        let progress = sequences.iter().map(|sequence| u64::from(sequence.len_tokens())).sum();
        failures = if progress > reached { 1 } else { failures + 1 };
        reached = progress;
        if failures >= MAX_FAILURES_IN_A_ROW || !may_pass {
            return Err(stop.into());
        }
        if matches!(stop, Stop::Device(failure) if failure.is_stall() || failures > 1) {
            shared.do_without_counters();
        }
    }
}
