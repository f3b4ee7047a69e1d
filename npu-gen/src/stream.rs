//! The instruction stream: the firmware's instructions for one command, as bytes that the driver passes on.
//!
//! [`encode`] makes the stream of a design; [`decode`] reads instructions back from bytes of any origin; [`commands`] applies them
//! to the registers of the shim tiles, which gives the interpreter's commands: so [`crate::interpret`] runs the encoded bytes.
//!
//! Instructions, their bytes and the registers are defined in [`unicorn_artifact::npu`], whose reader checks an artifact's streams.

use unicorn_artifact::npu::registers::{Descriptor, Register, queue_entry};
pub use unicorn_artifact::npu::{Instruction, StreamError, decode, encode_instructions};
use unicorn_artifact::npu::{ShimChannel, ShimCommand, shim_commands};

use crate::design::{Design, HostOp};
use crate::device::{COLUMNS, Tile};
use crate::interpret::Command;
use crate::lower::{Channel, ChannelId, Direction, Lowered};
use crate::shim::{ShimTask, task};

/// The stream of a design that passed [`crate::legal`].
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
                let task = task(transfer, design.arguments[transfer.argument].element);
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
            value: queue_entry(descriptor, task.runs, channel.direction == Direction::In),
        },
    ]
}

/// What mlir-aie of 2026 makes of the program whose stream is `stream`, that of 2024: the header counts the program's columns, only the patch has the offset in
/// the host's buffer, the descriptor's accesses are cacheable (AxCACHE 2), and its second dimension has its count also where it is the last.
///
/// # Errors
/// [`StreamError::Bytes`] if `stream` is none.
pub fn as_of_2026(stream: &[u8], columns: u32) -> Result<Vec<u8>, StreamError> {
    let mut instructions = decode(stream)?;
    for instruction in &mut instructions {
        if let Instruction::BlockWrite { words, .. } = instruction
            && let [len, base, _, inner, middle, outer, ..] = words.as_mut_slice()
        {
            let count = *inner >> COUNT_SHIFT;
            if count > 0 && *middle >> COUNT_SHIFT & COUNT_MASK == 0 {
                *middle |= (*len / count) << COUNT_SHIFT;
            }
            *base = 0;
            *outer |= CACHEABLE;
        }
    }
    let mut stream = encode_instructions(&instructions);
    stream[COLUMNS_AT] = u8::try_from(columns).expect("at most four columns");
    Ok(stream)
}

/// Byte of the header that counts columns.
const COLUMNS_AT: usize = 4;
/// Counts in words 3 and 4 of a descriptor.
const COUNT_SHIFT: u32 = 20;
const COUNT_MASK: u32 = 0x3ff;
/// AxCACHE 2 in word 5 of a descriptor.
const CACHEABLE: u32 = 2 << 24;

/// The commands of `instructions` to the shim tiles of `lowered`.
///
/// # Errors
/// [`StreamError::Instruction`] for registers that these tiles do not have, and for a descriptor that is run before it is complete.
pub fn commands(instructions: &[Instruction], lowered: &Lowered) -> Result<Vec<Command>, StreamError> {
    let columns = lowered.channels.iter().map(|channel| channel.tile.col + 1).max().unwrap_or(0).min(COLUMNS);
    let found = shim_commands(instructions, columns)?;
    let command = |(index, command)| {
        let known = |channel| shim_channel(lowered, channel).map_err(|what| StreamError::Instruction { index, what });
        Ok(match command {
            ShimCommand::Start { channel, task } => Command::Start { channel: known(channel)?, task },
            ShimCommand::Wait(channel) => Command::Wait(known(channel)?),
        })
    };
    found.into_iter().map(command).collect()
}

fn shim_channel(lowered: &Lowered, wanted: ShimChannel) -> Result<ChannelId, String> {
    let ShimChannel { column, direction, index } = wanted;
    let tile = Tile::shim(column);
    let is_it = |one: &Channel| one.tile == tile && one.direction == direction && one.index == index;
    let found = lowered.channels.iter().position(is_it);
    found.map(ChannelId).ok_or_else(|| format!("channel {index} {direction:?} of {tile}, which the design has not"))
}
