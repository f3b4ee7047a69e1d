//! The progress of a push or a pull, for its caller.

/// Progress of a transfer, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes of all layers of the artifact that are sent or fetched.
    pub total_bytes: u64,
    /// Bytes that are at their destination: sent, fetched, or present before.
    pub done_bytes: u64,
    /// Bytes that this call sent or received over the network, repeated ones included.
    pub moved_bytes: u64,
}

/// Called at each step of a transfer, on any thread.
pub type TransferProgress<'a> = &'a (dyn Fn(Transfer) + Send + Sync);

/// Progress that is not shown.
pub(crate) fn unreported(_transfer: Transfer) {}

/// Counts the bytes of a transfer.
pub(crate) struct Counter<'a> {
    state: std::sync::Mutex<Transfer>,
    report: TransferProgress<'a>,
}

impl<'a> Counter<'a> {
    pub fn new(total_bytes: u64, report: TransferProgress<'a>) -> Counter<'a> {
        let state = Transfer { total_bytes, ..Transfer::default() };
        report(state);
        Counter { state: state.into(), report }
    }

    /// Counts bytes that were present before.
    pub fn kept(&self, bytes: u64) {
        self.change(|state| state.done_bytes += bytes);
    }

    /// Counts bytes that were received or sent.
    pub fn moved(&self, bytes: u64) {
        self.change(|state| {
            (state.done_bytes, state.moved_bytes) = (state.done_bytes + bytes, state.moved_bytes + bytes)
        });
    }

    /// Takes back bytes that were received and are requested again.
    pub fn lost(&self, bytes: u64) {
        self.change(|state| state.done_bytes -= bytes);
    }

    pub fn transfer(&self) -> Transfer {
        *self.lock()
    }

    fn change(&self, change: impl FnOnce(&mut Transfer)) {
        let mut state = self.lock();
        change(&mut state);
        (self.report)(*state);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Transfer> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
