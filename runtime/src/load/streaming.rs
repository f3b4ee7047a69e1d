//! Weights that are still on their way while steps run (`--lazy`): a thread moves them along the route in which steps read
//! them, and a submission waits until what it reads is there.
//!
//! ```text
//! loader   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ check
//! step 1     [embed] [qkv] [out] [gate, up] … each when its pieces have arrived
//! step 2                                    [as always]
//! ```

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};

use unicorn_artifact::TargetKernels;

use crate::error::LoadError;
use crate::load::delivery::{Delivered, Delivery, Verify};
use crate::load::order::Route;
use crate::program::waiting::WaitingProgram;

/// A load under way. Dropped, it ends.
pub struct Loading {
    pub arrival: Arc<Arrival>,
    /// Pieces that each dispatch of each program waits for.
    pub needs: Vec<Vec<usize>>,
    /// One a program, to be run until everything is there.
    pub programs: Vec<WaitingProgram>,
    /// How to compare the weights, once the kernel for it is compiled.
    verify: mpsc::Sender<Verify>,
    loader: Option<JoinHandle<()>>,
}

/// How far the weights have come.
pub struct Arrival {
    inner: Mutex<Inner>,
    changed: Condvar,
    cancelled: AtomicBool,
}

struct Inner {
    /// One a piece of the route.
    arrived: Vec<bool>,
    /// So many from the front on are there.
    front: usize,
    outcome: Option<Outcome>,
    /// Nobody is loading any more.
    closed: bool,
}

/// How a load ended: everything is there and was checked, or not.
pub type Outcome = Result<Delivered, Arc<LoadError>>;

impl Loading {
    /// Begins to move weights.
    ///
    /// # Errors
    /// When the system has no thread for that.
    pub fn start(delivery: Delivery, target: &TargetKernels) -> Result<Loading, LoadError> {
        let arrival = Arc::new(Arrival::of(delivery.route.pieces().len()));
        let needs = needs(&delivery.route, target);
        let (verify, wanted) = mpsc::channel();
        let of_loader = Closing(arrival.clone());
        let load = move || of_loader.0.load(delivery, &wanted);
        let loader = thread::Builder::new().spawn(load).map_err(|source| LoadError::NoThread { source })?;
        Ok(Loading { arrival, needs, programs: Vec::new(), verify, loader: Some(loader) })
    }

    /// Says how the weights are to be compared, once they are there.
    pub fn verify(&self, how: Verify) {
        // A loader that has failed does not listen.
        let _ = self.verify.send(how);
    }
}

fn needs(route: &Route, target: &TargetKernels) -> Vec<Vec<usize>> {
    let programs = target.programs.iter();
    programs.map(|one| one.dispatches.iter().map(|dispatch| route.needed_by(dispatch)).collect()).collect()
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.arrival.cancelled.store(true, Ordering::Release);
        // It may be waiting to be told how to verify.
        self.verify = mpsc::channel().0;
        if let Some(loader) = self.loader.take() {
            // A panic was printed by the thread that had it.
            let _ = loader.join();
        }
    }
}

impl Arrival {
    fn of(pieces: usize) -> Arrival {
        Arrival::new(Inner { arrived: vec![false; pieces], front: 0, outcome: None, closed: false })
    }

    /// Of weights that are there.
    pub fn over(delivered: Delivered) -> Arrival {
        Arrival::new(Inner { arrived: Vec::new(), front: 0, outcome: Some(Ok(delivered)), closed: true })
    }

    fn new(inner: Inner) -> Arrival {
        Arrival { inner: Mutex::new(inner), changed: Condvar::new(), cancelled: AtomicBool::new(false) }
    }

    /// Waits until so many pieces from the front on are there.
    ///
    /// # Errors
    /// When loading has failed: they may never come, or are not to be trusted.
    pub fn wait_for(&self, pieces: usize) -> Result<(), Arc<LoadError>> {
        let inner = self.wait_until(|inner| inner.front >= pieces);
        match &inner.outcome {
            Some(Err(error)) => Err(error.clone()),
            _ => {
                assert!(inner.front >= pieces, "the thread that loads has ended early");
                Ok(())
            }
        }
    }

