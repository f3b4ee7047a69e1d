//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::recurrent_state::StateLayout;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one step from rows to those before them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PreviousRowSpec {
    /// Layout of the pages in which rows are kept, for its size alone: see [`PreviousRowSpec::fits`].
    pub state: StateLayout,
    /// Index of the KV group whose block table names the page.
    pub kv_group: usize,
    /// What becomes of a row.
    pub row_use: RowUse,
    /// Elements of a row.
    pub width: usize,
    /// Elements between rows of the input.
    pub input_stride: usize,
    /// Elements between rows of the output.
    pub output_stride: usize,
    /// Whether each row is the only one of its sequence; otherwise all rows are of one sequence.
    pub rows_are_alone: bool,
}

/// Which rows are read, and which is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowUse {
    /// Writes the row before each row, and keeps the last row of the sequence.
    Follow,
    /// Writes the kept row of the position before, or that of the draft before. Keeps nothing.
    Recall,
    /// Keeps the row of a draft. Writes nothing.
    KeepDraft,
}

const WORKGROUP: usize = 64;
/// Rows of a lane where all are of one sequence.
const ROWS: usize = 16;

impl PreviousRowSpec {
    /// Whether half a page of this layout has room for a row of `width` elements and its position.
    pub fn fits(state: &StateLayout, width: usize) -> bool {
        width < state.half_words()
    }

    fn rows_per_lane(&self) -> usize {
        if self.rows_are_alone { 1 } else { ROWS }
    }
}

impl Kernel for PreviousRowSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let mut list = match self.row_use {
            RowUse::Follow => bindings([Role::Step, Role::Input, Role::Output, Role::StateLow]),
            RowUse::Recall => bindings([Role::Step, Role::Output, Role::StateLow, Role::StateHigh]),
            RowUse::KeepDraft => bindings([Role::Step, Role::Input, Role::StateHigh]),
        };
        for binding in &mut list {
            let is_state = matches!(binding.role, Role::StateLow | Role::StateHigh);
            binding.writes &= !(is_state && self.row_use == RowUse::Recall);
        }
        list
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.width.div_ceil(WORKGROUP), rows.div_ceil(self.rows_per_lane()), 1]
    }

    fn wgsl(&self) -> String {
        assert!(PreviousRowSpec::fits(&self.state, self.width), "half a page has room for a row");
        assert!(self.row_use == RowUse::Follow || self.rows_are_alone, "a draft has one row");
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("ROWS", self.rows_per_lane())
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", WORKGROUP)
            .flag("ALONE", self.rows_are_alone)
            .flag("FOLLOW", self.row_use == RowUse::Follow)
            .flag("RECALL", self.row_use == RowUse::Recall)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &self.state.values(self.kv_group, values))
    }
}
