//! [`Watch`]: what a caller does between the submissions of a step that it waits for.

use crate::step::cancel::CancelToken;

/// Cancels a step between two of its submissions, and learns how far it is.
#[derive(Default)]
pub struct Watch<'w> {
    /// The step ends before its next submission once this is cancelled.
    pub cancel: Option<&'w CancelToken>,
    /// Is called with the number of submissions that have ended, and of all.
    pub on_ended: Option<&'w mut dyn FnMut(usize, usize)>,
}

impl<'w> Watch<'w> {
    /// Only cancels.
    pub fn of(cancel: Option<&'w CancelToken>) -> Watch<'w> {
        Watch { cancel, on_ended: None }
    }

    /// Whether anything is to be done between submissions: if not, all are made at once.
    pub fn is_needed(&self) -> bool {
        self.cancel.is_some() || self.on_ended.is_some()
    }

    /// Whether submission `next` of `all` is to be made. The one before it may still run, those before that have ended.
    pub fn goes_on(&mut self, next: usize, all: usize) -> bool {
        if let Some(on_ended) = &mut self.on_ended {
            on_ended(next.saturating_sub(1), all);
        }
        !self.cancel.is_some_and(CancelToken::is_cancelled)
    }
}
