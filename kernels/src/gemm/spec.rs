//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use super::Product;
use crate::activation_format::{ACTIVATION_GROUP, ActivationFormat, Precision, group_words_at, groups};
use crate::fragment_shape::FragmentShape;
use crate::fragments::EXTENSIONS;
use crate::kernel::{Kernel, RowAxis};
use crate::layout::{TILE_ROWS, WORD_BYTES, WeightFormat};
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::render;

/// Rows and columns of what a subgroup writes at a time: a gate tile and its up tile.
pub(crate) const BLOCK: usize = 2 * TILE_ROWS;

/// f16 of a word of a tile in workgroup memory.
pub(super) const WORD_ELEMENTS: usize = WORD_BYTES / 2;

/// Codes of a row of the step in one vec4<u32>.
const CODES_PER_WORD: usize = 16;

/// Parameters of one GEMM pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GemmSpec {
    /// What is multiplied, and where the result goes.
    pub product: Product,
    /// How a workgroup divides it.
    pub tile: GemmTile,
    /// Invocations of a subgroup; not 0.
    pub subgroup_size: u32,
}

/// How a workgroup cuts the result; chosen per device and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GemmTile {
    /// Matrix rows of a workgroup.
    pub matrix_rows: usize,
    /// Rows of the step of a workgroup: each weight is unpacked once for all of them.
    pub step_rows: usize,
    /// Columns of a stage, 32 or 64: those in workgroup memory at a time.
    pub k: usize,
    /// Sides of its cooperative matrices: rows of the step, matrix rows and columns.
    pub fragment: FragmentShape,
    /// Subgroups side by side along the matrix rows.
    pub subgroups_across: usize,
    /// Subgroups along the rows of the step.
    pub subgroups_down: usize,
    /// Two stages in workgroup memory: one barrier a stage instead of two.
    pub double_buffered: bool,
}

impl GemmTile {
    /// Subgroups of a workgroup.
    pub fn subgroups(&self) -> usize {
        self.subgroups_across * self.subgroups_down
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self) -> usize {
        let buffers = if self.double_buffered { 2 } else { 1 };
        let rows = self.matrix_rows + self.step_rows;
        let results = 4 * BLOCK * BLOCK * self.subgroups();
        buffers * rows * self.row_words() * WORD_BYTES + results
    }

    /// Whether every subgroup owns the same whole blocks.
    pub fn is_whole(&self) -> bool {
        let whole = |rows: usize, subgroups: usize| subgroups > 0 && rows > 0 && rows.is_multiple_of(subgroups * BLOCK);
        whole(self.step_rows, self.subgroups_down) && whole(self.matrix_rows, self.subgroups_across)
    }

    /// Words from row to row: one more than its columns take, so that eight rows lie in different banks.
    fn row_words(&self) -> usize {
        self.k / WORD_ELEMENTS + 1
    }

    /// Rows of the step and matrix rows of one subgroup.
    pub(super) fn subgroup_rows(&self) -> (usize, usize) {
        assert!(self.is_whole(), "subgroups own whole blocks of {BLOCK} rows, found {self:?}");
        (self.step_rows / self.subgroups_down, self.matrix_rows / self.subgroups_across)
    }
}

/// How words are divided among lanes.
struct Share {
    /// Loads of a lane.
    each: usize,
    /// If there are fewer words than lanes, the number of neighbouring lanes that read the same word and unpack a part each.
    parts: usize,
}

impl Share {
    fn of(words: usize, lanes: usize) -> Option<Share> {
        let parts = (lanes / words.max(1)).max(1);
        let whole = words > 0 && (words * parts).is_multiple_of(lanes);
        whole.then_some(Share { each: words * parts / lanes, parts })
    }
}

