//! A last message when a driver crashes this process: some crash when an allocation fails (LLVM in llvmpipe). The process cannot
//! continue, but its last line can name the reason.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Installs handlers for SIGSEGV, SIGBUS and SIGABRT that write `line` to stderr and end the process with status 1. They replace
/// earlier handlers of the process. Only the first call has an effect; callable from any thread.
///
/// For binaries, not for libraries: it changes the process's signal handlers.
pub fn exit_on_crash(line: String) {
    if CRASH.set(line).is_ok() {
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT].into_iter().for_each(install);
    }
}

static CRASH: OnceLock<String> = OnceLock::new();
static IS_ENDING: AtomicBool = AtomicBool::new(false);

fn install(signal: c_int) {
    // SAFETY: all zeros is a sigaction without flags and with an empty mask; the handler has the signature that one without
    // SA_SIGINFO is called by, does only what a signal handler may, and never returns to what crashed.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_crash as extern "C" fn(c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK;
        // Fails only for an invalid signal number.
        libc::sigaction(signal, &action, ptr::null_mut());
    }
}

extern "C" fn on_crash(_signal: c_int) {
    // One message: other threads that crash wait for the exit.
    while IS_ENDING.swap(true, Ordering::Relaxed) {
        // SAFETY: no arguments; async-signal-safe.
        unsafe { libc::pause() };
    }
    let line = CRASH.get().map_or("", String::as_str);
    // SAFETY: a line is set before its handler is installed and never changes; both calls are async-signal-safe.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        libc::_exit(1);
    }
}
