//! NPU programs: the records of the NPU section and of the NPU's steps, and the check of what it says.
//!
//! ```text
//! NpuSection ─ check ─► instruction ─► shims (registers) ─► transfers, all inside of the buffers of their command
//! ```
//!
//! A program is a matrix product of fixed size; a product is a matrix of the model with the program that multiplies by it and the place of its
//! weights in a section of NPU weights. The check covers what a stream may write, not what its program computes.

mod check;
pub mod instruction;
pub mod registers;
pub mod shims;
pub mod task;
pub mod tile;

use serde::{Deserialize, Serialize};

use crate::kernels::TargetKernels;

pub use instruction::{Instruction, StreamError, decode, encode_instructions};
pub use shims::{ShimChannel, ShimCommand, shim_commands};
pub use task::ShimTask;
pub use tile::{Direction, FIRST_CORE_ROW, Tile, TileKind};

pub(crate) use check::{check, check_steps};

/// What an NPU computes for the model, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuSection {
    /// The device that the programs are for: `npu1` is XDNA1.
    pub device: String,
    /// What was decided of each kind of work, in the order of a step.
    pub decisions: Vec<NpuDecision>,
    /// Each shape once.
    pub programs: Vec<NpuProgram>,
    /// Matrices that a program multiplies by, by slice and offset.
    pub products: Vec<NpuProduct>,
    /// Bytes of each section of NPU weights.
    pub slices: Vec<u64>,
    /// The steps in which the NPU takes part, for targets of the kernels section: a section of their own in the file.
    #[serde(skip)]
    pub steps: Vec<NpuSteps>,
}

/// Length of the heap of an NPU of Phoenix and Hawk Point, in which instruction streams and control images lie, and the alignment of its mapping.
pub const HEAP_BYTES: u64 = 64 << 20;

impl NpuSection {
    /// What the NPU needs of system memory beside what the GPU needs: name, bytes and purpose of each buffer; nothing without a product.
    pub fn memory(&self) -> Vec<(&'static str, u64, &'static str)> {
        if self.products.is_empty() {
            return Vec::new();
        }
        let longest = |argument: usize| {
            self.programs.iter().filter_map(|program| program.arguments.get(argument)).map(|one| one.bytes).max()
        };
        vec![
            ("NPU weights", self.slices.iter().sum(), "a second copy of weights, as the NPU's programs read them"),
            ("NPU activations", longest(ACTIVATIONS).unwrap_or(0), "INT8 rows of the longest program"),
            ("NPU outputs", longest(OUTPUTS).unwrap_or(0), "bf16 rows of the longest program"),
            ("NPU heap", HEAP_BYTES, "instruction streams and control images, at the device's own addresses"),
        ]
    }
}

/// Programs of a target that replace its own where an NPU is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuSteps {
    /// Their dispatches, and the kernels of these alone. Name and requirements are those of the target.
    pub kernels: TargetKernels,
    /// One list a program, in order.
    pub commands: Vec<Vec<NpuCommand>>,
}

/// A product that the NPU computes between two dispatches. A dispatch before it leaves the activations in the arena, as the NPU program reads
/// them, and one behind it reads the outputs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuCommand {
    /// Index of the dispatch before which it runs: not the first, and each later than the one before.
    pub before_dispatch: u32,
    /// Index into [`NpuSection::products`].
    pub product: u32,
    /// Offset of the product's activations in the arena.
    pub activations_offset_bytes: u64,
    /// Offset of the product's outputs in the arena.
    pub outputs_offset_bytes: u64,
}

/// Whether the NPU does a kind of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuDecision {
    /// Such as `qkv` or `ffn`.
    pub work: String,
    /// Whether its products have programs.
    pub on_npu: bool,
    /// Whether the user decided, and not the estimate.
    pub overruled: bool,
    /// With the figures, which are estimates.
    pub reason: String,
}

/// A matrix product for the NPU: `epilogue(activations · weightsᵀ)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuProgram {
    /// Columns and depth without padding, and the activation.
    pub name: String,
    /// Padded shape.
    pub shape: NpuShape,
    /// Activation that multiplies gate and up, in small letters; `None`: sums are only scaled.
    pub activation: Option<String>,
    /// Buffers of the host in the order of the command.
    pub arguments: Vec<NpuArgument>,
    /// What the firmware does for one command.
    pub instructions: Vec<u8>,
    /// The image that configures the array (PDI); empty: it was not made.
    pub control: Vec<u8>,
    /// Use of the fullest tile of each kind.
    pub uses: Vec<NpuTileUse>,
    /// What it would cost.
    pub estimate: NpuEstimate,
}

/// The shape of a program, with its padding, and a core's share. `kernels/src/npu/tile.rs` draws the layouts that follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuShape {
    /// Rows of activations.
    pub rows: u32,
    /// Columns of weights; gate and up together.
    pub cols: u32,
    /// Values of k.
    pub depth: u32,
    /// Columns of the array.
    pub columns: u32,
    /// Rows of a core's tile.
    pub core_rows: u32,
    /// Columns of a core's tile.
    pub core_cols: u32,
    /// Values of k that a core takes at a time.
    pub core_depth: u32,
}

/// A buffer of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuArgument {
    /// What it holds.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// Use of the fullest tile of a kind, and what such a tile has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuTileUse {
    /// Such as `core tile`.
    pub tile: String,
    /// Bytes of data memory: used, there.
    pub memory_bytes: [u32; 2],
    /// DMA channels: used into the tile, used out of it, there in each direction.
    pub channels: [u32; 3],
    /// DMA descriptors: used, there.
    pub descriptors: [u32; 2],
    /// Locks: used, there.
    pub locks: [u32; 2],
}

/// What a program would cost: from a model of the array, not measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuEstimate {
    /// Clock cycles of the array.
    pub cycles: u64,
    /// Clock rates that the array has at most and, of its usual ones, at least.
    pub clock_hz: [u64; 2],
    /// Share of the matrix units' slots that do a product of the model.
    pub busy: f32,
    /// Bytes through all shim tiles.
    pub shim_bytes: u64,
}

impl NpuEstimate {
    /// Seconds at the higher and at the lower clock.
    pub fn seconds(&self) -> [f64; 2] {
        self.clock_hz.map(|hz| self.cycles as f64 / hz as f64)
    }
}

/// A matrix of the model that the NPU multiplies by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuProduct {
    /// Names of the source tensors, joined.
    pub name: String,
    /// `None`: of no layer.
    pub layer: Option<u32>,
    /// Index into [`NpuSection::programs`].
    pub program: u32,
    /// Columns of weights without padding; gate and up together.
    pub cols: u32,
    /// Values of k without padding.
    pub depth: u32,
    /// Index of the section of NPU weights.
    pub slice: u32,
    /// Within the section, a multiple of [`crate::plan::BUFFER_ALIGN`].
    pub offset_bytes: u64,
    /// As the program's argument of this name has.
    pub len_bytes: u64,
}

/// Index of the activations among a program's arguments.
pub const ACTIVATIONS: usize = 0;
/// Index of the weights.
pub const WEIGHTS: usize = 1;
/// Index of the outputs.
pub const OUTPUTS: usize = 2;
/// Buffers of a command.
pub const ARGUMENTS: usize = 3;
