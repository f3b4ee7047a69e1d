//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::combine::MASKED;
use crate::kernel::Kernel;
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations, rows_of_step};
use crate::template::{Values, render};

/// Parameters of one attention over all rows of an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImageAttentionSpec {
    /// Heads of queries, of keys and of values.
    pub n_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements between rows of queries, keys and values.
    pub input_strides: [usize; 3],
    /// Column of the first head of queries, keys and values.
    pub input_firsts: [usize; 3],
    /// Elements between rows of the output.
    pub output_stride: usize,
    /// Factor of the product of query and key.
    pub scale: Number,
    /// Patches for each row of the step.
    pub rows_per_token: usize,
}

/// Queries of a workgroup, one a lane: a lane's query and sums stay in its registers.
const WORKGROUP: usize = 64;
/// Patches whose keys and values are in workgroup memory at a time.
const TILE: usize = 16;
/// Patches between which the largest score is looked for.
const BLOCK: usize = 8;

impl Kernel for ImageAttentionSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::Input, Role::Second, Role::Third, Role::Output])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows.div_ceil(WORKGROUP), self.n_heads, 1]
    }

    fn wgsl(&self) -> String {
        let names = ["QUERY", "KEY", "VALUE"];
        let mut values = Values::default();
        for (index, name) in names.into_iter().enumerate() {
            values = values
                .size(format!("{name}_STRIDE"), self.input_strides[index])
                .size(format!("{name}_FIRST"), self.input_firsts[index]);
        }
        let values = values
            .size("HEAD_DIM", self.head_dim)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", WORKGROUP)
            .size("TILE", TILE)
            .size("QUADS", self.head_dim.div_ceil(4))
            .count("BLOCK", BLOCK)
            .number("SCALE", self.scale.get())
            .number("MASKED", MASKED)
            .text("ROWS", rows_of_step(self.rows_per_token))
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
