//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::activation_format::{ACTIVATION_GROUP, ActivationFormat};
use crate::counter_sync;
use crate::kernel::Kernel;
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations_with_sync};
use crate::template::{Values, render};

/// Parameters of one gated norm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatedNormSpec {
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Words between rows of input and output.
    pub stride: usize,
    /// Elements between rows of the second input.
    pub gate_stride: usize,
    /// Columns of such a row before the first head.
    pub gate_first: usize,
    /// Epsilon of the RMS norm.
    pub eps: Number,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// What is done with the second input.
    pub form: GatedForm,
    /// `F32`, or `Quantized`, if a head is whole groups.
    pub output: ActivationFormat,
    /// Synchronises with the dispatches before and after it by counters, not by barriers: see `counter_sync`.
    pub counter_sync: bool,
}

/// What becomes of a normed head and a second input of the same width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GatedForm {
    /// The product with SiLU of the second.
    Silu,
    /// The sum of both.
    Sum,
}

impl GatedNormSpec {
    /// Whether a workgroup, which has a head, can store its result in this format.
    pub fn stores(head_dim: usize, format: ActivationFormat) -> bool {
        match format {
            ActivationFormat::F32 => true,
            ActivationFormat::Quantized(_) => head_dim.is_multiple_of(ACTIVATION_GROUP),
            // A factor is of all heads.
            ActivationFormat::RowScaled(_) | ActivationFormat::Halves(_) => false,
        }
    }

    fn quads(&self) -> usize {
        self.head_dim.div_ceil(4)
    }

    fn workgroup(&self) -> usize {
        self.quads().next_multiple_of(self.subgroup_size.max(32) as usize).min(128)
    }
}

impl Kernel for GatedNormSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let output = if self.output == ActivationFormat::F32 { Role::Output } else { Role::Encoded };
        let counters = self.counter_sync.then_some(Role::SyncCounters);
        bindings([Role::Step, Role::Input, Role::Second, output, Role::HeadNorm].into_iter().chain(counters))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.heads, rows, 1]
    }

    fn wgsl(&self) -> String {
        assert!(GatedNormSpec::stores(self.head_dim, self.output), "a head is whole groups of a row of integers");
        let values = counter_sync::values(self.counter_sync, Values::default());
        let values = Activation::values(Some(Activation::Silu), values)
            .size("HEAD_DIM", self.head_dim)
            .size("STRIDE", self.stride)
            .size("GATE_STRIDE", self.gate_stride)
            .size("GATE_FIRST", self.gate_first)
            .size("WORKGROUP", self.workgroup())
            .count("SLOTS", self.quads().div_ceil(self.workgroup()))
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("EPS", self.eps.get())
            .flag("SUM", self.form == GatedForm::Sum)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("DECLARATIONS", declarations_with_sync(&self.bindings(), self.counter_sync, &[Role::HeadNorm]));
        render(include_str!("kernel.wgsl"), &self.output.row_values(self.heads * self.head_dim, values))
    }

    fn counter_sync(&mut self) -> Option<&mut bool> {
        Some(&mut self.counter_sync)
    }
}
