//! Lowers FIFOs to the hardware: buffers, locks, DMA channels with cyclic chains of descriptors, and streams between channels.
//!
//! Each part of an object has two locks: one counts free buffers, one full ones. The producer of a part takes from the first and
//! adds to the second; the consumer does the reverse. Each part of a joined or divided object has its own locks, so that parts do
//! not wait for each other.

use std::collections::BTreeMap;

pub use unicorn_artifact::npu::Direction;

use crate::design::{Design, FifoId};
use crate::device::{Tile, TileKind};

/// Index into [`Lowered::locks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(pub usize);

/// Index into [`Lowered::memories`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(pub usize);

/// Index into [`Lowered::channels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub usize);

/// One buffer of a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Tile that holds it.
    pub tile: Tile,
    /// Length in bytes.
    pub bytes: usize,
}

/// A semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Tile that holds it.
    pub tile: Tile,
    /// Its value at the start.
    pub initial: i32,
}

/// A buffer descriptor: a run of bytes, guarded by locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Buffer of the run.
    pub memory: MemoryId,
    /// Offset of the first byte in the buffer.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
    /// Lock that is decremented before the run.
    pub acquire: LockId,
    /// Lock that is incremented after the run.
    pub release: LockId,
}

/// A DMA channel. Channels of shim tiles have no chain: the host gives them tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Tile that holds it.
    pub tile: Tile,
    /// Direction of the channel.
    pub direction: Direction,
    /// Number among the tile's channels of this direction.
    pub index: u32,
    /// Descriptors in turn, without end.
    pub chain: Vec<Descriptor>,
}

/// A circuit of the stream switches: everything that `from` sends arrives at each of `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The FIFO that it belongs to.
    pub fifo: FifoId,
    /// A channel out of a tile.
    pub from: ChannelId,
    /// Channels into tiles.
    pub to: Vec<ChannelId>,
}

/// A core's end of a FIFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorePort {
    /// Its buffers, used in turn.
    pub memories: Vec<MemoryId>,
    /// Lock that an acquire decrements.
    pub acquire: LockId,
    /// Lock that a release increments.
    pub release: LockId,
}

/// A lowered design: its buffers, locks, channels and streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lowered {
    /// Buffers of FIFOs.
    pub memories: Vec<Memory>,
    /// Locks.
    pub locks: Vec<Lock>,
    /// DMA channels.
    pub channels: Vec<Channel>,
    /// Streams.
    pub flows: Vec<Flow>,
    /// Ends of FIFOs in cores.
    pub ports: BTreeMap<(FifoId, Tile), CorePort>,
}

impl Lowered {
    /// The shim channel of a FIFO that begins or ends there.
    pub fn shim_channel(&self, fifo: FifoId) -> Option<ChannelId> {
        let flow = self.flows.iter().find(|flow| flow.fifo == fifo)?;
        let is_shim = |id: &&ChannelId| self.channels[id.0].tile.kind() == TileKind::Shim;
        std::iter::once(&flow.from).chain(&flow.to).find(is_shim).copied()
    }
}

/// Gives every FIFO its buffers, locks, channels and stream.
pub fn lower(design: &Design) -> Lowered {
    let mut lowered = Lowered::default();
    // Chains of the FIFO ends in tiles with memory; shim ends have none.
    let mut chains: BTreeMap<(FifoId, Tile), Vec<Descriptor>> = BTreeMap::new();
    for link in &design.links {
        lowered.link(design, &link.inputs, &link.outputs, &mut chains);
    }
    for (index, fifo) in design.fifos.iter().enumerate() {
        let id = FifoId(index);
        let ends = std::iter::once((fifo.producer, true)).chain(fifo.consumers.iter().map(|tile| (*tile, false)));
        for (tile, produces) in ends.filter(|(tile, _)| tile.kind() != TileKind::Shim) {
            chains.entry((id, tile)).or_insert_with(|| lowered.end(id, tile, fifo.depth, fifo.bytes(), produces));
        }
        let mut channel = |tile: Tile, direction| {
            let of_tile = |channel: &&Channel| channel.tile == tile && channel.direction == direction;
            let index = lowered.channels.iter().filter(of_tile).count() as u32;
            let chain = chains.get(&(id, tile)).cloned().unwrap_or_default();
            lowered.channels.push(Channel { tile, direction, index, chain });
            ChannelId(lowered.channels.len() - 1)
        };
        let from = channel(fifo.producer, Direction::Out);
        let to = fifo.consumers.iter().map(|tile| channel(*tile, Direction::In)).collect();
        lowered.flows.push(Flow { fifo: id, from, to });
    }
    lowered
}

