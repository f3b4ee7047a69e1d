//! A box of workgroups in a dispatch's grid.

/// Consecutive workgroups of one dispatch, recorded by one `vkCmdDispatchBase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkgroupRange {
    /// Index of the first workgroup on each axis.
    pub first: [u32; 3],
    /// Number of workgroups on each axis.
    pub workgroups: [u32; 3],
    /// Whether another range precedes it that a dispatch was split into, with no barrier between them.
    pub continues: bool,
}

impl WorkgroupRange {
    /// The whole grid.
    pub fn whole(grid: [u32; 3]) -> WorkgroupRange {
        WorkgroupRange { first: [0; 3], workgroups: grid, continues: false }
    }

    /// Number of workgroups in the range.
    pub fn count(&self) -> u64 {
        self.workgroups.iter().map(|&count| u64::from(count)).product()
    }
}
