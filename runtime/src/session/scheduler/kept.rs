//! What sessions without a request have computed goes to a store while no prompt waits. It comes back when a prompt begins with it.

use std::io;

use super::{Scheduler, TokenReceiver};
use crate::session::kv_store::KvStore;
use crate::session::session::{KeepError, Session};

impl<R: TokenReceiver> Scheduler<R> {
    /// From now on, what sequences have computed is written to `store` when their requests have ended, and prompts continue from what it
    /// holds. `None`, the default: nothing is written.
    pub fn set_kv_store(&mut self, store: Option<KvStore>) {
        self.kv_store = store;
    }

    /// Why nothing is written any more, once: the store's folder is full, or gone.
    pub fn take_kv_store_error(&mut self) -> Option<io::Error> {
        self.kv_store_error.take()
    }

    /// Whether a session without a request has something for the store, or the store has not finished.
    pub(super) fn has_to_keep(&self) -> bool {
        let worth = |store: &KvStore| store.has_to_finish() || self.idle.iter().any(Session::is_worth_keeping);
        self.kv_store.as_ref().is_some_and(worth)
    }

    /// Begins to write what one session without a request has computed. Streams do not wait for the file before.
    pub(super) fn keep_next(&mut self) {
        let Some(store) = &mut self.kv_store else { return };
        if store.is_writing() && !self.machine.decoding.is_empty() {
            return;
        }
        let kept = match self.idle.iter_mut().rfind(|session| session.is_worth_keeping()) {
            Some(session) => session.keep(store),
            None => store.finish().map_err(KeepError::Store),
        };
        if let Err(KeepError::Store(error)) = kept {
            (self.kv_store, self.kv_store_error) = (None, Some(error));
        }
    }
}
