//! Completion counters: of the workgroups that write the parts of one result, the last one finds the full count and combines the
//! parts, so that no workgroup waits (`wgsl/completion.wgsl`). They are 0 before and after each dispatch.

/// Number of counters for a dispatch: one for each result that is made in parts.
pub const COMPLETION_COUNTERS: usize = 4096;
