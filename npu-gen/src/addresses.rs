//! Gives the parts of a lowered design their places in the tiles: addresses of buffers, numbers of locks and of DMA descriptors.
//!
//! ```text
//! core's data memory    0 stack │ objects and buffers, each from a multiple of 32 bytes │ the epilogue's tables, at the end
//! memory tile           objects
//! locks                 0, 1, … of each tile, in the order of the lowering
//! descriptors           0, 1, … of each tile; in a memory tile from 0 for even channels, from 24 for odd ones
//! ```

use std::collections::BTreeMap;

use unicorn_kernels::npu::tile::{CoreTile, Epilogue};

use crate::design::{Body, Core, CoreOp, Design, Work};
use crate::device::{STACK_BYTES, TABLE_BYTES, Tile, TileKind, descriptors_of_parity, limits};
use crate::lower::Lowered;

/// Start of a buffer: a core loads and stores 32 bytes at a time.
const ALIGN_BYTES: usize = 32;

/// Places of the parts of a lowered design.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Offset of each of [`Lowered::memories`] in its tile's memory, in bytes.
    pub memories: Vec<usize>,
    /// Offset of each of [`Design::buffers`] in its core's memory, in bytes.
    pub buffers: Vec<usize>,
    /// Number of each of [`Lowered::locks`] in its tile.
    pub locks: Vec<u32>,
    /// Numbers of the descriptors of each of [`Lowered::channels`]' chains in its tile.
    pub descriptors: Vec<Vec<u32>>,
}

/// A tile whose buffers do not fit with the gaps between them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("buffers of the {tile} end at byte {end}, expected at most {most}")]
pub struct MemoryFull {
    /// The tile.
    pub tile: Tile,
    /// Where the last buffer ends.
    pub end: usize,
    /// Bytes that the tile has for them.
    pub most: usize,
}

/// Bytes of a core's memory that hold neither objects nor buffers: the stack, and tables of an external epilogue or of the exponential
/// of attention's softmax.
pub fn reserved_bytes(work: &Work, core: &Core) -> usize {
    fn has_softmax(steps: &[CoreOp]) -> bool {
        steps.iter().any(|step| match step {
            CoreOp::Forever(body) | CoreOp::Repeat { body, .. } => has_softmax(body),
            CoreOp::Run(body) => matches!(body, Body::Softmax { .. }),
            CoreOp::Acquire { .. } | CoreOp::Release { .. } => false,
        })
    }
    match work {
        Work::Product(tile) => product_reserved_bytes(tile),
        Work::Attention(_) => STACK_BYTES + if has_softmax(&core.program) { TABLE_BYTES } else { 0 },
        Work::Passthrough => STACK_BYTES,
    }
}

/// The same for a core of a matrix product.
pub fn product_reserved_bytes(core: &CoreTile) -> usize {
    STACK_BYTES
        + match core.epilogue {
            Epilogue::Scale => 0,
            Epilogue::ActMul(_) => TABLE_BYTES,
        }
}

/// Gives everything its place.
///
/// # Errors
/// The first tile whose memory is not enough.
pub fn addresses(design: &Design, lowered: &Lowered) -> Result<Addresses, MemoryFull> {
    let (memories, buffers) = place(design, lowered)?;
    let mut numbers: BTreeMap<Tile, u32> = BTreeMap::new();
    let locks = lowered.locks.iter().map(|lock| next(numbers.entry(lock.tile).or_default())).collect();
    let mut numbers: BTreeMap<(Tile, u32), u32> = BTreeMap::new();
    let descriptors = lowered.channels.iter().map(|channel| {
        let kind = channel.tile.kind();
        let parity = if kind == TileKind::Memory { channel.index % 2 } else { 0 };
        let first = parity * descriptors_of_parity(kind);
        let number = numbers.entry((channel.tile, parity)).or_insert(first);
        channel.chain.iter().map(|_| next(number)).collect()
    });
    Ok(Addresses { memories, buffers, locks, descriptors: descriptors.collect() })
}

fn next(number: &mut u32) -> u32 {
    *number += 1;
    *number - 1
}

/// A buffer to be placed: of the lowering or of the design, and its index there.
#[derive(Clone, Copy)]
enum Part {
    Memory(usize),
    Buffer(usize),
}

/// Offsets of the buffers of the lowering, and of the design.
fn place(design: &Design, lowered: &Lowered) -> Result<(Vec<usize>, Vec<usize>), MemoryFull> {
    let memories = lowered.memories.iter().enumerate().map(|(index, one)| (one.tile, one.bytes, Part::Memory(index)));
    let buffers = design.buffers.iter().enumerate();
    let buffers = buffers.map(|(index, one)| (one.tile, one.len * one.element.bytes(), Part::Buffer(index)));
    let mut parts: Vec<(Tile, usize, Part)> = memories.chain(buffers).collect();
    // What leaves a gap behind it comes last: as few gaps as possible.
    parts.sort_by_key(|(_, bytes, _)| !bytes.is_multiple_of(ALIGN_BYTES));
    let mut ends: BTreeMap<Tile, usize> = BTreeMap::new();
    let mut places = (vec![0; lowered.memories.len()], vec![0; design.buffers.len()]);
    for (tile, bytes, part) in parts {
        let stack = if tile.kind() == TileKind::Core { STACK_BYTES } else { 0 };
        let end = ends.entry(tile).or_insert(stack);
        let at = end.next_multiple_of(ALIGN_BYTES);
        *end = at + bytes;
        match part {
            Part::Memory(index) => places.0[index] = at,
            Part::Buffer(index) => places.1[index] = at,
        }
    }
    for (tile, end) in ends {
        let core = design.cores.iter().find(|core| core.tile == tile);
        let tables = core.map_or(0, |core| reserved_bytes(&design.work, core) - STACK_BYTES);
        let most = limits(tile.kind()).memory_bytes - tables;
        if end > most {
            return Err(MemoryFull { tile, end, most });
        }
    }
    Ok(places)
}
