//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use super::{Product, body, loads};
use crate::activations::{ACTIVATION_GROUP, ActivationFormat, Precision, group_words_at};
use crate::layout::{TILE_ROWS, WORD_BYTES, WeightFormat};
use crate::spec::{BindingSpec, Role, bindings, declarations};
use crate::template::render;

/// Rows and columns of what a subgroup writes at a time: a gate tile and its up tile.
pub(crate) const BLOCK: usize = 2 * TILE_ROWS;

/// What a module on matrix units names before anything else.
pub(crate) const EXTENSIONS: &str = "enable f16;\nenable wgpu_cooperative_matrix;\n";

/// Parameters of one GEMM pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GemmSpec {
    pub product: Product,
    pub tile: GemmTile,
    /// Lanes of a subgroup; never 0.
    pub subgroup_size: u32,
}

/// How a workgroup cuts the result; chosen per device and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GemmTile {
    /// Matrix rows and rows of the step of a workgroup: each weight is unpacked once for all these rows of the step.
    pub matrix_rows: usize,
    pub step_rows: usize,
    /// Columns of a stage, 32 or 64: what lies in workgroup memory at a time.
    pub k: usize,
    /// Rows and columns of one cooperative matrix, 8 or 16.
    pub fragment: usize,
    /// Matrices are of int8, not of f16, and so many columns deep: 8, 16 or 32.
    pub integer_depth: Option<usize>,
    /// Subgroups side by side along the matrix rows, and along the rows of the step.
    pub subgroups_across: usize,
    pub subgroups_down: usize,
    /// Two stages in workgroup memory: one barrier a stage instead of two.
    pub double_buffered: bool,
}

impl GemmTile {
    pub fn subgroups(&self) -> usize {
        self.subgroups_across * self.subgroups_down
    }

    /// Bytes of workgroup memory, for activations of this precision.
    pub fn shared_bytes(&self, input: Precision) -> usize {
        let buffers = if self.double_buffered { 2 } else { 1 };
        let rows = self.matrix_rows + self.planes(input) * self.step_rows;
        let scales = match self.integer_depth {
            Some(_) => 4 * (self.matrix_rows + self.step_rows) * self.k / ACTIVATION_GROUP,
            None => 0,
        };
        let results = 4 * BLOCK * BLOCK * self.subgroups();
        buffers * (rows * self.row_words() * self.word_bytes() + scales) + results
    }

    /// The same tile on int8 matrices of this depth. Where a stage has less than a word of integers for each lane, one of twice
    /// the columns takes the place of two buffers.
    pub fn on_integers(self, depth: usize, subgroup_size: u32) -> GemmTile {
        let lanes = self.subgroups() * subgroup_size as usize;
        let integers = GemmTile { integer_depth: Some(depth), ..self };
        if self.step_rows.min(self.matrix_rows / 2) * self.k / WORD_BYTES >= lanes {
            return integers;
        }
        GemmTile { k: 64, double_buffered: false, ..integers }
    }

    /// Whether every subgroup owns the same whole blocks.
    pub fn is_whole(&self) -> bool {
        let whole = |rows: usize, subgroups: usize| subgroups > 0 && rows > 0 && rows.is_multiple_of(subgroups * BLOCK);
        whole(self.step_rows, self.subgroups_down) && whole(self.matrix_rows, self.subgroups_across)
    }

    /// Columns that one cooperative matrix is deep.
    pub(super) fn depth(&self) -> usize {
        self.integer_depth.unwrap_or(self.fragment)
    }

    /// Bytes of a word of a tile in workgroup memory: no more than a matrix is deep, because one begins where a word does.
    pub(super) fn word_bytes(&self) -> usize {
        if self.integer_depth == Some(8) { 8 } else { WORD_BYTES }
    }

    /// Elements of such a word.
    pub(super) fn word_elements(&self) -> usize {
        self.word_bytes() / if self.integer_depth.is_some() { 1 } else { 2 }
    }

    /// Words from row to row: one more than its columns take, so that eight rows lie in different banks.
    fn row_words(&self) -> usize {
        self.k / self.word_elements() + 1
    }

    /// Rows in workgroup memory for a row of the step: integers keep their planes apart.
    fn planes(&self, input: Precision) -> usize {
        if self.integer_depth.is_some() { input.planes() } else { 1 }
    }

    /// Rows of the step and matrix rows of one subgroup.
    pub(super) fn subgroup_rows(&self) -> (usize, usize) {
        assert!(self.is_whole(), "subgroups own whole blocks of {BLOCK} rows, found {self:?}");
        (self.step_rows / self.subgroups_down, self.matrix_rows / self.subgroups_across)
    }
}

impl GemmSpec {
    pub fn lanes(&self) -> usize {
        self.tile.subgroups() * self.subgroup_size as usize
    }

    /// Whether every lane brings as much of a stage as the others.
    pub fn shares_out(&self) -> bool {
        loads::share_out(self).is_some()
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [Role::Step, Role::Weights, Role::Output, Role::Codes];
        bindings(roles.into_iter().chain(self.product.bias.then_some(Role::Bias)))
    }

    /// Neighbouring workgroups take the same weights, so that these come from memory once.
    pub(crate) fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows.div_ceil(self.tile.step_rows), self.product.layout.rows.div_ceil(self.tile.matrix_rows), 1]
    }

    pub(crate) fn wgsl(&self) -> String {
        assert!(self.subgroup_size > 0, "matrices belong to subgroups");
        assert!(matches!(self.tile.k, 32 | 64), "a stage is 32 or 64 columns, found {}", self.tile.k);
        assert!(matches!(self.tile.fragment, 8 | 16), "fragments are of 8 or 16 rows, found {}", self.tile.fragment);
        assert!(matches!(self.tile.depth(), 8 | 16 | 32), "matrices are 8 to 32 columns deep, found {:?}", self.tile);
        let integers = self.tile.integer_depth.is_some();
        let (product, tile) = (&self.product, &self.tile);
        let (layout, input) = (&product.layout, product.input);
        assert!(!integers || layout.format.has_params(), "f16 weights are no integers");
        let (subgroup_step_rows, subgroup_matrix_rows) = tile.subgroup_rows();
        let values = product
            .values(ActivationFormat::Factored(input))
            .size("K", tile.k)
            .size("GROUP_WORDS_AT", group_words_at(layout.cols, input))
            .size("ROW_WORDS", tile.row_words())
            .size("ACTIVATION_ROWS", tile.planes(input) * tile.step_rows)
            .size("STAGE_GROUPS", tile.k / ACTIVATION_GROUP)
            .size("STEP_ROWS", tile.step_rows)
            .size("MATRIX_ROWS", tile.matrix_rows)
            .size("BUFFERS", if tile.double_buffered { 2 } else { 1 })
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("SUBGROUPS", tile.subgroups())
            .size("SUBGROUPS_ACROSS", tile.subgroups_across)
            .size("SUBGROUP_STEP_ROWS", subgroup_step_rows)
            .size("SUBGROUP_MATRIX_ROWS", subgroup_matrix_rows)
            .flag("INTERLEAVED", layout.format != WeightFormat::F16)
            .flag("INTEGERS", integers)
            .flag("INT11", input == Precision::Int11)
            .text("TILE_WORD", if tile.word_bytes() == 8 { "vec2" } else { "vec4" })
            .text("WORKGROUP_SIZE", self.lanes())
            .text("DECLARATIONS", declarations(&self.bindings()))
            .text("BODY", body::body(self));
        EXTENSIONS.to_owned() + &render(include_str!("kernel.wgsl"), &values)
    }
}
