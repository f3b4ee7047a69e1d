//! Threads: one a core, or as many as the system gives. A limit on processes (`ulimit -u`) or on address space (`ulimit -v`)
//! leaves fewer, and while one thread can do the work that is no reason to stop.

use std::env;
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread::{self, Scope, ScopedJoinHandle};

use rayon_core::{ThreadBuilder, ThreadPoolBuilder};

/// Cores that this process may use.
pub fn count() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Starts `work` on `count` further threads of `scope`, or on as many of them as there can be. Whoever calls has to be able
/// to do without.
pub fn start<'scope, T, F>(scope: &'scope Scope<'scope, '_>, count: usize, work: F) -> Vec<ScopedJoinHandle<'scope, T>>
where
    T: Send + 'scope,
    F: FnOnce() -> T + Clone + Send + 'scope,
{
    (0..count).map_while(|_| thread::Builder::new().spawn_scoped(scope, work.clone()).ok()).collect()
}

/// Threads of the pool that rayon works on, which the first call starts; 0: there can be none, and rayon must not be called.
pub fn pool_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(start_pool)
}

/// Sees to it that rayon has a pool. Where the system gives no thread this one does all the work, so that no other may call
/// rayon.
///
/// # Panics
/// If this thread works for another pool.
pub fn start_pool_here() {
    if pool_threads() == 0 {
        let alone = ThreadPoolBuilder::new().num_threads(1).use_current_thread();
        alone.build_global().expect("a program starts its pool once");
    }
}

/// rayon panics when it can start fewer threads than it wants. It is told to want those that are there, waiting for it.
fn start_pool() -> usize {
    let mut waiting: Vec<mpsc::Sender<ThreadBuilder>> =
        (0..wanted_threads()).map_while(|_| waiting_thread().ok()).collect();
    let threads = waiting.len();
    if threads == 0 {
        return 0;
    }
    let hand_over = |worker: ThreadBuilder| {
        let thread = waiting.pop().expect("there is one for each");
        thread.send(worker).map_err(|_| io::ErrorKind::BrokenPipe.into())
    };
    // Whoever uses us as a library may have started the pool before.
    let _ = ThreadPoolBuilder::new().num_threads(threads).spawn_handler(hand_over).build_global();
    rayon_core::current_num_threads()
}

/// A thread that becomes the worker which it is sent; it ends when it is sent none.
fn waiting_thread() -> io::Result<mpsc::Sender<ThreadBuilder>> {
    let (sender, receiver) = mpsc::channel::<ThreadBuilder>();
    let work = move || receiver.recv().map_or((), ThreadBuilder::run);
    thread::Builder::new().spawn(work).map(|_| sender)
}

/// As many as rayon would start by itself.
fn wanted_threads() -> usize {
    let asked = env::var("RAYON_NUM_THREADS").ok().and_then(|count| count.parse().ok());
    asked.filter(|&count| count > 0).unwrap_or_else(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_cannot_be_had_are_done_without() {
        let started = thread::scope(|scope| start(scope, 3, || 7).into_iter().map(|one| one.join().unwrap()).sum());
        assert_eq!(21, started);
        thread::scope(|scope| assert!(start(scope, 0, || ()).is_empty()));
    }

    #[test]
    fn the_pool_is_there_when_it_has_threads() {
        let threads = pool_threads();
        assert!(threads > 0 && threads == rayon_core::current_num_threads());
        assert_eq!(rayon_core::join(|| 1, || 2), (1, 2));
        start_pool_here();
    }
}
