//! The rules that a design has to keep, each with its name.

use std::fmt::{self, Display};

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident = $name:literal,)*) => {
        /// A limit of the device, or a rule of designs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rule {
            $($(#[$doc])* $rule,)*
        }

        impl Rule {
            /// All of them.
            pub const ALL: &[Rule] = &[$(Rule::$rule),*];

            /// A short name in lower case, such as `memory`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Rule::$rule => $name,)*
                }
            }
        }
    };
}

rules! {
    /// FIFOs and buffers have different names.
    Names = "names",
    /// A design has 1 to 4 columns.
    Columns = "columns",
    /// Producers and consumers are tiles of the design's columns.
    Placement = "placement",
    /// A FIFO has consumers, each once, and its producer is none of them.
    Consumers = "consumers",
    /// A FIFO has at least one object.
    FifoDepth = "depth of a FIFO",
    /// Objects are whole words.
    ObjectWords = "words of an object",
    /// A link has one FIFO on at least one side.
    LinkSides = "sides of a link",
    /// As many bytes leave a link as enter it.
    LinkBytes = "bytes of a link",
    /// FIFOs of a link meet in one memory tile.
    LinkTile = "tile of a link",
    /// An end of a FIFO is in at most one link.
    LinkOnce = "links of a FIFO",
    /// FIFOs of a link have the same depth: they share buffers.
    LinkDepths = "depths of a link",
    /// Locks start in the range of a semaphore.
    LockStart = "first value of a lock",
    /// Descriptors stay in their buffer.
    DescriptorBounds = "bounds of a descriptor",
    /// Descriptors transfer whole words.
    DescriptorWords = "words of a descriptor",
    /// Descriptors use locks of their own tile.
    DescriptorLocks = "locks of a descriptor",
    /// Data memory of a tile.
    Memory = "memory",
    /// DMA channels into a tile.
    ChannelsIn = "channels in",
    /// DMA channels out of a tile.
    ChannelsOut = "channels out",
    /// DMA descriptors of a tile.
    Descriptors = "descriptors",
    /// DMA descriptors that channels of one parity can use.
    DescriptorParity = "descriptors of a parity",
    /// Locks of a tile.
    Locks = "locks",
    /// Programs are of core tiles.
    CoreTile = "tile of a program",
    /// A core has one program.
    CoreOnce = "programs of a core",
    /// A program releases what it acquires.
    Released = "released objects",
    /// An iteration begins and ends with the same objects.
    Iteration = "objects of an iteration",
    /// A core acquires objects of FIFOs that begin or end in it.
    Port = "side of a FIFO",
    /// A core holds one object of a FIFO.
    OneHeld = "objects held at once",
    /// A core releases objects that it holds.
    Held = "objects to release",
    /// Bodies are of the design's kind of work.
    BodyKind = "kind of a body",
    /// Bodies compute on buffers of their own core.
    BufferTile = "tile of a buffer",
    /// Buffers have the bytes that their bodies expect.
    BufferBytes = "bytes of a buffer",
    /// Bodies compute on acquired objects.
    Acquired = "acquired objects",
    /// Objects have the bytes that their bodies expect.
    ObjectBytes = "bytes of an object",
    /// A command has at most seven buffers of the host.
    Arguments = "buffers of the host",
    /// Offsets into a buffer of the host have 32 bits.
    ArgumentBytes = "bytes of a buffer of the host",
    /// A wait follows a transfer.
    Wait = "wait",
    /// Transfers are of FIFOs with an end in a shim tile.
    ShimEnd = "end in a shim tile",
    /// Transfers are of a buffer of the host.
    Argument = "buffer of a transfer",
    /// A descriptor is used again only after its transfer.
    DescriptorFree = "use of a descriptor",
    /// No dimension of a transfer has size 0.
    TransferSizes = "sizes of a transfer",
    /// The innermost elements of a transfer are consecutive.
    InnermostStride = "innermost stride",
    /// Transfers move whole words.
    TransferWords = "words of a transfer",
    /// Strides of a transfer have 20 bits.
    StrideMax = "longest stride",
    /// Only the outermost dimension repeats.
    ZeroStride = "stride of 0",
    /// Counts of a transfer's dimensions have 10 bits.
    Wraps = "count of a dimension",
    /// A transfer has at most 64 iterations.
    Iterations = "iterations",
    /// Transfers stay in their buffer.
    TransferBounds = "bounds of a transfer",
    /// Transfers move whole objects.
    WholeObjects = "objects of a transfer",
    /// The host waits for all results.
    Complete = "end of the host's steps",
    /// As many objects are made between two cores as are taken.
    MadeAndTaken = "objects between cores",
    /// The host moves the objects of whole iterations.
    WholeIterations = "objects of whole iterations",
    /// Of several objects in an iteration, one is filled while another is read.
    TwoObjects = "depth of two",
    /// An unrolled loop ends with the buffers that it began with.
    MultipleOfDepth = "multiple of the depth",
    /// All streams of a core last for the same number of iterations.
    SameIterations = "iterations of a core",
    /// Every flow finds circuits through the stream switches.
    Switches = "stream switches",
    /// Buffers fit with the gaps between them.
    Gaps = "gaps between buffers",
}

impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
