//! Work on several threads: one a core, or as many as the system starts. A limit on processes (`ulimit -u`) or on address space
//! (`ulimit -v`) allows fewer; the calling thread alone is always enough.

use std::iter;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread::{self, Scope, ScopedJoinHandle};

/// Cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Starts `work` on up to `count` further threads of `scope`; on none if the system starts none.
pub fn start<'scope, T, F>(scope: &'scope Scope<'scope, '_>, count: usize, work: F) -> Vec<ScopedJoinHandle<'scope, T>>
where
    T: Send + 'scope,
    F: FnOnce() -> T + Clone + Send + 'scope,
{
    (0..count).map_while(|_| thread::Builder::new().spawn_scoped(scope, work.clone()).ok()).collect()
}

/// `work` of each index below `count` on all cores; results in order.
pub fn map<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work_until_done = || {
        let mut results = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return results;
            }
            results.push((index, work(index)));
        }
    };
    let mut results = thread::scope(|scope| {
        let others = start(scope, cores().min(count).saturating_sub(1), work_until_done);
        let mut results = work_until_done();
        for other in others {
            results.extend(other.join().expect("work does not panic"));
        }
        results
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Calls `work` for every item on up to `threads` threads, which take items in order. `done` runs on the calling thread for
/// each result, in the order in which they complete; returning `Break` leaves the items that were not begun.
///
/// # Errors
/// The first error of `work`. Items that were begun are completed.
pub fn for_each<I: Send, R: Send, E: Send>(
    threads: usize,
    items: impl Iterator<Item = I> + Send,
    work: impl Fn(I) -> Result<R, E> + Sync,
    done: &mut dyn FnMut(R) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, E> {
    let queue = Mutex::new(items);
    let next = || queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let (next, work) = (&next, &work);
        let threads = start(scope, threads, move || {
            // The receiver is dropped on an error or a break.
            while let Some(item) = next() {
                if sender.send(work(item)).is_err() {
                    return;
                }
            }
        });
        // Items are left only if no thread could be started.
        let left = iter::from_fn(|| next().map(work));
        let receive = || {
            for result in receiver.into_iter().chain(left) {
                if done(result?).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        let received = receive();
        // A scope waits for the closures alone, not for the ends of their threads.
        threads.into_iter().for_each(|thread| thread.join().expect("work does not panic"));
        received
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn started_threads_return_results_and_none_is_fine() {
        let sum: u32 = thread::scope(|scope| start(scope, 3, || 7).into_iter().map(|one| one.join().unwrap()).sum());
        assert_eq!(sum, 21);
        thread::scope(|scope| assert!(start(scope, 0, || ()).is_empty()));
    }

    #[test]
    fn mapped_results_keep_their_order() {
        assert_eq!(map(100, |index| index * index), (0..100).map(|index| index * index).collect::<Vec<_>>());
        assert!(map(0, |index| index).is_empty());
    }

    #[test]
    fn items_are_worked_on_until_an_error_or_a_break() {
        for threads in [0, 3] {
            let mut sum = 0;
            let work = |item: u32| if item < 1000 { Ok(item) } else { Err(item) };
            let mut add = |item: u32| {
                sum += item;
                if item == 500 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            assert_eq!(for_each(threads, 0..100, work, &mut add), Ok(ControlFlow::Continue(())));
            assert_eq!(for_each(threads, [500].into_iter(), work, &mut add), Ok(ControlFlow::Break(())));
            // On several threads, the error may come before the result of the item in front of it.
            assert_eq!(for_each(threads, [0, 1000].into_iter(), work, &mut add), Err(1000));
            assert_eq!(sum, 4950 + 500);
        }
    }
}
