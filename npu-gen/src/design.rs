//! A design: which objects move between which tiles, the programs of the cores, and the steps of the host.
//!
//! Nothing here has an address, a lock or a channel: [`crate::lower`] assigns those.

use unicorn_kernels::npu::attention::AttentionTile;
use unicorn_kernels::npu::tile::CoreTile;

use crate::device::Tile;

/// Index into [`Design::fifos`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FifoId(pub usize);

/// Index into [`Design::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

/// Element type of objects and buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// Bytes: packed numbers, scales beside them.
    I8,
    /// Sums of products.
    I32,
    /// Sums and factors of attention.
    F32,
    /// Outputs.
    Bf16,
}

impl Element {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Element::I8 => 1,
            Element::Bf16 => 2,
            Element::I32 | Element::F32 => 4,
        }
    }

    /// Name in MLIR's syntax.
    pub fn name(self) -> &'static str {
        match self {
            Element::I8 => "i8",
            Element::Bf16 => "bf16",
            Element::I32 => "i32",
            Element::F32 => "f32",
        }
    }
}

/// A queue of objects of one size from one tile to others, each of which receives all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fifo {
    /// Name, unique in the design.
    pub name: String,
    /// Tile that fills objects.
    pub producer: Tile,
    /// Tiles that read them.
    pub consumers: Vec<Tile>,
    /// Objects in the buffers of each tile.
    pub depth: usize,
    /// Type of the elements of an object.
    pub element: Element,
    /// Elements of an object.
    pub len: usize,
}

impl Fifo {
    /// Bytes of an object.
    pub fn bytes(&self) -> usize {
        self.len * self.element.bytes()
    }
}

/// Objects that go through a memory tile without a copy: one FIFO in and several out, each with a part of every object; or several
/// in, whose objects are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// FIFOs that end in the tile.
    pub inputs: Vec<FifoId>,
    /// FIFOs that begin there.
    pub outputs: Vec<FifoId>,
}

/// Memory of a core for its own use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name, unique in the design.
    pub name: String,
    /// Tile that holds it.
    pub tile: Tile,
    /// Type of its elements.
    pub element: Element,
    /// Number of elements.
    pub len: usize,
}

/// A core's side of a FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// The core fills objects.
    Produce,
    /// The core reads objects.
    Consume,
}

/// A step of a core's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreOp {
    /// Runs `body` without end.
    Forever(Vec<CoreOp>),
    /// Runs `body` `count` times.
    Repeat {
        /// Number of repetitions.
        count: usize,
        /// The repeated steps.
        body: Vec<CoreOp>,
    },
    /// Waits for one object, which the following steps use.
    Acquire {
        /// FIFO of the object.
        fifo: FifoId,
        /// The core's side of the FIFO.
        port: Port,
    },
    /// Releases the object.
    Release {
        /// FIFO of the object.
        fifo: FifoId,
        /// The core's side of the FIFO.
        port: Port,
    },
    /// Runs a computation.
    Run(Body),
}

/// The share of a core in a design's computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A matrix product: one core's share.
    Product(CoreTile),
    /// Attention: one pipeline's share.
    Attention(AttentionTile),
    /// Nothing: bytes pass through the memory tiles.
    Passthrough,
}

/// A computation of a core; the maths is in [`unicorn_kernels::npu::twin`] and [`unicorn_kernels::npu::attention`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Sets the sums to 0.
    Clear {
        /// The sums.
        sums: BufferId,
    },
    /// Adds the products of the acquired objects to the sums, and keeps their scales.
    AddProducts {
        /// Activation objects.
        activations: FifoId,
        /// Weight objects.
        weights: FifoId,
        /// The sums.
        sums: BufferId,
        /// Buffer to which the scales are written.
        scales: BufferId,
    },
    /// Computes an output object from four rows of the sums. The innermost loop around it counts the objects.
    Finish {
        /// The sums.
        sums: BufferId,
        /// Their scales.
        scales: BufferId,
        /// Output objects.
        output: FifoId,
    },
    /// Attention: computes the scores of one tile of queries and one block of keys.
    Scores {
        /// Query objects.
        queries: FifoId,
        /// Key objects.
        keys: FifoId,
        /// Score objects.
        scores: FifoId,
    },
    /// Attention: computes probabilities from scores. The innermost loop around it counts the blocks.
    Softmax {
        /// Score objects.
        scores: FifoId,
        /// Maxima and sums so far.
        state: BufferId,
        /// Probability objects.
        probabilities: FifoId,
    },
    /// Attention: corrects the sums and adds the products of probabilities and values, and keeps the inverses.
    AddValues {
        /// Probability objects.
        probabilities: FifoId,
        /// Value objects.
        values: FifoId,
        /// The sums.
        sums: BufferId,
        /// Buffer to which the inverses are written.
        inverses: BufferId,
    },
    /// Attention: computes an output object from four rows of the sums. The innermost loop around it counts the objects.
    Normalise {
        /// The sums.
        sums: BufferId,
        /// The inverses.
        inverses: BufferId,
        /// Output objects.
        output: FifoId,
    },
}

/// One core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Tile of the core.
    pub tile: Tile,
    /// Steps of its program.
    pub program: Vec<CoreOp>,
}

/// A buffer of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Name, for people.
    pub name: &'static str,
    /// Type of its elements.
    pub element: Element,
    /// Number of elements.
    pub len: usize,
}

/// A transfer between a buffer of the host and a FIFO that begins or ends in a shim tile. Counts and strides are in elements, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The FIFO.
    pub fifo: FifoId,
    /// Index into [`Design::arguments`].
    pub argument: usize,
    /// Index of the first element.
    pub offset: usize,
    /// Count of each dimension.
    pub sizes: [usize; 4],
    /// Stride of each dimension.
    pub strides: [usize; 4],
    /// Number of the shim tile's descriptor.
    pub descriptor: u32,
}

impl Transfer {
    /// Elements that it moves.
    pub fn elements(&self) -> usize {
        self.sizes.iter().product()
    }
}

/// A step of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostOp {
    /// Starts a transfer.
    Start(Transfer),
    /// Waits until the oldest transfer out of this FIFO that was not waited for is complete.
    Wait(FifoId),
}

/// A whole program of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Design {
    /// Columns of the array that it uses.
    pub columns: u32,
    /// Share of a core in the computation.
    pub work: Work,
    /// Streams of objects.
    pub fifos: Vec<Fifo>,
    /// FIFOs that are joined or divided in memory tiles.
    pub links: Vec<Link>,
    /// Memory of cores.
    pub buffers: Vec<Buffer>,
    /// The cores.
    pub cores: Vec<Core>,
    /// Buffers of the host.
    pub arguments: Vec<Argument>,
    /// Steps of the host in order.
    pub host: Vec<HostOp>,
}

impl Design {
    /// A FIFO.
    pub fn fifo(&self, id: FifoId) -> &Fifo {
        &self.fifos[id.0]
    }

    /// A buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }
}
