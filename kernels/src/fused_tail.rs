//! The matmul after a kernel, computed by the workgroups that produce its input: each multiplies its elements by the columns of the
//! next matrix that use them, and adds that part to [`sums`](crate::fixed_sums). That saves a dispatch and the wait for it.
//!
//! ```text
//!              x ──▶ gate, up ──▶ product ──▶ down                x ──▶ gate, up ──▶ 32 elements ──▶ 32 columns of down ─┐
//! apart        all rows     all elements   all columns   together     64 rows of many   in the workgroup                + sums
//! ```
//!
//! The workgroup's elements are integers of [`Precision::Int8`](crate::Precision), as a separate matmul reads them.

use serde::{Deserialize, Serialize};

use crate::activation_format::{ACTIVATION_GROUP, ActivationFormat, Precision, decode_row};
use crate::fixed_sums::{self, WORDS_PER_ELEMENT, fixed, words_of};
use crate::layout::{TILE_ROWS, WeightFormat, WeightLayout};
use crate::role::Role;
use crate::template::Values;

/// The next matrix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FusedTailSpec {
    /// Format and shape of the packed matrix.
    pub layout: WeightLayout,
}

impl FusedTailSpec {
    /// Whether a matrix can be the next one.
    pub fn takes(layout: &WeightLayout) -> bool {
        layout.format != WeightFormat::F16 && layout.format.unpacks_with_others()
    }

    pub(crate) fn roles() -> [Role; 2] {
        [Role::TailWeights, Role::FixedSums]
    }

    /// Bytes of workgroup memory for `groups` groups.
    pub(crate) fn shared_bytes(groups: usize) -> usize {
        groups * (ACTIVATION_GROUP + 4)
    }

    /// Groups of weights that a lane holds while it waits.
    pub fn groups_per_lane(&self, lanes: usize, groups: usize) -> usize {
        self.slots(lanes) * groups
    }

    /// Rows of a lane.
    fn slots(&self, lanes: usize) -> usize {
        (self.layout.tiles() * TILE_ROWS).div_ceil(lanes)
    }

    /// Computes the sums, (rows, 2) words, of a row of such codes. The device truncates each workgroup's part, the twin the total.
    pub fn twin(&self, packed: &[u8], codes: &[u32], sums: &mut [u32]) {
        let x = decode_row(ActivationFormat::Quantized(Precision::Int8), codes, self.layout.cols);
        let mut weights = vec![0f32; self.layout.cols];
        for (row, words) in sums.chunks_exact_mut(WORDS_PER_ELEMENT).enumerate().take(self.layout.rows) {
            self.layout.decode_row(packed, row, &mut weights);
            words.copy_from_slice(&words_of(fixed(weights.iter().zip(&x).map(|(w, x)| w * x).sum())));
        }
    }
}

/// Values of the piece `fused_tail`, for a kernel that may have one: a workgroup has `lanes` lanes and computes `groups` groups of
/// 32 elements.
pub(crate) fn values(tail: Option<&FusedTailSpec>, lanes: usize, groups: usize, values: Values) -> Values {
    let values = values.flag("FUSED_TAIL", tail.is_some()).size("TAIL_GROUPS", groups);
    let Some(tail) = tail else { return values };
    let layout = &tail.layout;
    layout
        .format
        .values("FUSED", values)
        .count("TAIL_SLOTS", tail.slots(lanes))
        .count("FUSED_LAST_GROUP", layout.cols.div_ceil(ACTIVATION_GROUP) - 1)
        .count("FUSED_LAST_TILE", layout.tiles() - 1)
        .count("FUSED_TILE_WORDS", layout.blocks_per_tile() * layout.format.block_words())
        .count("FUSED_ROWS", layout.rows)
        .text("SUM_UNIT", fixed_sums::unit_wgsl())
}
