//! This process's threads and heap. A limit on processes (`ulimit -u`) or on address space (`ulimit -v`) may allow fewer threads
//! than cores; one thread is enough for the work.

use std::env;
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;

use rayon_core::{ThreadBuilder, ThreadPoolBuilder};
use unicorn_runtime::machine::address_space_bytes;
use unicorn_terminal::restart_with_variable;

/// Under a limit on address space, starts this program again in the same process, with one heap for all of its threads: glibc reserves 64 MiB
/// of address space for each heap. Returns if there is no limit, or if the program cannot be started again.
pub fn keep_to_one_heap() {
    if address_space_bytes().is_some() {
        restart_with_variable("MALLOC_ARENA_MAX", "1");
    }
}

/// Threads of the pool that rayon works on, which the first call starts; 0: there can be none, and rayon must not be called.
fn pool_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(start_pool)
}

/// Ensures that rayon has a pool. If the system starts no thread, this thread does all the work, and no other thread may call
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

/// rayon panics when it can start fewer threads than it requests. Its number is set to the threads that were started before.
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
    // The pool may have been started before.
    let _ = ThreadPoolBuilder::new().num_threads(threads).spawn_handler(hand_over).build_global();
    rayon_core::current_num_threads()
}

/// A thread that runs the rayon worker that it receives, and ends if it receives none.
fn waiting_thread() -> io::Result<mpsc::Sender<ThreadBuilder>> {
    let (sender, receiver) = mpsc::channel::<ThreadBuilder>();
    let work = move || receiver.recv().map_or((), ThreadBuilder::run);
    thread::Builder::new().spawn(work).map(|_| sender)
}

/// Number of threads that rayon would start by default.
fn wanted_threads() -> usize {
    let requested = env::var("RAYON_NUM_THREADS").ok().and_then(|count| count.parse().ok());
    requested.filter(|&count| count > 0).unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_there_when_it_has_threads() {
        let threads = pool_threads();
        assert!(threads > 0 && threads == rayon_core::current_num_threads());
        assert_eq!(rayon_core::join(|| 1, || 2), (1, 2));
        start_pool_here();
    }
}