impl Lowered {
    fn memory(&mut self, tile: Tile, bytes: usize) -> MemoryId {
        self.memories.push(Memory { tile, bytes });
        MemoryId(self.memories.len() - 1)
    }

    /// Locks of one part: (free buffers, full buffers).
    fn pair(&mut self, tile: Tile, depth: usize) -> (LockId, LockId) {
        self.locks.push(Lock { tile, initial: depth as i32 });
        self.locks.push(Lock { tile, initial: 0 });
        (LockId(self.locks.len() - 2), LockId(self.locks.len() - 1))
    }

    /// The end of a FIFO that no link shares: buffers, and in a core its port. Returns the DMA channel's chain.
    fn end(&mut self, fifo: FifoId, tile: Tile, depth: usize, bytes: usize, produces: bool) -> Vec<Descriptor> {
        let memories: Vec<MemoryId> = (0..depth).map(|_| self.memory(tile, bytes)).collect();
        let (free, full) = self.pair(tile, depth);
        let (core, dma) = if produces { ((free, full), (full, free)) } else { ((full, free), (free, full)) };
        let whole = |memory| Descriptor { memory, offset: 0, len: bytes, acquire: dma.0, release: dma.1 };
        let chain = memories.iter().map(|memory| whole(*memory)).collect();
        if tile.kind() == TileKind::Core {
            self.ports.insert((fifo, tile), CorePort { memories, acquire: core.0, release: core.1 });
        }
        chain
    }

    /// The buffers of a memory tile that several FIFOs share.
    fn link(
        &mut self,
        design: &Design,
        inputs: &[FifoId],
        outputs: &[FifoId],
        chains: &mut BTreeMap<(FifoId, Tile), Vec<Descriptor>>,
    ) {
        let (whole, parts) = if inputs.len() > 1 { (outputs[0], inputs) } else { (inputs[0], outputs) };
        let tile = design.fifo(outputs[0]).producer;
        let depth = design.fifo(whole).depth;
        let memories: Vec<MemoryId> = (0..depth).map(|_| self.memory(tile, design.fifo(whole).bytes())).collect();
        let pairs: Vec<(LockId, LockId)> = parts.iter().map(|_| self.pair(tile, depth)).collect();
        let mut offset = 0;
        let mut places = Vec::new();
        for part in parts {
            places.push((offset, design.fifo(*part).bytes()));
            offset += design.fifo(*part).bytes();
        }
        let descriptor = |memory, part: usize, fills: bool| {
            let ((offset, len), (free, full)) = (places[part], pairs[part]);
            let (acquire, release) = if fills { (free, full) } else { (full, free) };
            Descriptor { memory, offset, len, acquire, release }
        };
        let whole_fills = inputs.contains(&whole);
        let all = |memory: &MemoryId| {
            let memory = *memory;
            (0..parts.len()).map(move |part| (memory, part)).collect::<Vec<_>>()
        };
        let chain = memories.iter().flat_map(all).map(|(memory, part)| descriptor(memory, part, whole_fills));
        chains.insert((whole, tile), chain.collect());
        for (index, part) in parts.iter().enumerate() {
            let chain = memories.iter().map(|memory| descriptor(*memory, index, !whole_fills)).collect();
            chains.insert((*part, tile), chain);
        }
    }
}
