//! Counters by which a workgroup knows that it is the last of several to leave its part of a result: it puts the parts together, and nobody
//! waits (`wgsl/arrive.wgsl`). They are 0 before and after each dispatch.

/// How many there are for a dispatch: one for each result that is made in parts.
pub const COMPLETION_COUNTERS: usize = 4096;
