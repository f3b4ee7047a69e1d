//! Limits of the device, each with its source.
//!
//! `npu1` is the NPU of Ryzen 7040 and 8040 (Phoenix, Hawk Point): XDNA1, cores of the AIE2 (AIE-ML) architecture.
//!
//! ```text
//! row 5  core  core  core  core
//! row 4  core  core  core  core      64 KiB of data memory each
//! row 3  core  core  core  core
//! row 2  core  core  core  core
//! row 1  mem   mem   mem   mem       512 KiB each
//! row 0  shim  shim  shim  shim      DMA to and from DRAM
//!        0     1     2     3
//! ```
//!
//! Sources: AM020 (AIE-ML architecture manual) for memories, DMA and streams; `AIETargetModel.h`, `AIEDialect.cpp` and `AIEXDialect.cpp` of
//! mlir-aie for the limits that its verifiers enforce; UG1529 for the shapes of the matrix unit; the table of clocks in Linux's amdxdna driver.

pub use unicorn_artifact::npu::task::WORD_BYTES;
pub use unicorn_artifact::npu::{FIRST_CORE_ROW, Tile, TileKind};

/// Columns with DMA to DRAM. The array has a fifth column without.
pub const COLUMNS: u32 = 4;
/// Rows of the array.
pub const ROWS: u32 = 6;
/// Bytes of a core's stack, which is in its data memory (mlir-aie's default).
pub const STACK_BYTES: usize = 1024;
/// Bytes of the tables by which an activation computes its exponential: those of mlir-aie for AIE2 are four of 512 values of 16 bits.
pub const TABLE_BYTES: usize = 4 << 10;
/// Bytes of a core's program memory.
pub const PROGRAM_BYTES: usize = 16 << 10;
/// Largest value of a lock: semaphores of 6 bits.
pub const LOCK_MAX: i32 = 63;
/// Iterations of a shim descriptor: 6 bits.
pub const ITERATION_MAX: usize = 64;
/// Most buffers of one command: amdxdna copies a command of 19 words.
pub const ARGUMENTS_MAX: usize = 7;
/// Most bytes of such a buffer: offsets into it have 32 bits.
pub const ARGUMENT_BYTES_MAX: usize = u32::MAX as usize;
/// Bytes a cycle of one stream.
pub const STREAM_BYTES_PER_CYCLE: usize = 4;
/// Multiplications of one core and cycle, INT8 by INT4 (4×16×8).
pub const MACS_PER_CYCLE: usize = 512;
/// Bytes that a core loads in a cycle (two ports of 256 bits).
pub const LOAD_BYTES_PER_CYCLE: usize = 64;
/// Bytes that a core stores in a cycle (one port of 256 bits).
pub const STORE_BYTES_PER_CYCLE: usize = 32;
/// Clock of the array in Hz at the highest power state, and at the one below it that the estimate names as the lower end.
pub const CLOCK_HZ: [f64; 2] = [1.6e9, 0.8e9];

/// Resources of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of data memory.
    pub memory_bytes: usize,
    /// DMA channels into the tile, and the same number out of it.
    pub channels: u32,
    /// DMA buffer descriptors.
    pub descriptors: u32,
    /// Locks.
    pub locks: u32,
    /// Largest count of a dimension except the outermost.
    pub wrap_max: usize,
    /// Largest stride in words.
    pub stride_max: usize,
    /// Dimensions of a descriptor, without iteration.
    pub dimensions: usize,
}

/// Resources of a tile of this kind.
pub fn limits(kind: TileKind) -> Limits {
    match kind {
        TileKind::Core => Limits {
            memory_bytes: 64 << 10,
            channels: 2,
            descriptors: 16,
            locks: 16,
            wrap_max: 255,
            stride_max: 1 << 13,
            dimensions: 3,
        },
        TileKind::Memory => Limits {
            memory_bytes: 512 << 10,
            channels: 6,
            descriptors: 48,
            locks: 64,
            wrap_max: 1023,
            stride_max: 1 << 17,
            dimensions: 4,
        },
        TileKind::Shim => Limits {
            memory_bytes: 0,
            channels: 2,
            descriptors: 16,
            locks: 16,
            wrap_max: 1023,
            stride_max: 1 << 20,
            dimensions: 3,
        },
    }
}

/// Descriptors that channels of one parity can use: a memory tile has 24 for even channels and 24 for odd ones.
pub fn descriptors_of_parity(kind: TileKind) -> u32 {
    match kind {
        TileKind::Memory => 24,
        _ => limits(kind).descriptors,
    }
}
