//! The instruction stream: what the NPU's firmware does for one command, as bytes that the driver hands over.
//!
//! ```text
//! header       16 bytes  version 0.1 │ generation 3, rows 6 │ columns 5, memory rows 1 │ instructions u32 │ bytes u32
//! write        24 bytes  0x00 │ 0 │ address u64 │ value │ 24
//! block write  16 + 4·n  0x01 │ 0 │ address │ bytes │ n words
//! patch        48 bytes  0x81 │ 48 │ 0 × 4 │ address u64 │ argument u64 │ offset in bytes u64
//! wait         16 bytes  0x80 │ 16 │ direction, row << 8, column << 16 │ rows << 8, columns << 16, channel << 24
//! ```
//!
//! All words are 32 bits, little-endian. A patch puts the address of one of the command's buffers into a descriptor. A wait ends when the channel
//! reports that a task is complete.
//!
//! [`encode`] makes the stream of a design, [`decode`] reads instructions back from bytes of any origin, and [`commands`] does what they do to
//! the registers of the shim tiles, which gives the interpreter's commands: so [`crate::interpret`] runs the encoded bytes.
//!
//! The layout is that of mlir-aie's `AIETargetNPU.cpp` and `AIEDmaToNpu.cpp`.

mod instruction;
mod registers;

use std::collections::BTreeMap;

use thiserror::Error;

pub use instruction::{Instruction, decode, encode_instructions};
use registers::{Descriptor, Register};

use crate::design::{Design, HostOp};
use crate::device::{Tile, TileKind};
use crate::interpret::Command;
use crate::lower::{Channel, ChannelId, Direction, Lowered};
use crate::shim::ShimTask;

/// What is wrong with a stream.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// Bytes that are no instructions.
    #[error("instruction stream: {what} at byte {at}")]
    Bytes {
        /// What, expected, found.
        what: String,
        /// Where.
        at: usize,
    },
    /// Instructions that this design does not have.
    #[error("instruction {index}: {what}")]
    Instruction {
        /// Which.
        index: usize,
        /// What, expected, found.
        what: String,
    },
}

/// The stream of a design that [`crate::legal`] has passed.
///
/// # Panics
/// If the host's transfers do not begin or end in shim tiles, or exceed a field.
pub fn encode(design: &Design, lowered: &Lowered) -> Vec<u8> {
    let channel = |fifo| {
        let id = lowered.shim_channel(fifo).expect("a legal design ends in shim tiles");
        &lowered.channels[id.0]
    };
    let mut instructions = Vec::new();
    for op in &design.host {
        match op {
            HostOp::Start(transfer) => {
                let channel = channel(transfer.fifo);
                let task = ShimTask::of(transfer, design.arguments[transfer.argument].element);
                instructions.extend(start(channel, transfer.descriptor, &task));
            }
            HostOp::Wait(fifo) => {
                let Channel { tile, direction, index, .. } = *channel(*fifo);
                instructions.push(Instruction::Wait { tile, direction, channel: index });
            }
        }
    }
    encode_instructions(&instructions)
}

/// The descriptor, its address, and the task that runs it.
fn start(channel: &Channel, descriptor: u32, task: &ShimTask) -> [Instruction; 3] {
    let at = Register::Descriptor { word: 0, descriptor };
    let base = Register::Descriptor { word: 1, descriptor };
    let queue = Register::Queue { direction: channel.direction, channel: channel.index };
    let column = channel.tile.col;
    [
        Instruction::BlockWrite { address: at.address(column), words: Descriptor::of(task).words().to_vec() },
        Instruction::Patch {
            address: base.address(column),
            argument: task.argument as u32,
            offset_bytes: u32::try_from(task.offset_bytes).expect("a buffer of the host has less than 4 GiB"),
        },
        Instruction::Write {
            address: queue.address(column),
            value: registers::queue_entry(descriptor, task.runs, channel.direction == Direction::In),
        },
    ]
}

/// What `instructions` make the shim tiles of `lowered` do.
///
/// # Errors
/// [`StreamError::Instruction`] for what these tiles do not have, and for a descriptor that is run before it is complete.
pub fn commands(instructions: &[Instruction], lowered: &Lowered) -> Result<Vec<Command>, StreamError> {
    let mut shims = Shims { lowered, descriptors: BTreeMap::new() };
    let mut commands = Vec::new();
    for (index, instruction) in instructions.iter().enumerate() {
        match shims.run(instruction) {
            Ok(command) => commands.extend(command),
            Err(what) => return Err(StreamError::Instruction { index, what }),
        }
    }
    Ok(commands)
}

