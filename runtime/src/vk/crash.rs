//! A driver that dies in this process for want of memory: of some, a failed allocation is the end (LLVM's in llvmpipe). Nobody
//! can go on from there, but a person can be told why in a line.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// From now on a crash ends this process with status 1, after `line` on stderr. The first call counts.
pub fn end_with(line: String) {
    if LINE.set(line).is_err() {
        return;
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
        // SAFETY: all zeros is a sigaction without flags and with an empty mask; the handler has the signature that one
        // without SA_SIGINFO is called by, does only what a signal handler may, and never returns to what crashed.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_crash as extern "C" fn(c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_ONSTACK;
            // Only a signal that does not exist is refused.
            libc::sigaction(signal, &action, ptr::null_mut());
        }
    }
}

static LINE: OnceLock<String> = OnceLock::new();
static IS_ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn on_crash(_signal: c_int) {
    // One message: another thread that crashes meanwhile waits for the end.
    while IS_ENDING.swap(true, Ordering::Relaxed) {
        // SAFETY: takes nothing, and may be called in a signal handler.
        unsafe { libc::pause() };
    }
    let line = LINE.get().map_or("", String::as_str);
    // SAFETY: `line` is set before the handler is and never changes; both calls are safe in a signal handler.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        libc::_exit(1);
    }
}
