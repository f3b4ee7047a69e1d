//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation_format::{ActivationFormat, HALVES_BLOCK};
use crate::fragment_shape::FragmentShape;
use crate::fragments::{EXTENSIONS, Fragment, ROW_LANES};
use crate::gemm::{BLOCK, Product};
use crate::kernel::{Kernel, RowAxis};
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::render;

/// f16 numbers in one vec4<u32>.
const HALVES_PER_WORD: usize = 8;
/// Columns of a stage.
const STAGE: usize = HALVES_BLOCK;
/// Columns of a stage that one lane holds of each of its rows.
const LANE_COLUMNS: usize = STAGE / ROW_LANES;

/// Parameters of one GEMM from registers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RegisterGemmSpec {
    /// What is multiplied, and where the result goes.
    pub product: Product,
    /// Whether products of gate and up become `Halves`, in whole blocks; otherwise results are f32.
    pub halves_out: bool,
    /// How a workgroup divides it.
    pub tile: RegisterTile,
    /// Maximum number of rows of a step.
    pub rows: usize,
    /// Workgroups that share the columns of a tile of the result.
    pub splits: usize,
    /// Invocations of a subgroup: a multiple of 4.
    pub subgroup_size: u32,
    /// Whether the device's lanes hold the elements of matrices as in `fragments`.
    pub lanes_hold_fragments: bool,
}

/// How a workgroup cuts the result; chosen per device and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RegisterTile {
    /// Rows of the step of a workgroup.
    pub step_rows: usize,
    /// Columns of activations in workgroup memory at a time, 64 or 128.
    pub panel: usize,
    /// Rows and columns of one cooperative matrix, 8 or 16.
    pub fragment: usize,
    /// Fragments of a subgroup, side by side along the matrix rows.
    pub fragments: usize,
    /// Subgroups of a workgroup, side by side along the matrix rows.
    pub subgroups: usize,
}

impl RegisterTile {
    /// Matrix rows of a workgroup.
    pub fn matrix_rows(&self) -> usize {
        self.fragment * self.fragments * self.subgroups
    }

    /// 16-byte words from row to row of the activations: one more than they take, so that eight rows lie in different banks.
    fn row_words(&self) -> usize {
        self.panel / 8 + 1
    }

    /// Whether every subgroup owns whole blocks.
    pub fn is_whole(&self) -> bool {
        let whole = |rows: usize| rows > 0 && rows.is_multiple_of(BLOCK);
        self.subgroups > 0 && whole(self.step_rows) && whole(self.fragment * self.fragments)
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self) -> usize {
        let results = 4 * BLOCK * BLOCK * self.subgroups;
        let lane_words = 2 * self.fragment * self.fragment * self.subgroups;
        16 * self.step_rows * self.row_words() + 4 * self.step_rows + results + lane_words + 16
    }
}

