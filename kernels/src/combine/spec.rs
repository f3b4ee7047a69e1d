//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation_format::{ATTENTION_FACTOR, ActivationFormat};
use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one combine pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CombineSpec {
    /// Number of query heads.
    pub n_heads: usize,
    /// Elements of a head's result.
    pub head_dim: usize,
    /// Elements between the results of a row's heads; `head_dim`, unless each is a row of its own.
    pub head_stride: usize,
    /// Maximum number of splits of a head, as attention's `split.max_splits`.
    pub max_splits: usize,
    /// Whether each head has a sink: a logit, bound as [`Role::Sinks`], that takes its share of the softmax and has no value.
    pub sinks: bool,
    /// Words between rows of the output.
    pub output_stride: usize,
    /// Format of the result.
    pub output: ActivationFormat,
    /// Invocations of a workgroup, at least one for each vector of four of a head; with several for each, they share its splits.
    pub lanes: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
}

/// A score that does not count: exp(MASKED - m) is 0 for every m that occurs.
pub(crate) const MASKED: f32 = -1e30;

/// Vectors of four f32 that one split writes for one head.
pub(crate) fn partial_quads(head_dim: usize) -> usize {
    head_dim.div_ceil(4) + 1
}

/// f32 elements of the partial results of `rows` rows, with room for `max_splits` splits.
pub fn partials_len(rows: usize, n_heads: usize, head_dim: usize, max_splits: usize) -> usize {
    4 * rows * n_heads * max_splits * partial_quads(head_dim)
}

/// Role of the binding to which a result is written.
pub(crate) fn result_role(format: ActivationFormat) -> Role {
    if format == ActivationFormat::F32 { Role::Output } else { Role::Encoded }
}

/// Values for pieces that include `result`.
pub(crate) fn result_values(
    format: ActivationFormat,
    n_heads: usize,
    [head_dim, head_stride]: [usize; 2],
    values: Values,
) -> Values {
    assert!(format.lies_in_heads(n_heads, head_dim), "groups lie within heads, found {format:?}");
    assert!(format == ActivationFormat::F32 || head_stride == head_dim, "heads of a row are encoded together");
    let values = values.size("RESULT_DIM", head_dim).size("RESULT_STRIDE", head_stride);
    let values = format.row_values(n_heads * head_dim, values.size("HEAD_QUADS", head_dim.div_ceil(4)));
    if format.has_factor() { values.flag("GIVEN_FACTOR", true).number("FACTOR", ATTENTION_FACTOR) } else { values }
}

impl Kernel for CombineSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let mut list = bindings(
            [Role::Step, Role::Partials, result_role(self.output)].into_iter().chain(self.sinks.then_some(Role::Sinks)),
        );
        list[1].writes = false;
        list
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.n_heads, rows, 1]
    }

    fn wgsl(&self) -> String {
        assert!(self.shares() > 0, "a lane takes four dimensions of a head");
        let values = Values::default()
            .size("N_HEADS", self.n_heads)
            .size("PARTIAL_QUADS", partial_quads(self.head_dim))
            .size("SHARES", self.shares())
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("MAX_SPLITS", self.max_splits)
            .size("WORKGROUP", self.lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("MASKED", MASKED)
            .flag("SINKS", self.sinks)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("DECLARATIONS", declarations(&self.bindings()));
        let values = result_values(self.output, self.n_heads, [self.head_dim, self.head_stride], values);
        render(include_str!("kernel.wgsl"), &values)
    }
}

impl CombineSpec {
    fn shares(&self) -> usize {
        self.lanes / self.head_dim.div_ceil(4)
    }
}