impl Kernel for GemmSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [Role::Step, Role::Weights, Role::Output, Role::QuantizedInput];
        let experts = self.product.experts.map(|experts| experts.role());
        bindings(roles.into_iter().chain(self.product.bias.then_some(Role::Bias)).chain(experts))
    }

    /// Neighbouring workgroups take the same weights, so that these come from memory once.
    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [
            self.product.step_tiles(rows, self.tile.step_rows),
            self.product.layout.rows.div_ceil(self.tile.matrix_rows),
            1,
        ]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        self.product.experts.is_none().then_some(RowAxis { axis: 0, rows: self.tile.step_rows })
    }

    fn wgsl(&self) -> String {
        assert!(self.subgroup_size > 0, "matrices belong to subgroups");
        assert!(matches!(self.tile.k, 32 | 64), "a stage is 32 or 64 columns, found {}", self.tile.k);
        let (product, tile) = (&self.product, &self.tile);
        let (layout, input) = (&product.layout, product.input);
        let format = layout.format;
        let (subgroup_step_rows, subgroup_matrix_rows) = tile.subgroup_rows();
        let Some((weights, activations)) = self.shares() else {
            panic!("words of a stage divide evenly among {} lanes: {tile:?}", self.lanes())
        };
        let values = product
            .values(ActivationFormat::RowScaled(input))
            .size("K", tile.k)
            .size("GROUP_WORDS_AT", group_words_at(layout.cols, input))
            .size("ROW_WORDS", tile.row_words())
            .size("STEP_ROWS", tile.step_rows)
            .size("MATRIX_ROWS", tile.matrix_rows)
            .size("BUFFERS", if tile.double_buffered { 2 } else { 1 })
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("SUBGROUPS", tile.subgroups())
            .size("SUBGROUPS_ACROSS", tile.subgroups_across)
            .size("SUBGROUP_STEP_ROWS", subgroup_step_rows)
            .size("SUBGROUP_MATRIX_ROWS", subgroup_matrix_rows)
            .flag("INTERLEAVED", layout.format != WeightFormat::F16)
            .flag("INT11", input == Precision::Int11)
            .text("WORKGROUP_SIZE", self.lanes())
            .text("DECLARATIONS", declarations(&self.bindings()))
            .count("WORKGROUP", self.lanes())
            .count("STEP_FRAGMENTS", subgroup_step_rows / tile.fragment.m)
            .count("FRAGMENTS", subgroup_matrix_rows / tile.fragment.n)
            .count("PLANES", input.planes())
            .count("STAGES", (groups(layout.cols) * ACTIVATION_GROUP).div_ceil(tile.k))
            .count("WEIGHT_LOADS", weights.each)
            .count("WEIGHT_PARTS", weights.parts)
            .count("CHUNK_WORDS", format.chunk_cols() / WORD_ELEMENTS)
            .count("STAGE_CHUNKS", tile.k / format.chunk_cols())
            .count("BLOCK_CHUNKS", format.chunks_per_block())
            .count("BLOCK_WORDS", format.block_words())
            .count("LAST_CHUNK", layout.blocks_per_tile() * format.chunks_per_block() - 1)
            .count("TILES", layout.tiles())
            .count("TILE_WORDS", layout.blocks_per_tile() * format.block_words())
            .count("ACTIVATION_LOADS", activations.each)
            .count("ACTIVATION_PARTS", activations.parts)
            .count("STAGE_SIXTEENS", tile.k / CODES_PER_WORD)
            .count("ROW_SIXTEENS", 2 * groups(layout.cols));
        EXTENSIONS.to_owned() + &render(include_str!("kernel.wgsl"), &tile.fragment.values(values))
    }

    fn fragment_shape(&self) -> Option<FragmentShape> {
        Some(self.tile.fragment)
    }
}

impl GemmSpec {
    /// Invocations of a workgroup.
    pub fn lanes(&self) -> usize {
        self.tile.subgroups() * self.subgroup_size as usize
    }

    /// Whether all lanes load equally much of a stage.
    pub fn shares_out(&self) -> bool {
        self.shares().is_some()
    }

    /// How the words of weights and of activations of a stage are divided among lanes; `None`: not evenly.
    fn shares(&self) -> Option<(Share, Share)> {
        let chunk_cols = self.product.layout.format.chunk_cols();
        let share = |rows: usize, cols: usize| {
            let parts = cols / WORD_ELEMENTS;
            Share::of(rows * self.tile.k / cols, self.lanes()).filter(|share| parts.is_multiple_of(share.parts))
        };
        Some((share(self.tile.matrix_rows, chunk_cols)?, share(self.tile.step_rows, CODES_PER_WORD)?))
    }
}
