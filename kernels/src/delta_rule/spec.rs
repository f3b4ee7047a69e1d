//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::counter_sync;
use crate::kernel::Kernel;
use crate::recurrent_state::StateLayout;
use crate::role::{BindingSpec, Role, bindings, declarations_with_sync};
use crate::template::{Values, render};

/// Parameters of one gated delta rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeltaRuleSpec {
    /// Value heads, the sizes of a head's state, and where it is kept. A key has a multiple of 4 elements.
    pub state: StateLayout,
    /// Heads of queries and keys: each is shared by the same number of consecutive value heads.
    pub key_heads: usize,
    /// Index of the KV group whose block table names the page.
    pub kv_group: usize,
    /// Elements between rows of the input, a multiple of 4.
    pub input_stride: usize,
    /// Elements between rows of decay and strength.
    pub gate_stride: usize,
    /// Columns of such a row before the decay of the first head.
    pub decay_first: usize,
    /// Columns before the strength of the first head.
    pub strength_first: usize,
    /// Elements between rows of the output.
    pub output_stride: usize,
    /// Whether each row is the only one of its sequence; otherwise all rows are of one sequence.
    pub rows_are_alone: bool,
    /// Synchronises with the dispatches before and after it by counters, not by barriers: see `counter_sync`. Not of `delta_chunks`.
    pub counter_sync: bool,
}

/// Columns of a head's state in one workgroup.
const COLUMNS: usize = 32;
/// Most lanes that share a column: with the columns, as many lanes as every device has.
const MAX_SLICES: usize = 4;

impl Kernel for DeltaRuleSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [
            Role::Step,
            Role::InputQuads,
            Role::Decay,
            Role::Strength,
            Role::Output,
            Role::DecayRate,
            Role::Bias,
            Role::StateLow,
            Role::StateHigh,
        ];
        bindings(roles.into_iter().chain(self.counter_sync.then_some(Role::SyncCounters)))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        let blocks = self.state.value_dim.div_ceil(COLUMNS);
        [self.state.heads * blocks, if self.rows_are_alone { rows } else { 1 }, 1]
    }

    fn wgsl(&self) -> String {
        let (quads, value_dim) = (self.state.key_dim / 4, self.state.value_dim);
        let slices = (1..=MAX_SLICES).rev().find(|slices| quads.is_multiple_of(*slices)).expect("one slice is whole");
        let values = counter_sync::values(self.counter_sync, self.values())
            .size("BLOCKS", value_dim.div_ceil(COLUMNS))
            .size("QUADS", quads / slices)
            .size("SLICES", slices)
            .size("COLUMNS", COLUMNS)
            .size("LANES", slices * COLUMNS)
            .flag("ALONE", self.rows_are_alone)
            .text("DECLARATIONS", declarations_with_sync(&self.bindings(), self.counter_sync, &[]));
        render(include_str!("kernel.wgsl"), &values)
    }

    fn counter_sync(&mut self) -> Option<&mut bool> {
        Some(&mut self.counter_sync)
    }
}

impl DeltaRuleSpec {
    /// Places of operands, and numbers of the formula.
    pub(crate) fn values(&self) -> Values {
        let StateLayout { heads, key_dim, value_dim, .. } = self.state;
        assert!(key_dim.is_multiple_of(4) && self.input_stride.is_multiple_of(4), "quads of keys are whole");
        let values = Values::default()
            .size("HEADS_OF_KEY", heads / self.key_heads)
            .size("KEYS_AT", self.key_heads * key_dim / 4)
            .size("VALUES_AT", 2 * self.key_heads * key_dim)
            .size("VALUE_DIM", value_dim)
            .size("HEAD_WORDS", self.state.head_words())
            .size("INPUT_STRIDE", self.input_stride)
            .size("GATE_STRIDE", self.gate_stride)
            .size("DECAY_FIRST", self.decay_first)
            .size("STRENGTH_FIRST", self.strength_first)
            .size("OUTPUT_STRIDE", self.output_stride)
            .number("SCALE", (key_dim as f32).sqrt().recip())
            .number("EPS", NORM_EPS);
        self.state.values(self.kv_group, values)
    }
}

/// Added to the sum of squares of a query or key.
pub(super) const NORM_EPS: f32 = 1e-6;
