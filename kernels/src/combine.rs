//! What the splits of attention found, put together: `o = Σ_s e^(m_s - m) · mix_s / Σ_s e^(m_s - m) · sum_s`, `m = max m_s`.
//!
//! ```text
//! partials   [row][head][split]( mix: head_dim / 4 vec4<f32>, then vec4(maximum m_s, sum_s, 0, 0) )
//! ```
//!
//! A split's mix and sum are of `e^(score - m_s)`. Splits without tokens leave theirs as it was: nobody reads it.

use serde::{Deserialize, Serialize};

use crate::activations::{ACTIVATION_GROUP, ActivationFormat, encode_row};
use crate::spec::{BindingSpec, Role, bindings, declarations};
use crate::split::Split;
use crate::template::{Values, render};

/// Parameters of one combine pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CombineSpec {
    pub n_heads: usize,
    pub head_dim: usize,
    /// As attention divided the tokens.
    pub split: Split,
    pub output_stride: usize,
    pub output: ActivationFormat,
    pub subgroup_size: u32,
}

/// Of a score that does not count: exp(MASKED - m) is 0 for every m that occurs.
pub(crate) const MASKED: f32 = -1e30;

/// Lanes; those that a head's width leaves share its splits.
const WORKGROUP: usize = 128;

/// Vectors of four of what one split leaves for one head.
pub(crate) fn partial_quads(head_dim: usize) -> usize {
    head_dim.div_ceil(4) + 1
}

/// f32 elements of the partial results of `rows` rows.
pub fn partials_len(rows: usize, n_heads: usize, head_dim: usize, splits: usize) -> usize {
    4 * rows * n_heads * splits * partial_quads(head_dim)
}

/// Where a result goes: the role of its binding.
pub(crate) fn result_role(format: ActivationFormat) -> Role {
    if format == ActivationFormat::F32 { Role::Output } else { Role::Encoded }
}

/// What pieces that include `result` want to know.
pub(crate) fn result_values(format: ActivationFormat, n_heads: usize, head_dim: usize, values: Values) -> Values {
    let whole = format == ActivationFormat::F32 || head_dim.is_multiple_of(ACTIVATION_GROUP);
    assert!(whole, "a group of codes lies within a head");
    format.row_values(n_heads * head_dim, values.size("HEAD_QUADS", head_dim.div_ceil(4)))
}

impl CombineSpec {
    fn shares(&self) -> usize {
        WORKGROUP / self.head_dim.div_ceil(4)
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
            .size("WORKGROUP", WORKGROUP)
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("MASKED", MASKED)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("WORKGROUP_SIZE", WORKGROUP)
            .text("DECLARATIONS", declarations(&self.bindings()));
        let values = result_values(self.output, self.n_heads, self.head_dim, self.split.values(values));
        render(include_str!("wgsl/combine.wgsl"), &values)
    }
}

/// The kernel in plain loops, all rows of one sequence; `output` in words of the spec's format.
pub fn twin(spec: &CombineSpec, partials: &[f32], positions: &[u32], output: &mut [u32]) {
    let partial_len = 4 * partial_quads(spec.head_dim);
    for (group, positions) in positions.chunks(spec.split.rows_per_group).enumerate() {
        let used = spec.split.parts(positions).len();
        for row in (0..positions.len()).map(|row| group * spec.split.rows_per_group + row) {
            let mut mixed = Vec::new();
            for head in 0..spec.n_heads {
                let first = (row * spec.n_heads + head) * spec.split.splits;
                let found: Vec<&[f32]> =
                    (first..first + used).map(|split| &partials[split * partial_len..][..partial_len]).collect();
                let (maximum, sum) = (partial_len - 4, partial_len - 3);
                let greatest = found.iter().map(|part| part[maximum]).fold(MASKED, f32::max);
                let weights: Vec<f32> = found.iter().map(|part| (part[maximum] - greatest).exp()).collect();
                let over = |i: usize| found.iter().zip(&weights).map(|(part, weight)| weight * part[i]).sum::<f32>();
                mixed.extend((0..spec.head_dim).map(|i| over(i) / over(sum)));
            }
            let words = encode_row(spec.output, &mixed);
            output[row * spec.output_stride..][..words.len()].copy_from_slice(&words);
        }
    }
}
