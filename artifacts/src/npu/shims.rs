//! The effect of a stream's instructions on the registers of the shim tiles: transfers between buffers of the host and the array.

use std::collections::BTreeMap;

use super::instruction::{Instruction, StreamError};
use super::registers::{DESCRIPTOR_WORDS, Descriptor, QueueEntry, Register};
use super::task::ShimTask;
use super::tile::{Direction, Tile, TileKind};

/// DMA channels of a shim tile in each direction.
pub const CHANNELS: u32 = 2;

/// A DMA channel of a shim tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShimChannel {
    /// Column of the array.
    pub column: u32,
    /// Direction of the transfers.
    pub direction: Direction,
    /// Number among the tile's channels of this direction.
    pub index: u32,
}

/// A command of a stream to the shim tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShimCommand {
    /// Gives a task to a channel.
    Start {
        /// Channel that runs the task.
        channel: ShimChannel,
        /// The task: a descriptor and the number of its runs.
        task: ShimTask,
    },
    /// Waits until the channel has completed one more task.
    Wait(ShimChannel),
}

/// The commands of `instructions` to the shim tiles of `columns` columns, in order: one for each instruction that does more than
/// write descriptors, with the instruction's number.
///
/// # Errors
/// [`StreamError::Instruction`] for registers that these tiles do not have, and for a descriptor that is run before it is complete.
pub fn shim_commands(instructions: &[Instruction], columns: u32) -> Result<Vec<(usize, ShimCommand)>, StreamError> {
    let mut shims = Shims { columns, descriptors: BTreeMap::new() };
    let mut commands = Vec::new();
    for (index, instruction) in instructions.iter().enumerate() {
        match shims.run(instruction) {
            Ok(command) => commands.extend(command.map(|command| (index, command))),
            Err(what) => return Err(StreamError::Instruction { index, what }),
        }
    }
    Ok(commands)
}

/// A descriptor's words and the buffer that a patch gave it.
#[derive(Default)]
struct Slot {
    words: [u32; DESCRIPTOR_WORDS],
    buffer: Option<(u32, u32)>,
}

/// The registers of the shim tiles.
struct Shims {
    columns: u32,
    /// Descriptors by column and number.
    descriptors: BTreeMap<(u32, u32), Slot>,
}

impl Shims {
    fn run(&mut self, instruction: &Instruction) -> Result<Option<ShimCommand>, String> {
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
                    // A new address: the buffer's must be written again.
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
                self.start(ShimChannel { column, direction, index: channel }, *value).map(Some)
            }
            Instruction::Wait { tile, direction, channel } => {
                if !self.has(*tile) || *channel >= CHANNELS {
                    return Err(format!("channel {channel} {direction:?} of {tile}, which the design has not"));
                }
                let channel = ShimChannel { column: tile.col, direction: *direction, index: *channel };
                Ok(Some(ShimCommand::Wait(channel)))
            }
        }
    }

    /// Adds a task to a queue.
    fn start(&self, channel: ShimChannel, value: u32) -> Result<ShimCommand, String> {
        let entry = QueueEntry::of(value)?;
        let column = channel.column;
        let reports = channel.direction == Direction::In;
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
        Ok(ShimCommand::Start { channel, task })
    }

    fn has(&self, tile: Tile) -> bool {
        tile.kind() == TileKind::Shim && tile.col < self.columns
    }

    /// The register at an address, and its column.
    fn register(&self, address: u32) -> Result<(u32, Register), String> {
        let (tile, register) = Register::at(address)?;
        match self.has(tile) {
            true => Ok((tile.col, register)),
            false => Err(format!("{tile} at {address:#x}, expected a shim tile of the design")),
        }
    }
}
