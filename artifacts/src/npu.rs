//! NPU programs: the records of the NPU section and of the NPU's steps, and their check.
//!
//! ```text
//! NpuSection ─ check ─► instruction ─► shims (registers) ─► transfers, all inside the buffers of their command
//! ```
//!
//! A program is a matrix product of fixed size; a product is a matrix of the model with the program that multiplies by it and the
//! place of its weights in a section of NPU weights. The check covers what a stream may write, not what its program computes.

pub mod cdo;
mod check;
pub mod control;
pub mod instruction;
pub mod pdi;
pub mod registers;
mod schedule;
pub mod shims;
pub mod task;
pub mod tile;
pub mod xclbin;

use serde::{Deserialize, Serialize};

use crate::kernels::TargetKernels;

pub use instruction::{Instruction, StreamError, decode, encode_instructions};
pub use schedule::{DispatchPart, NpuSchedule, NpuScheduleEntry, NpuWorkItem};
pub use shims::{ShimChannel, ShimCommand, shim_commands};
pub use task::ShimTask;
pub use tile::{Direction, FIRST_CORE_ROW, Tile, TileKind};

pub(crate) use check::{check, check_steps};

/// The products that an NPU computes for the model, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuSection {
    /// The device that the programs are for: `npu1` is XDNA1.
    pub device: String,
    /// The decision for each kind of work, in the order of a step.
    pub decisions: Vec<NpuDecision>,
    /// Programs, each shape once.
    pub programs: Vec<NpuProgram>,
    /// Matrices that a program multiplies by, by slice and offset.
    pub products: Vec<NpuProduct>,
    /// Bytes of each section of NPU weights.
    pub slices: Vec<u64>,
    /// The steps in which the NPU takes part, for targets of the kernels section: a section of their own in the file.
    #[serde(skip)]
    pub steps: Vec<NpuSteps>,
}

/// Length, and alignment of the mapping, of the heap for instruction streams and control images on Phoenix and Hawk Point.
pub const HEAP_BYTES: u64 = 64 << 20;

impl NpuSection {
    /// How often each of a program's commands runs the NPU in a step of `rows` rows, which a reader has checked.
    pub fn runs(&self, rows: u32, commands: &[NpuCommand]) -> Vec<u32> {
        let program = |command: &NpuCommand| &self.programs[self.products[command.product as usize].program as usize];
        commands.iter().map(|command| program(command).runs_of(rows).unwrap_or(1)).collect()
    }

    /// Most runs of a command in a step: so many have buffers of their own.
    pub fn most_runs(&self) -> u32 {
        let of_steps = |steps: &NpuSteps| {
            let programs = steps.kernels.programs.iter().zip(&steps.commands);
            programs.flat_map(|(program, commands)| self.runs(program.rows, commands)).max()
        };
        self.steps.iter().filter_map(of_steps).max().unwrap_or(1)
    }

    /// System memory that the NPU needs in addition to the GPU's: name, bytes and purpose of each buffer; empty without a product. `runs`: most runs of
    /// a command in a step ([`NpuSection::most_runs`]).
    pub fn memory(&self, runs: u32) -> Vec<(&'static str, u64, &'static str)> {
        if self.products.is_empty() {
            return Vec::new();
        }
        let longest = |argument: usize| {
            let bytes = self.programs.iter().filter_map(|program| program.arguments.get(argument)).map(|one| one.bytes);
            u64::from(runs) * bytes.max().unwrap_or(0)
        };
        vec![
            ("NPU weights", self.slices.iter().sum(), "a second copy of weights, as the NPU's programs read them"),
            (
                "NPU activations",
                longest(ACTIVATIONS),
                "INT8 rows of the longest program, for each of its runs in a step",
            ),
            ("NPU outputs", longest(OUTPUTS), "bf16 rows of the longest program, for each of its runs in a step"),
            ("NPU heap", HEAP_BYTES, "instruction streams and control images, at the device's own addresses"),
        ]
    }
}

/// Programs of a target that replace the target's own where an NPU is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuSteps {
    /// Their dispatches, and only the kernels of these. Name and requirements are those of the target.
    pub kernels: TargetKernels,
    /// One list of commands for each program, in order.
    pub commands: Vec<Vec<NpuCommand>>,
    /// The order of work of each program, in two queues: in a section of their own in the file.
    #[serde(skip)]
    pub schedules: Vec<NpuSchedule>,
}