impl Kernel for RegisterGemmSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [
            Role::Step,
            Role::Weights,
            if self.halves_out { Role::Encoded } else { Role::Output },
            Role::QuantizedInput,
        ];
        let parts = (self.splits > 1).then_some([Role::ExchangedSums, Role::CompletionCounters]);
        let bias = self.product.bias.then_some(Role::Bias);
        let factor = self.halves_out.then_some(Role::ProductFactor);
        let experts = self.product.experts.map(|experts| experts.role());
        bindings(roles.into_iter().chain(bias).chain(factor).chain(experts).chain(parts.into_iter().flatten()))
    }

    fn workgroups(&self, _rows: usize) -> [usize; 3] {
        RegisterGemmSpec::workgroups(self)
    }

    fn row_axis(&self) -> Option<RowAxis> {
        // Splits leave partial results of all rows to a last workgroup.
        let is_alone = self.product.experts.is_none() && self.splits == 1;
        is_alone.then_some(RowAxis { axis: 0, rows: self.tile.step_rows })
    }

    fn wgsl(&self) -> String {
        let tile = &self.tile;
        assert!(matches!(tile.panel, 64 | 128), "a panel is 64 or 128 columns, found {}", tile.panel);
        assert!(tile.is_whole(), "subgroups own whole blocks of {BLOCK} rows, found {tile:?}");
        assert!(self.subgroup_size as usize <= ROW_LANES * tile.fragment, "no more lanes than a fragment has places");
        assert!((1..=self.stages()).contains(&self.splits), "each split has a stage");
        let is_plain = !self.halves_out && self.splits == 1;
        assert!(self.product.experts.is_none() || is_plain, "of experts, f32 rows by one workgroup");
        assert!(!self.halves_out || Self::makes_halves(&self.product), "whole blocks of products: {:?}", self.product);
        let subgroup_matrix_rows = tile.fragment * tile.fragments;
        let fragment = self.fragment();
        let layout = &self.product.layout;
        let format = layout.format;
        let panel_words = tile.panel / HALVES_PER_WORD;
        let values = self.product.values(ActivationFormat::Halves(self.product.input));
        let values = FragmentShape::square(tile.fragment)
            .values(values)
            .size("STEP_ROWS", tile.step_rows)
            .size("MATRIX_ROWS", tile.matrix_rows())
            .size("SUBGROUP_MATRIX_ROWS", subgroup_matrix_rows)
            .size("ROW_WORDS", tile.row_words())
            .size("STAGES", self.stages())
            .size("SPLITS", self.splits)
            .size("STEP_TILES", self.product.step_tiles(self.rows, tile.step_rows))
            .size("WORKGROUP", self.lanes())
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("SUBGROUPS", tile.subgroups)
            .size("FRAGMENT_WORDS", tile.fragment * tile.fragment / 2)
            .size("SUBGROUP_SUMS", tile.step_rows * subgroup_matrix_rows)
            .size("LANE_WORDS", self.fragment().lane_words())
            .flag("SPLIT", self.splits > 1)
            .flag("LANES_HOLD_FRAGMENTS", self.lanes_hold_fragments)
            .text("WORKGROUP_SIZE", self.lanes())
            .text("DECLARATIONS", declarations(&self.bindings()))
            .count("FRAGMENT", tile.fragment)
            .count("FRAGMENTS", tile.fragments)
            .count("STEP_FRAGMENTS", tile.step_rows / tile.fragment)
            .count("FRAGMENT_ROWS", fragment.rows())
            .count("FRAGMENT_PAIRS", fragment.words())
            .count("ROWS_APART", fragment.rows_apart())
            .count("LANE_ROWS", tile.fragments * fragment.rows())
            .count("ROW_CHUNKS", LANE_COLUMNS / format.chunk_cols())
            .count("BLOCK_CHUNKS", format.chunks_per_block())
            .count("BLOCK_WORDS", format.block_words())
            .count("LAST_CHUNK", layout.blocks_per_tile() * format.chunks_per_block() - 1)
            .count("TILES", layout.tiles())
            .count("TILE_WORDS", layout.blocks_per_tile() * format.block_words())
            .count("PANEL", tile.panel)
            .count("PANELS", STAGE / tile.panel)
            .count("PANEL_WORDS", panel_words)
            .count("LANE_ITEMS", (tile.step_rows * panel_words).div_ceil(self.lanes()));
        let values = if self.halves_out {
            let output = ActivationFormat::Halves(self.product.input);
            let factor_at = output.factor_at(self.product.output_rows());
            values.flag("HALVES_OUT", true).size("HALVES_BLOCK", HALVES_BLOCK).size("OUTPUT_FACTOR_AT", factor_at)
        } else {
            values
        };
        EXTENSIONS.to_owned() + &render(include_str!("kernel.wgsl"), &values)
    }
}

impl RegisterGemmSpec {
    pub(super) fn fragment(&self) -> Fragment {
        Fragment { side: self.tile.fragment, subgroup_size: self.subgroup_size }
    }

    /// Whether products of gate and up can become `Halves`: a whole row of them, in whole blocks.
    pub fn makes_halves(product: &Product) -> bool {
        let whole = product.output_first == 0 && product.output_rows().is_multiple_of(HALVES_BLOCK);
        whole && product.act_mul.is_some()
    }

    /// Invocations of a workgroup.
    pub fn lanes(&self) -> usize {
        self.tile.subgroups * self.subgroup_size as usize
    }

