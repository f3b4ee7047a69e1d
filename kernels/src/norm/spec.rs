//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation_format::ActivationFormat;
use crate::counter_sync;
use crate::fixed_sums;
use crate::kernel::{Kernel, RowAxis};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations_with_sync};
use crate::template::{Values, render};

/// Parameters of one norm; the same record describes a matmul's prologue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NormSpec {
    /// Elements of a row.
    pub width: usize,
    /// Elements between rows, the same for all operands.
    pub stride: usize,
    /// Epsilon of the RMS norm.
    pub eps: Number,
    /// Sum with the residual first.
    pub add: bool,
    /// Store that sum: of several kernels that compute the same one, the first does.
    pub stores_sum: bool,
    /// Norm the input before the sum.
    pub post_norm: bool,
    /// Multiply the sum, before it is stored and normed, by the element behind the post norm's weights.
    pub scale_sum: bool,
    /// Norm the sum. Without, the result is the sum itself, in `format`.
    pub norm_sum: bool,
    /// The input is fixed-point sums, two words an element.
    pub fixed_sums: bool,
    /// How the result is stored.
    pub format: ActivationFormat,
    /// Whether it is stored in f32, too, for readers of both.
    pub also_f32: bool,
    /// Invocations of a workgroup of the standalone kernel: a multiple of 8.
    pub lanes: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// The standalone kernel synchronises with the dispatches before and after it by counters, not by barriers: see `counter_sync`.
    pub counter_sync: bool,
}

impl Kernel for NormSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let plain = self.also_f32.then_some(Role::OutputQuads);
        let counters = self.counter_sync.then_some(Role::SyncCounters);
        let outputs = [Role::Step, self.format.output_role()].into_iter().chain(plain);
        bindings(outputs.chain(self.data_roles()).chain(counters))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(0)
    }

    fn wgsl(&self) -> String {
        assert!(!self.also_f32 || self.format != ActivationFormat::F32, "two formats");
        let lanes = self.lanes;
        let slots = self.format.stored_quads(self.width).div_ceil(lanes);
        let values = counter_sync::values(self.counter_sync, Values::default())
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("WORKGROUP", lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("EPS", self.eps.get())
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .flag("ALSO_F32", self.also_f32)
            .text("DECLARATIONS", declarations_with_sync(&self.bindings(), self.counter_sync, &[]));
        let values = self.row_values(slots, values);
        render(include_str!("kernel.wgsl"), &self.format.row_values(self.width, values))
    }

    fn counter_sync(&mut self) -> Option<&mut bool> {
        Some(&mut self.counter_sync)
    }

    fn reads_fixed_sums(&mut self) -> Option<&mut bool> {
        Some(&mut self.fixed_sums)
    }
}

impl NormSpec {
    /// Roles of the operands, without step and output.
    pub(crate) fn data_roles(&self) -> Vec<Role> {
        let mut roles = vec![if self.fixed_sums { Role::InputFixedSums } else { Role::InputQuads }];
        if self.norm_sum {
            roles.push(Role::NormWeight);
        }
        roles.extend(self.add.then_some(Role::Residual));
        roles.extend(self.stores_sum.then_some(Role::Sum));
        if self.post_norm {
            roles.push(Role::PostNormWeight);
        }
        roles
    }

    /// Values of the piece `norm_row`, of a workgroup whose lanes have `slots` quads each.
    pub(crate) fn row_values(&self, slots: usize, values: Values) -> Values {
        assert!(self.add || !self.post_norm, "a post norm comes before a sum");
        assert!(self.add || !self.stores_sum, "there is a sum to store");
        assert!(self.post_norm || !self.scale_sum, "the sum's factor is behind the weights of a post norm");
        values
            .count("NORM_WIDTH", self.width)
            .count("SLOTS", slots)
            .flag("ADD", self.add)
            .flag("STORES_SUM", self.stores_sum)
            .flag("POST_NORM", self.post_norm)
            .flag("SCALE_SUM", self.scale_sum)
            .text("SUM_FACTOR", format!("post_norm_weight[{}u][{}u]", self.width / 4, self.width % 4))
            .flag("NORM_SUM", self.norm_sum)
            .flag("INPUT_FIXED_SUMS", self.fixed_sums)
            .text("INVERSE_SUM_UNIT", fixed_sums::inverse_unit_wgsl())
    }
}
