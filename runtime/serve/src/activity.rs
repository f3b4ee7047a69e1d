//! What a server is doing.

/// What a running server is doing, for its monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Requests that wait for a sequence to end.
    pub waiting: u32,
    /// Sequences whose prompt is not in the cache yet.
    pub in_prefill: u32,
    /// Sequences that get a token with each step.
    pub decoding: u32,
    /// Pages of the KV cache that the sequences hold that are generated.
    pub running_pages: u32,
    /// Times that a request was interrupted because pages ran out, since the server began.
    pub preemptions: u64,
    /// Tokens that were sampled since the monitor was last called.
    pub new_tokens: u32,
}
