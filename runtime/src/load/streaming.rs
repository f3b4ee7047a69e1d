//! Loading while steps run ([`crate::LoadOptions::lazy`]): a thread loads the weights in the order in which steps read them, and
//! each submission of a step is delayed until the weights that it reads are resident.
//!
//! ```text
//! loader   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ check
//! step 1     [embed] [qkv] [out] [gate, up] … each when its chunks are resident
//! step 2                                    [one submission, as without streaming]
//! ```

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};

use unicorn_artifact::TargetKernels;

use crate::error::LoadError;
use crate::load::order::LoadOrder;
use crate::load::upload::{UploadReport, VerifyMethod, WeightUpload};
use crate::program::streamed::StreamedProgram;

/// A load in progress. Dropping it stops the load and joins its thread.
pub struct StreamingLoad {
    pub state: Arc<StreamingState>,
    /// For each program and dispatch, the number of chunks that it needs.
    pub chunks_needed: Vec<Vec<usize>>,
    /// One a program, run until all weights are resident.
    pub programs: Vec<StreamedProgram>,
    /// Sends how to verify the weights, once the kernel for it is compiled.
    verify: mpsc::Sender<VerifyMethod>,
    loader: Option<JoinHandle<()>>,
}

/// How much is loaded; any thread may wait on it.
pub struct StreamingState {
    inner: Mutex<Inner>,
    changed: Condvar,
    cancelled: AtomicBool,
}

struct Inner {
    /// Whether each chunk of the load order is resident.
    resident: Vec<bool>,
    /// Number of resident chunks before the first missing one.
    front: usize,
    outcome: Option<Outcome>,
    /// The loading thread has ended.
    closed: bool,
}

/// Result of a load: everything is resident and was checked, or an error.
pub type Outcome = Result<UploadReport, Arc<LoadError>>;

impl StreamingLoad {
    /// Starts loading on a new thread.
    ///
    /// # Errors
    /// [`LoadError::NoThread`] when the system starts no thread.
    pub fn start(upload: WeightUpload, target: &TargetKernels) -> Result<StreamingLoad, LoadError> {
        let state = Arc::new(StreamingState::new(upload.order.chunks().len()));
        let chunks_needed = chunks_needed(&upload.order, target);
        let (verify, method) = mpsc::channel();
        let guard = CloseOnDrop(state.clone());
        let load = move || guard.0.load(upload, &method);
        let loader = thread::Builder::new().spawn(load).map_err(|source| LoadError::NoThread { source })?;
        Ok(StreamingLoad { state, chunks_needed, programs: Vec::new(), verify, loader: Some(loader) })
    }

    /// Sets how the weights are verified once they are resident.
    pub fn verify(&self, method: VerifyMethod) {
        // After a failed load nothing receives it.
        let _ = self.verify.send(method);
    }
}

fn chunks_needed(order: &LoadOrder, target: &TargetKernels) -> Vec<Vec<usize>> {
    let programs = target.programs.iter();
    programs.map(|one| one.dispatches.iter().map(|dispatch| order.chunks_needed(dispatch)).collect()).collect()
}

impl Drop for StreamingLoad {
    fn drop(&mut self) {
        self.state.cancelled.store(true, Ordering::Release);
        // Dropping the sender ends a loader that waits for the verification method.
        self.verify = mpsc::channel().0;
        if let Some(loader) = self.loader.take() {
            // The thread has printed its panic, if any.
            let _ = loader.join();
        }
    }
}

impl StreamingState {
    fn new(chunks: usize) -> StreamingState {
        StreamingState::with(Inner { resident: vec![false; chunks], front: 0, outcome: None, closed: false })
    }

    /// The state of a load that is complete.
    pub fn complete(report: UploadReport) -> StreamingState {
        StreamingState::with(Inner { resident: Vec::new(), front: 0, outcome: Some(Ok(report)), closed: true })
    }

    fn with(inner: Inner) -> StreamingState {
        StreamingState { inner: Mutex::new(inner), changed: Condvar::new(), cancelled: AtomicBool::new(false) }
    }

