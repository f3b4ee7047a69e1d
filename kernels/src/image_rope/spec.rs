//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations, rows_of_step};
use crate::template::{Values, render};

/// Parameters of one rotation; the step has a row for each square of patches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImageRopeSpec {
    /// Heads, which are consecutive from the first column on.
    pub n_heads: usize,
    /// Elements of a head, a multiple of 4.
    pub head_dim: usize,
    /// Elements between rows of the input.
    pub input_stride: usize,
    /// Elements between rows of the output.
    pub output_stride: usize,
    /// Patches of a row of the step from left to right, and from top to bottom.
    pub side: usize,
}

const WORKGROUP: usize = 64;

impl Kernel for ImageRopeSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::Input, Role::RopeTable, Role::Output])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [(self.n_heads * self.head_dim / 2).div_ceil(WORKGROUP), rows, 1]
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("ALL_PAIRS", self.n_heads * self.head_dim / 2)
            .size("PAIRS", self.head_dim / 2)
            .size("FREQUENCIES", self.head_dim / 4)
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("SIDE", self.side)
            .size("WORKGROUP", WORKGROUP)
            .text("ROWS", rows_of_step(self.side * self.side))
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}

/// The table that the kernel reads, for patches at places below `places`.
pub fn image_rope_table(inv_freq: &[f64], places: usize) -> Vec<[f32; 2]> {
    let of_place = |place: usize| inv_freq.iter().map(move |frequency| place as f64 * frequency);
    let angles = (0..places).flat_map(of_place);
    angles.map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect()
}
