//! A design: which objects move between which tiles, what the cores do with them, and what the host starts.
//!
//! Nothing here has an address, a lock or a channel: [`crate::lower`] gives those.

use unicorn_kernels::npu::attention::AttentionTile;
use unicorn_kernels::npu::tile::CoreTile;

use crate::device::Tile;

/// Index into [`Design::fifos`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FifoId(pub usize);

/// Index into [`Design::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

/// What an array holds.
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
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Element::I8 => 1,
            Element::Bf16 => 2,
            Element::I32 | Element::F32 => 4,
        }
    }

    /// As MLIR writes it.
    pub fn name(self) -> &'static str {
        match self {
            Element::I8 => "i8",
            Element::Bf16 => "bf16",
            Element::I32 => "i32",
            Element::F32 => "f32",
        }
    }
}

/// Objects of one size on their way from one tile to others, each of which receives all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fifo {
    /// Name, unique in the design.
    pub name: String,
    /// Tile that fills objects.
    pub producer: Tile,
    /// Tiles that read them.
    pub consumers: Vec<Tile>,
    /// Objects that each tile has room for.
    pub depth: usize,
    /// What an object holds.
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

/// Objects that go through a memory tile without a copy: one FIFO in and several out, which each take a part of every object; or several in,
/// whose objects are put together.
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
    /// Where it lies.
    pub tile: Tile,
    /// What it holds.
    pub element: Element,
    /// Elements.
    pub len: usize,
}

/// A core's side of a FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// It fills objects.
    Produce,
    /// It reads them.
    Consume,
}

/// A step of a core's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreOp {
    /// `body` without end.
    Forever(Vec<CoreOp>),
    /// `body`, `count` times.
    Repeat {
        /// How often.
        count: usize,
        /// What.
        body: Vec<CoreOp>,
    },
    /// Waits for one object, which the following steps use.
    Acquire {
        /// Whose.
        fifo: FifoId,
        /// Which side.
        port: Port,
    },
    /// Gives the object back.
    Release {
        /// Whose.
        fifo: FifoId,
        /// Which side.
        port: Port,
    },
    /// Computes.
    Run(Body),
}

/// What a design's cores compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A matrix product: one core's share.
    Product(CoreTile),
    /// Attention: one pipeline's share.
    Attention(AttentionTile),
}

/// What a core computes; the maths is in [`unicorn_kernels::npu::twin`] and [`unicorn_kernels::npu::attention`].
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
        /// Where the scales go.
        scales: BufferId,
    },
    /// Makes an output object of four rows of the sums. The innermost loop around it counts the objects.
    Finish {
        /// The sums.
        sums: BufferId,
        /// Their scales.
        scales: BufferId,
        /// Output objects.
        output: FifoId,
    },
    /// Attention: makes scores of one tile of queries and one block of keys.
    Scores {
        /// Query objects.
        queries: FifoId,
        /// Key objects.
        keys: FifoId,
        /// Score objects.
        scores: FifoId,
    },
    /// Attention: makes probabilities of scores. The innermost loop around it counts the blocks.
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
        /// Where the inverses go.
        inverses: BufferId,
    },
    /// Attention: makes an output object of four rows of the sums. The innermost loop around it counts the objects.
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
    /// Where it is.
    pub tile: Tile,
    /// What it does.
    pub program: Vec<CoreOp>,
}

/// A buffer of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Name, for readers.
    pub name: &'static str,
    /// What it holds.
    pub element: Element,
    /// Elements.
    pub len: usize,
}

/// A transfer between a buffer of the host and a FIFO that begins or ends in a shim tile. Counts and strides are in elements, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The FIFO.
    pub fifo: FifoId,
    /// Index into [`Design::arguments`].
    pub argument: usize,
    /// First element.
    pub offset: usize,
    /// How many, for each dimension.
    pub sizes: [usize; 4],
    /// How far apart, for each dimension.
    pub strides: [usize; 4],
    /// Descriptor of the shim tile.
    pub descriptor: u32,
}

impl Transfer {
    /// Elements that it moves.
    pub fn elements(&self) -> usize {
        self.sizes.iter().product()
    }
}

/// What the host does, in order.
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
    /// Columns that it takes.
    pub columns: u32,
    /// What its cores compute on.
    pub work: Work,
    /// Streams of objects.
    pub fifos: Vec<Fifo>,
    /// Those that are joined or divided in memory tiles.
    pub links: Vec<Link>,
    /// Memory of cores.
    pub buffers: Vec<Buffer>,
    /// The cores.
    pub cores: Vec<Core>,
    /// Buffers of the host.
    pub arguments: Vec<Argument>,
    /// What the host does.
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