    /// Blocks until the first `chunks` chunks of the load order are resident.
    ///
    /// # Errors
    /// When loading has failed.
    pub fn wait_for(&self, chunks: usize) -> Result<(), Arc<LoadError>> {
        let inner = self.wait_until(|inner| inner.front >= chunks);
        match &inner.outcome {
            Some(Err(error)) => Err(error.clone()),
            _ => {
                assert!(inner.front >= chunks, "the thread that loads has ended early");
                Ok(())
            }
        }
    }

    /// Whether every chunk is resident.
    ///
    /// # Errors
    /// When loading has failed.
    pub fn is_complete(&self) -> Result<bool, Arc<LoadError>> {
        let inner = self.inner();
        match &inner.outcome {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(inner.front == inner.resident.len()),
        }
    }

    /// The result; `None`: loading is in progress, or was cancelled.
    pub fn outcome(&self) -> Option<Outcome> {
        self.inner().outcome.clone()
    }

    /// Blocks until loading has ended. `None`: it was cancelled.
    pub fn wait(&self) -> Option<Outcome> {
        self.wait_until(|_| false).outcome.clone()
    }

    /// Sets the result of a second load, after the first was cancelled with a lost device.
    pub fn replace(&self, report: UploadReport) {
        self.inner().outcome = Some(Ok(report));
    }

    /// Blocks until `condition` holds or loading has ended.
    fn wait_until(&self, condition: impl Fn(&Inner) -> bool) -> MutexGuard<'_, Inner> {
        let is_pending = |inner: &mut Inner| !inner.closed && inner.outcome.is_none() && !condition(inner);
        self.changed.wait_while(self.inner(), is_pending).unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn load(&self, mut upload: WeightUpload, method: &mpsc::Receiver<VerifyMethod>) {
        let outcome = match upload.fill(&mut |position| self.set_resident(position)) {
            Ok(None) => return,
            Ok(Some(times)) => match method.recv() {
                Ok(method) => upload.check(times, method),
                // The load was dropped.
                Err(mpsc::RecvError) => return,
            },
            Err(error) => Err(error),
        };
        self.inner().outcome = Some(outcome.map_err(Arc::new));
        self.changed.notify_all();
    }

    fn set_resident(&self, position: usize) -> ControlFlow<()> {
        let mut inner = self.inner();
        inner.resident[position] = true;
        while inner.resident.get(inner.front) == Some(&true) {
            inner.front += 1;
        }
        self.changed.notify_all();
        match self.cancelled.load(Ordering::Acquire) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Wakes all waiting threads when the loading thread ends, also by a panic.
struct CloseOnDrop(Arc<StreamingState>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.inner().closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chunks_without_a_gap_before_them_count() {
        let state = StreamingState::new(3);
        assert!(state.set_resident(2).is_continue() && state.set_resident(0).is_continue());
        assert!(state.wait_for(1).is_ok() && !state.is_complete().unwrap());
        thread::scope(|scope| {
            let waits = scope.spawn(|| state.wait_for(2));
            assert!(state.set_resident(1).is_continue());
            assert!(waits.join().unwrap().is_ok());
        });
        assert!(state.is_complete().unwrap());
        state.cancelled.store(true, Ordering::Release);
        assert!(state.set_resident(0).is_break());
    }

    #[test]
    fn a_failed_load_is_an_error_for_every_waiting_thread() {
        let state = Arc::new(StreamingState::new(2));
        thread::scope(|scope| {
            let waits = [1, 2].map(|chunks| {
                scope.spawn({
                    let state = &state;
                    move || state.wait_for(chunks)
                })
            });
            let guard = CloseOnDrop(state.clone());
            state.inner().outcome = Some(Err(Arc::new(LoadError::NoDriver)));
            drop(guard);
            waits.into_iter().for_each(|wait| assert!(wait.join().unwrap().is_err()));
        });
        assert!(state.is_complete().is_err() && matches!(state.wait(), Some(Err(_))));
    }

    #[test]
    fn a_cancelled_load_has_no_outcome() {
        let state = Arc::new(StreamingState::new(1));
        drop(CloseOnDrop(state.clone()));
        assert!(state.wait().is_none());
    }
}