impl NpuSteps {
    /// The schedule of the program of this index, with `runs` of its commands ([`NpuSection::runs`]): in turns where the file has none.
    pub fn schedule(&self, index: usize, runs: &[u32]) -> NpuSchedule {
        let in_turns = || NpuSchedule::in_turns(&self.kernels.programs[index], &self.commands[index], runs);
        self.schedules.get(index).cloned().unwrap_or_else(in_turns)
    }
}

/// A product that the NPU computes between two dispatches. A dispatch before it writes the activations to the arena in the NPU
/// program's layout, and one after it reads the outputs there. Where the step has more rows than the program, the program runs several times
/// ([`NpuProgram::runs_of`]): activations and outputs of each run follow those of the run before.
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
    /// Name of the work, such as `qkv` or `ffn`.
    pub work: String,
    /// Whether its products have programs.
    pub on_npu: bool,
    /// Whether the user decided, and not the estimate.
    pub overruled: bool,
    /// The reason, with figures, which are estimates.
    pub reason: String,
}

/// A matrix product for the NPU: `epilogue(activations · weightsᵀ)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuProgram {
    /// Columns and depth without padding, and the activation.
    pub name: String,
    /// Padded shape.
    pub shape: NpuShape,
    /// Activation that combines gate and up, in small letters; `None`: sums are only scaled.
    pub activation: Option<String>,
    /// Buffers of the host in the order of the command.
    pub arguments: Vec<NpuArgument>,
    /// The firmware's instructions for one command.
    pub instructions: Vec<u8>,
    /// The image that configures the array (PDI), with or without programs for its cores ([`NpuProgram::runs_cores`]); empty if there is none.
    pub control: Vec<u8>,
    /// Use of the fullest tile of each kind.
    pub uses: Vec<NpuTileUse>,
    /// Estimated cost.
    pub estimate: NpuEstimate,
}

/// Most runs of a program for one product of a step.
pub const MAX_RUNS: u32 = 8;

impl NpuProgram {
    /// How often a step of `rows` rows runs the program for a product, each time for the rows behind those before: once where the program has as many rows or
    /// more. `None`: the rows are no multiple of the program's, or more than [`MAX_RUNS`] times as many.
    pub fn runs_of(&self, rows: u32) -> Option<u32> {
        match rows {
            rows if rows <= self.shape.rows => Some(1),
            rows if !rows.is_multiple_of(self.shape.rows) => None,
            rows => Some(rows / self.shape.rows).filter(|runs| *runs <= MAX_RUNS),
        }
    }

    /// Whether the control image starts cores: one that this project makes configures the array without programs for them.
    pub fn runs_cores(&self) -> bool {
        control::runs_cores(&self.control, self.shape.columns)
    }
}

/// The shape of a program, with its padding, and a core's share. `kernels/src/npu/tile.rs` draws the layouts that follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuShape {
    /// Rows of the activations.
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
    /// Values of k that a core processes at a time.
    pub core_depth: u32,
}

/// A buffer of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuArgument {
    /// Content of the buffer.
    pub name: String,
    /// Length of the buffer.
    pub bytes: u64,
}

/// Resources of the fullest tile of a kind: used, and available.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuTileUse {
    /// Kind of the tile, such as `core tile`.
    pub tile: String,
    /// Bytes of data memory: used, available.
    pub memory_bytes: [u32; 2],
    /// DMA channels: used into the tile, used out of it, available in each direction.
    pub channels: [u32; 3],
    /// DMA descriptors: used, available.
    pub descriptors: [u32; 2],
    /// Locks: used, available.
    pub locks: [u32; 2],
}

/// Estimated cost of a program, from a model of the array, not measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NpuEstimate {
    /// Clock cycles of the array.
    pub cycles: u64,
    /// Highest clock rate of the array and the lowest of its usual ones.
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
    /// Index of the layer; `None`: outside the layers.
    pub layer: Option<u32>,
    /// Index into [`NpuSection::programs`].
    pub program: u32,
    /// Columns of weights without padding; gate and up together.
    pub cols: u32,
    /// Values of k without padding.
    pub depth: u32,
    /// Index of the section of NPU weights.
    pub slice: u32,
    /// Offset in the section, a multiple of [`crate::plan::BUFFER_ALIGN`].
    pub offset_bytes: u64,
    /// Length in bytes, equal to the program's argument.
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
