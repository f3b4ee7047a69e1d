//! Places in the NPU's array.

/// Kind of a tile of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TileKind {
    /// DMA to and from DRAM; it has no memory of its own.
    Shim,
    /// Memory shared by a column.
    Memory,
    /// A processor with its memory.
    Core,
}

impl TileKind {
    /// Name of the kind in messages.
    pub fn name(self) -> &'static str {
        match self {
            TileKind::Shim => "shim tile",
            TileKind::Memory => "memory tile",
            TileKind::Core => "core tile",
        }
    }
}

/// The lowest row of cores.
pub const FIRST_CORE_ROW: u32 = 2;

/// A place in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tile {
    /// Column, from 0.
    pub col: u32,
    /// Row, from 0: shim, memory, then cores.
    pub row: u32,
}

impl Tile {
    /// The shim tile of a column.
    pub fn shim(col: u32) -> Tile {
        Tile { col, row: 0 }
    }

    /// The memory tile of a column.
    pub fn memory(col: u32) -> Tile {
        Tile { col, row: 1 }
    }

    /// The core of array row `array_row`, from 0.
    pub fn core(col: u32, array_row: u32) -> Tile {
        Tile { col, row: FIRST_CORE_ROW + array_row }
    }

    /// Kind of the tile.
    pub fn kind(self) -> TileKind {
        match self.row {
            0 => TileKind::Shim,
            1 => TileKind::Memory,
            _ => TileKind::Core,
        }
    }
}

impl std::fmt::Display for Tile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {})", self.kind().name(), self.col, self.row)
    }
}

/// Direction of a DMA channel, in the hardware's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Stream to memory.
    In,
    /// Memory to stream.
    Out,
}