    /// Stages of the whole matrix.
    pub fn stages(&self) -> usize {
        self.product.layout.cols.div_ceil(STAGE)
    }

    /// Completion counters that splits need: one for each tile of the result.
    pub fn completion_counters(&self) -> usize {
        let [across, down, _] = self.workgroups();
        if self.splits > 1 { across * down } else { 0 }
    }

    /// f32 elements of the partial sums of all splits.
    pub fn partials_len(&self) -> usize {
        self.completion_counters() * self.splits * self.tile.step_rows * self.tile.matrix_rows()
    }

    /// Neighbouring workgroups take the same weights, so that these come from memory once.
    pub fn workgroups(&self) -> [usize; 3] {
        let matrix_rows = self.product.layout.rows;
        let across = self.product.step_tiles(self.rows, self.tile.step_rows);
        [across, matrix_rows.div_ceil(self.tile.matrix_rows()), self.splits]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::activation_format::Precision;
    use crate::layout::{WeightFormat, WeightLayout};

    fn spec(rows: usize, matrix_rows: usize, cols: usize, splits: usize) -> RegisterGemmSpec {
        let product = Product {
            layout: WeightLayout { format: WeightFormat::F16, rows: matrix_rows, cols },
            input: Precision::Int8,
            input_stride: cols / 2,
            output_stride: matrix_rows,
            output_first: 0,
            bias: false,
            rows_per_token: 1,
            act_mul: None,
            experts: None,
        };
        let tile = RegisterTile { step_rows: 64, panel: 64, fragment: 16, fragments: 2, subgroups: 4 };
        RegisterGemmSpec {
            product,
            halves_out: false,
            tile,
            rows,
            splits,
            subgroup_size: 32,
            lanes_hold_fragments: true,
        }
    }

    /// What each workgroup takes is as in `kernel.wgsl`: rows of the step by x, matrix rows by y, stages of columns by z.
    #[test]
    fn workgroups_cover_every_result_and_every_stage_once() {
        // Whole tiles; a row more and a row less than whole ones; a part of a tile; columns that end within a stage.
        let shapes = [(64, 128, 256, 1), (65, 136, 256, 2), (127, 120, 384, 3), (1, 8, 128, 1), (200, 264, 416, 3)];
        for (rows, matrix_rows, cols, splits) in shapes {
            let spec = spec(rows, matrix_rows, cols, splits);
            let (tile, stages) = (&spec.tile, spec.stages());
            assert!(stages * STAGE >= cols && (stages - 1) * STAGE < cols, "{cols} columns, {stages} stages");
            let [across, down, parts] = spec.workgroups();
            let mut covered = BTreeMap::new();
            let mut partials = BTreeMap::new();
            for (x, y, z) in (0..across).flat_map(|x| (0..down).flat_map(move |y| (0..parts).map(move |z| (x, y, z)))) {
                let step_rows = (x * tile.step_rows..(x + 1) * tile.step_rows).filter(|&row| row < rows);
                let results = (y * tile.matrix_rows()..(y + 1) * tile.matrix_rows()).filter(|&row| row < matrix_rows);
                for (step_row, row) in step_rows.flat_map(|step_row| results.clone().map(move |row| (step_row, row))) {
                    for stage in stages * z / splits..stages * (z + 1) / splits {
                        *covered.entry((step_row, row, stage)).or_insert(0) += 1;
                    }
                }
                *partials.entry((y * across + x) * splits + z).or_insert(0) += 1;
            }
            assert_eq!(covered.len(), rows * matrix_rows * stages, "{spec:?}");
            assert!(covered.values().all(|&count| count == 1), "{spec:?}");
            // Each workgroup writes its sums to a place of its own, and the places fill the buffer.
            assert!(
                partials.keys().copied().eq(0..across * down * splits) && partials.values().all(|&count| count == 1)
            );
            let expected = if splits > 1 { partials.len() * tile.step_rows * tile.matrix_rows() } else { 0 };
            assert_eq!(spec.partials_len(), expected, "{spec:?}");
        }
    }
}
