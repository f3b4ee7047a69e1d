//! The GEMM whose weights reach the matrix units straight from the registers of the lanes that unpacked them.
//!
//! Formula: that of `gemm`, on f16 with sums of f32; activations are rows of `Halves`. Only they lie in workgroup memory, shared by
//! the subgroups of a workgroup, each of which has matrix rows of its own. So a weight is unpacked once for all rows of the step
//! that a workgroup has, and neither written to workgroup memory, nor read from it, nor waited for at a barrier.
//!
//! ```text
//! fragment   side × side weights, what a cooperative matrix takes at a time, spread over lanes as `fragments` draws it
//! stage      128 columns: lane t of the four has columns 32 t … 32 t + 31 of each of its rows in registers, packed
//! depth d    side columns of every lane's: with a side of 16 the pairs 2 d and 2 d + 1 of the 16 that a lane unpacks
//! ```
//!
//! Which column meets which does not matter to a sum, as long as activations lie in the same order: `activations` draws it. Where a
//! lane's weights lie within a cooperative matrix is the device's secret. Kernels say it by way of `lane_words`, workgroup memory
//! where fragments lie as rows; on devices that keep them as the lanes have them (`lanes_hold_fragments`), `unicorn_spirv::fragments`
//! takes that detour out.
//!
//! Products of gate and up may become the next GEMM's `Halves` at once, with all bits that f16 has, not as codes. A row's factor is
//! then known before its values are: the norm in front leaves rows of known length, and so no product is greater than the lengths
//! of the rows of gate and up allow (Cauchy and Schwarz). The compiler measures those.
//!
//! Where a matrix has too few rows to fill the device, its columns are divided among `splits` workgroups. Each leaves its sums in
//! memory, and the last one to arrive adds them up, in the same order always.

mod body;

use serde::{Deserialize, Serialize};

use crate::activations::{ActivationFormat, HALVES_BLOCK};
use crate::fragments::{Fragment, ROW_LANES};
use crate::gemm::{BLOCK, EXTENSIONS, GemmInputs, Product};
use crate::spec::{BindingSpec, Role, bindings, declarations};
use crate::template::render;

/// Columns of a stage.
const STAGE: usize = HALVES_BLOCK;

/// Parameters of one GEMM from registers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RegisterGemmSpec {
    pub product: Product,
    /// Products of gate and up become `Halves`, whole blocks of them; else results are f32.
    pub halves_out: bool,
    pub tile: RegisterTile,
    /// Most rows of a step.
    pub rows: usize,
    /// Workgroups that share the columns of a tile of the result.
    pub splits: usize,
    /// Lanes of a subgroup: a multiple of 4.
    pub subgroup_size: u32,
    /// The device's cooperative matrices lie in lanes as this kernel has them.
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

impl RegisterGemmSpec {
    fn fragment(&self) -> Fragment {
        Fragment { side: self.tile.fragment, subgroup_size: self.subgroup_size }
    }

    /// Whether products of gate and up can become `Halves`: a whole row of them, in whole blocks.
    pub fn makes_halves(product: &Product) -> bool {
        let whole = product.output_first == 0 && product.output_rows().is_multiple_of(HALVES_BLOCK);
        whole && product.act_mul.is_some()
    }

    pub fn lanes(&self) -> usize {
        self.tile.subgroups * self.subgroup_size as usize
    }

    /// Stages of the whole matrix.
    pub fn stages(&self) -> usize {
        self.product.layout.cols.div_ceil(STAGE)
    }

    /// Counters that splits need: one a tile of the result.
    pub fn arrivals_len(&self) -> usize {
        let [across, down, _] = self.workgroups();
        if self.splits > 1 { across * down } else { 0 }
    }

    /// f32 elements that the splits leave.
    pub fn partials_len(&self) -> usize {
        self.arrivals_len() * self.splits * self.tile.step_rows * self.tile.matrix_rows()
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let roles =
            [Role::Step, Role::Weights, if self.halves_out { Role::Encoded } else { Role::Output }, Role::Codes];
        let parts = (self.splits > 1).then_some([Role::ExchangedSums, Role::Arrivals]);
        let bias = self.product.bias.then_some(Role::Bias);
        let factor = self.halves_out.then_some(Role::ProductFactor);
        bindings(roles.into_iter().chain(bias).chain(factor).chain(parts.into_iter().flatten()))
    }

    /// Neighbouring workgroups take the same weights, so that these come from memory once.
    pub fn workgroups(&self) -> [usize; 3] {
        let matrix_rows = self.product.layout.rows;
        [self.rows.div_ceil(self.tile.step_rows), matrix_rows.div_ceil(self.tile.matrix_rows()), self.splits]
    }

    pub(crate) fn wgsl(&self) -> String {
        let tile = &self.tile;
        assert!(matches!(tile.panel, 64 | 128), "a panel is 64 or 128 columns, found {}", tile.panel);
        assert!(matches!(tile.fragment, 8 | 16), "fragments are of 8 or 16 rows, found {}", tile.fragment);
        assert!(tile.is_whole(), "subgroups own whole blocks of {BLOCK} rows, found {tile:?}");
        assert!(self.subgroup_size as usize <= ROW_LANES * tile.fragment, "no more lanes than a fragment has places");
        assert!((1..=self.stages()).contains(&self.splits), "each split has a stage");
        assert!(!self.halves_out || Self::makes_halves(&self.product), "whole blocks of products: {:?}", self.product);
        let subgroup_matrix_rows = tile.fragment * tile.fragments;
        let values = self
            .product
            .values(ActivationFormat::Halves(self.product.input))
            .size("STEP_ROWS", tile.step_rows)
            .size("MATRIX_ROWS", tile.matrix_rows())
            .size("SUBGROUP_MATRIX_ROWS", subgroup_matrix_rows)
            .size("ROW_WORDS", tile.row_words())
            .size("STAGES", self.stages())
            .size("SPLITS", self.splits)
            .size("STEP_TILES", self.rows.div_ceil(tile.step_rows))
            .size("WORKGROUP", self.lanes())
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("SUBGROUPS", tile.subgroups)
            .size("FRAGMENT_WORDS", tile.fragment * tile.fragment / 2)
            .size("SUBGROUP_SUMS", tile.step_rows * subgroup_matrix_rows)
            .flag("SPLIT", self.splits > 1)
            .text("WORKGROUP_SIZE", self.lanes())
            .text("DECLARATIONS", declarations(&self.bindings()))
            .text("MULTIPLY", body::multiply(self))
            .text("EXCHANGE", body::exchange(self))
            .text("RESULTS", body::results(self));
        let values = if self.halves_out {
            let output = ActivationFormat::Halves(self.product.input);
            let factor_at = output.factor_at(self.product.output_rows());
            values.flag("HALVES_OUT", true).size("HALVES_BLOCK", HALVES_BLOCK).size("OUTPUT_FACTOR_AT", factor_at)
        } else {
            values
        };
        EXTENSIONS.to_owned() + &render(include_str!("wgsl/register_gemm.wgsl"), &values)
    }
}

/// The kernel in plain loops: writes `output` (n_rows, output_stride), in f32 whatever the kernel makes of it.
pub fn twin(spec: &RegisterGemmSpec, inputs: &GemmInputs, output: &mut [f32]) {
    spec.product.twin(ActivationFormat::Halves(spec.product.input), true, inputs, output);
}