/// A descriptor's words and the buffer that a patch gave it.
#[derive(Default)]
struct Slot {
    words: [u32; registers::DESCRIPTOR_WORDS],
    buffer: Option<(u32, u32)>,
}

/// The registers of the shim tiles.
struct Shims<'l> {
    lowered: &'l Lowered,
    /// By column and number.
    descriptors: BTreeMap<(u32, u32), Slot>,
}

impl Shims<'_> {
    fn run(&mut self, instruction: &Instruction) -> Result<Option<Command>, String> {
        match instruction {
            Instruction::BlockWrite { address, words } => {
                for (index, word) in words.iter().enumerate() {
                    let address = address.checked_add(4 * index as u32).ok_or("block ends behind the last address")?;
                    let (column, register) = self.register(address)?;
                    let Register::Descriptor { word: number, descriptor } = register else {
                        return Err(format!("block write to {address:#x}, expected descriptors"));
                    };
                    let slot = self.descriptors.entry((column, descriptor)).or_default();
                    slot.words[number as usize] = *word;
                    // A new address: the buffer's has to be put there again.
                    if number == 1 {
                        slot.buffer = None;
                    }
                }
                Ok(None)
            }
            Instruction::Patch { address, argument, offset_bytes } => {
                let (column, register) = self.register(*address)?;
                let Register::Descriptor { word: 1, descriptor } = register else {
                    return Err(format!("patch of {address:#x}, expected a descriptor's base address"));
                };
                self.descriptors.entry((column, descriptor)).or_default().buffer = Some((*argument, *offset_bytes));
                Ok(None)
            }
            Instruction::Write { address, value } => {
                let (column, register) = self.register(*address)?;
                let Register::Queue { direction, channel } = register else {
                    return Err(format!("write to {address:#x}, expected a queue of tasks"));
                };
                let id = self.channel(Tile::shim(column), direction, channel)?;
                self.start(column, id, *value).map(Some)
            }
            Instruction::Wait { tile, direction, channel } => {
                Ok(Some(Command::Wait(self.channel(*tile, *direction, *channel)?)))
            }
        }
    }

    /// Puts a task into a queue.
    fn start(&self, column: u32, channel: ChannelId, value: u32) -> Result<Command, String> {
        let entry = registers::QueueEntry::of(value)?;
        let reports = self.lowered.channels[channel.0].direction == Direction::In;
        if entry.reports != reports {
            let what = if reports {
                "does not report its end, expected it to"
            } else {
                "reports its end, which is not waited for"
            };
            return Err(format!("task of descriptor {} {what}", entry.descriptor));
        }
        let slot = self.descriptors.get(&(column, entry.descriptor));
        let slot =
            slot.ok_or_else(|| format!("descriptor {} of column {column} was never written", entry.descriptor))?;
        let buffer = slot.buffer;
        let (argument, offset_bytes) =
            buffer.ok_or_else(|| format!("descriptor {} of column {column} has no buffer", entry.descriptor))?;
        let descriptor = Descriptor::read(&slot.words)?;
        let task = descriptor.task(argument as usize, offset_bytes as usize, entry.runs)?;
        Ok(Command::Start { channel, task })
    }

    /// The register at an address, and its column.
    fn register(&self, address: u32) -> Result<(u32, Register), String> {
        let (tile, register) = Register::at(address)?;
        let has_tile = self.lowered.channels.iter().any(|channel| channel.tile == tile);
        match tile.kind() {
            TileKind::Shim if has_tile => Ok((tile.col, register)),
            _ => Err(format!("{tile} at {address:#x}, expected a shim tile of the design")),
        }
    }

    fn channel(&self, tile: Tile, direction: Direction, index: u32) -> Result<ChannelId, String> {
        let is_it = |one: &Channel| one.tile == tile && one.direction == direction && one.index == index;
        let found = self.lowered.channels.iter().position(is_it).filter(|_| tile.kind() == TileKind::Shim);
        found.map(ChannelId).ok_or_else(|| format!("channel {index} {direction:?} of {tile}, which the design has not"))
    }
}
