//! A request to stop that any thread can make.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops the work of the sessions that it was given to: see [`crate::Session::set_cancel`]. Clones are the same token, and
/// every method may be called from any thread, also from a signal handler's.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Running work ends with [`crate::RunError::Cancelled`] before its next submission to the device. Returns at once.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Undoes [`CancelToken::cancel`]: sessions with this token work again. Returns whether it was cancelled.
    pub fn reset(&self) -> bool {
        self.cancelled.swap(false, Ordering::Relaxed)
    }

    /// Whether [`CancelToken::cancel`] was called since the token was made or reset.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
