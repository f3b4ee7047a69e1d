//! The matmul behind a kernel, done by the workgroups that made its input: each multiplies what it made by the columns of the next
//! matrix that want it, and adds that part to [`sums`](crate::sums). One dispatch less, and one hand-over between dispatches.
//!
//! ```text
//!              x ──▶ gate, up ──▶ product ──▶ down                x ──▶ gate, up ──▶ 32 elements ──▶ 32 columns of down ─┐
//! apart        all rows     all elements   all columns   together     64 rows of many   in the workgroup                + sums
//! ```
//!
//! The workgroup's elements are integers of [`Precision::Int8`](crate::Precision), as the matmul by itself reads them.

use serde::{Deserialize, Serialize};

use crate::activations::{ACTIVATION_GROUP, ActivationFormat, Precision, decode_row};
use crate::group_weights::GroupWeights;
use crate::layout::{TILE_ROWS, WeightFormat, WeightLayout};
use crate::spec::Role;
use crate::sums::{WORDS_PER_ELEMENT, fixed, fixed_wgsl, words_of};
use crate::template::Values;

/// The next matrix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NextSpec {
    pub layout: WeightLayout,
}

/// What it wants to know of the kernel: its lanes, and the groups of 32 elements that a workgroup makes.
#[derive(Clone, Copy)]
pub(crate) struct Workgroup<'a> {
    /// The variable of the lane's number.
    pub lane: &'a str,
    pub lanes: usize,
    pub groups: usize,
    /// Which group of the next matrix' columns is the first of them.
    pub first_group: &'a str,
}

impl NextSpec {
    /// Whether a matrix can be the next one.
    pub fn takes(layout: &WeightLayout) -> bool {
        layout.format != WeightFormat::F16
    }

    pub(crate) fn roles() -> [Role; 2] {
        [Role::NextWeights, Role::Sums]
    }

    /// Bytes of workgroup memory for so many groups.
    pub(crate) fn shared_bytes(groups: usize) -> usize {
        groups * (ACTIVATION_GROUP + 4)
    }

    /// Groups of weights that a lane holds while it waits.
    pub fn groups_per_lane(&self, lanes: usize, groups: usize) -> usize {
        self.slots(lanes) * groups
    }

    /// Loads of every weight that the lane multiplies, which wait for nobody.
    fn loads_wgsl(&self, of: Workgroup) -> String {
        let layout = &self.layout;
        let tile_words = layout.blocks_per_tile() * layout.format.block_words();
        let mut text = format!("    let next_row = {} % {TILE_ROWS}u;\n", of.lane);
        let mut line = |code: String| text += &format!("    {code}\n");
        for group in 0..of.groups {
            // Groups past the last are zeros.
            let last = layout.cols.div_ceil(ACTIVATION_GROUP) - 1;
            line(format!("let next_group_{group} = min({} + {group}u, {last}u);", of.first_group));
        }
        for slot in 0..self.slots(of.lanes) {
            let first_tile = slot * of.lanes / TILE_ROWS;
            let tile = format!("min({} / {TILE_ROWS}u + {first_tile}u, {}u)", of.lane, layout.tiles() - 1);
            line(format!("let next_base_{slot} = {tile} * {tile_words}u;"));
            for group in 0..of.groups {
                let (name, column) = (name(slot, group), format!("next_group_{group}"));
                let weights = self.weights(&name);
                let block = weights.block(&column);
                line(format!("let at_{name} = next_base_{slot} + {block} * {}u;", layout.format.block_words()));
                weights.load("let ", "next_weights", &column).into_iter().for_each(&mut line);
            }
        }
        text
    }

    /// Their products with what `keep_next` has kept, added to the sums.
    fn products_wgsl(&self, of: Workgroup) -> String {
        let mut text = String::new();
        let mut line = |code: String| text += &format!("    {code}\n");
        for group in 0..of.groups {
            let word = format!("next_group_words[{group}]");
            let quad = |quad| format!("next_codes[{}]", 2 * group + quad);
            self.weights("").activations(&format!("next_{group}"), 1, &word, quad).into_iter().for_each(&mut line);
        }
        for slot in 0..self.slots(of.lanes) {
            line(format!("var next_sum_{slot} = 0.0;"));
            for group in 0..of.groups {
                let name = name(slot, group);
                let weights = self.weights(&name);
                weights.unpack().into_iter().for_each(&mut line);
                let (scale, sum) = weights.product(&format!("next_{group}"), 1);
                line(format!("next_sum_{slot} = fma({scale}, f32({sum}), next_sum_{slot});"));
            }
            let (row, rows) = (format!("{} + {}u", of.lane, slot * of.lanes), self.layout.rows);
            let add = format!("atomicAdd(&sums[{row}], {});", fixed_wgsl(&format!("next_sum_{slot}")));
            line(format!("if ({row} < {rows}u) {{ {add} }}"));
        }
        text
    }

    /// Rows of a lane.
    fn slots(&self, lanes: usize) -> usize {
        (self.layout.tiles() * TILE_ROWS).div_ceil(lanes)
    }

    fn weights<'n>(&self, name: &'n str) -> GroupWeights<'n> {
        GroupWeights { format: self.layout.format, row: "next_row", name }
    }

    /// The sums, (rows, 2) words, that a row of such codes comes to. The device cuts off each workgroup's part, the twin the whole.
    pub fn twin(&self, packed: &[u8], codes: &[u32], sums: &mut [u32]) {
        let x = decode_row(ActivationFormat::Codes(Precision::Int8), codes, self.layout.cols);
        let mut weights = vec![0f32; self.layout.cols];
        for (row, words) in sums.chunks_exact_mut(WORDS_PER_ELEMENT).enumerate().take(self.layout.rows) {
            self.layout.decode_row(packed, row, &mut weights);
            words.copy_from_slice(&words_of(fixed(weights.iter().zip(&x).map(|(w, x)| w * x).sum())));
        }
    }
}

/// What a kernel that may have a next matmul wants to know, besides the flags of its weights.
pub(crate) fn values(next: Option<&NextSpec>, workgroup: Workgroup, values: Values) -> Values {
    let text = |code: fn(&NextSpec, Workgroup) -> String| next.map_or(String::new(), |next| code(next, workgroup));
    values
        .flag("NEXT", next.is_some())
        .size("NEXT_GROUPS", workgroup.groups)
        .text("NEXT_LOADS", text(NextSpec::loads_wgsl))
        .text("NEXT_PRODUCTS", text(NextSpec::products_wgsl))
}

fn name(slot: usize, group: usize) -> String {
    format!("next_{slot}_{group}")
}
