//! What the splits of attention found, put together: `o = Σ_s e^(m_s - m) · mix_s / Σ_s e^(m_s - m) · sum_s`, `m = max m_s`.
//!
//! ```text
//! partials   [row][head][room]( mix: head_dim / 4 vec4<f32>, then vec4(maximum m_s, sum_s, splits, 0) )
//! ```
//!
//! A split's mix and sum are of `e^(score - m_s)`. There is room for more splits than attention may make: each says how many
//! there are, so that this kernel need not know how attention was cut, and what lies behind them stays as it was.

use serde::{Deserialize, Serialize};

use crate::activations::{ActivationFormat, MIXED_FACTOR, encode_divided_row};
use crate::spec::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one combine pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CombineSpec {
    pub n_heads: usize,
    pub head_dim: usize,
    /// As attention's `split.room`.
    pub room: usize,
    pub output_stride: usize,
    pub output: ActivationFormat,
    /// Of a workgroup, as many as a head has vectors of four at least; those that its width leaves share its splits.
    pub lanes: usize,
    pub subgroup_size: u32,
}

/// Of a score that does not count: exp(MASKED - m) is 0 for every m that occurs.
pub(crate) const MASKED: f32 = -1e30;

/// Vectors of four of what one split leaves for one head.
pub(crate) fn partial_quads(head_dim: usize) -> usize {
    head_dim.div_ceil(4) + 1
}

/// f32 elements of the partial results of `rows` rows, with room for so many splits.
pub fn partials_len(rows: usize, n_heads: usize, head_dim: usize, room: usize) -> usize {
    4 * rows * n_heads * room * partial_quads(head_dim)
}

/// Where a result goes: the role of its binding.
pub(crate) fn result_role(format: ActivationFormat) -> Role {
    if format == ActivationFormat::F32 { Role::Output } else { Role::Encoded }
}

/// What pieces that include `result` want to know.
pub(crate) fn result_values(format: ActivationFormat, n_heads: usize, head_dim: usize, values: Values) -> Values {
    assert!(format.lies_in_heads(n_heads, head_dim), "groups lie within heads, found {format:?}");
    let values = format.row_values(n_heads * head_dim, values.size("HEAD_QUADS", head_dim.div_ceil(4)));
    if format.has_factor() { values.flag("GIVEN_FACTOR", true).number("FACTOR", MIXED_FACTOR) } else { values }
}

impl CombineSpec {
    fn shares(&self) -> usize {
        self.lanes / self.head_dim.div_ceil(4)
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let mut list = bindings([Role::Step, Role::Partials, result_role(self.output)]);
        list[1].writes = false;
        list
    }

    pub(crate) fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.n_heads, rows, 1]
    }

    pub(crate) fn wgsl(&self) -> String {
        assert!(self.shares() > 0, "a lane takes four dimensions of a head");
        let values = Values::default()
            .size("N_HEADS", self.n_heads)
            .size("HEAD_DIM", self.head_dim)
            .size("PARTIAL_QUADS", partial_quads(self.head_dim))
            .size("SHARES", self.shares())
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("ROOM", self.room)
            .size("WORKGROUP", self.lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("MASKED", MASKED)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("WORKGROUP_SIZE", self.lanes)
            .text("DECLARATIONS", declarations(&self.bindings()));
        let values = result_values(self.output, self.n_heads, self.head_dim, values);
        render(include_str!("wgsl/combine.wgsl"), &values)
    }
}

/// The kernel in plain loops, for `n_rows` rows; `output` in words of the spec's format.
pub fn twin(spec: &CombineSpec, partials: &[f32], n_rows: usize, output: &mut [u32]) {
    let partial_len = 4 * partial_quads(spec.head_dim);
    let (maximum, sum, splits) = (partial_len - 4, partial_len - 3, partial_len - 2);
    for row in 0..n_rows {
        let mut mixed = Vec::new();
        for head in 0..spec.n_heads {
            let of_head = &partials[(row * spec.n_heads + head) * spec.room * partial_len..];
            let found: Vec<&[f32]> = of_head.chunks(partial_len).take(of_head[splits] as usize).collect();
            let greatest = found.iter().map(|part| part[maximum]).fold(MASKED, f32::max);
            let weights: Vec<f32> = found.iter().map(|part| (part[maximum] - greatest).exp()).collect();
            let over = |i: usize| found.iter().zip(&weights).map(|(part, weight)| weight * part[i]).sum::<f32>();
            mixed.extend((0..spec.head_dim).map(|i| over(i) / over(sum)));
        }
        let words = encode_divided_row(spec.output, &mixed, MIXED_FACTOR);
        output[row * spec.output_stride..][..words.len()].copy_from_slice(&words);
    }
}