    /// Whether every piece is there.
    ///
    /// # Errors
    /// When loading has failed.
    pub fn is_complete(&self) -> Result<bool, Arc<LoadError>> {
        let inner = self.inner();
        match &inner.outcome {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(inner.front == inner.arrived.len()),
        }
    }

    /// `None`: under way, or broken off.
    pub fn outcome(&self) -> Option<Outcome> {
        self.inner().outcome.clone()
    }

    /// Waits until loading has ended. `None`: it was broken off.
    pub fn wait(&self) -> Option<Outcome> {
        self.wait_until(|_| false).outcome.clone()
    }

    /// What was broken off was begun anew, and ended so.
    pub fn replace(&self, delivered: Delivered) {
        self.inner().outcome = Some(Ok(delivered));
    }

    /// Returns when `enough`, or nothing more is to come.
    fn wait_until(&self, enough: impl Fn(&Inner) -> bool) -> MutexGuard<'_, Inner> {
        let under_way = |inner: &mut Inner| !inner.closed && inner.outcome.is_none() && !enough(inner);
        self.changed.wait_while(self.inner(), under_way).unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn load(&self, mut delivery: Delivery, verify: &mpsc::Receiver<Verify>) {
        let outcome = match delivery.fill(&mut |place| self.arrive(place)) {
            Ok(None) => return,
            Ok(Some(filled)) => match verify.recv() {
                Ok(how) => delivery.check(filled, how),
                // Whoever began this has given up.
                Err(mpsc::RecvError) => return,
            },
            Err(error) => Err(error),
        };
        self.inner().outcome = Some(outcome.map_err(Arc::new));
        self.changed.notify_all();
    }

    fn arrive(&self, place: usize) -> ControlFlow<()> {
        let mut inner = self.inner();
        inner.arrived[place] = true;
        while inner.arrived.get(inner.front) == Some(&true) {
            inner.front += 1;
        }
        self.changed.notify_all();
        match self.cancelled.load(Ordering::Acquire) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// However the thread that loads ends, nobody waits for it any longer.
struct Closing(Arc<Arrival>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.inner().closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pieces_without_a_gap_before_them_count() {
        let arrival = Arrival::of(3);
        assert!(arrival.arrive(2).is_continue() && arrival.arrive(0).is_continue());
        assert!(arrival.wait_for(1).is_ok() && !arrival.is_complete().unwrap());
        thread::scope(|scope| {
            let waits = scope.spawn(|| arrival.wait_for(2));
            assert!(arrival.arrive(1).is_continue());
            assert!(waits.join().unwrap().is_ok());
        });
        assert!(arrival.is_complete().unwrap());
        arrival.cancelled.store(true, Ordering::Release);
        assert!(arrival.arrive(0).is_break());
    }

    #[test]
    fn a_failed_load_is_told_to_everyone_who_waits() {
        let arrival = Arc::new(Arrival::of(2));
        thread::scope(|scope| {
            let waits = [1, 2].map(|pieces| {
                scope.spawn({
                    let arrival = &arrival;
                    move || arrival.wait_for(pieces)
                })
            });
            let closing = Closing(arrival.clone());
            arrival.inner().outcome = Some(Err(Arc::new(LoadError::NoDriver)));
            drop(closing);
            waits.into_iter().for_each(|wait| assert!(wait.join().unwrap().is_err()));
        });
        assert!(arrival.is_complete().is_err() && matches!(arrival.wait(), Some(Err(_))));
    }

    #[test]
    fn a_load_that_was_broken_off_has_no_outcome() {
        let arrival = Arc::new(Arrival::of(1));
        drop(Closing(arrival.clone()));
        assert!(arrival.wait().is_none());
    }
}
