//! Instructions of the NPU's firmware and their bytes.
//!
//! ```text
//! header       16 bytes  version 0.1 │ generation 3, rows 6 │ columns 5, memory rows 1 │ instructions u32 │ bytes u32
//! write        24 bytes  0x00 │ 0 │ address u64 │ value │ 24
//! block write  16 + 4·n  0x01 │ 0 │ address │ bytes │ n words
//! patch        48 bytes  0x81 │ 48 │ 0 × 4 │ address u64 │ argument u64 │ offset in bytes u64
//! wait         16 bytes  0x80 │ 16 │ direction, row << 8, column << 16 │ rows << 8, columns << 16, channel << 24
//! ```
//!
//! All words are 32 bits, little-endian. A patch writes the address of one of the command's buffers to a descriptor. A wait ends
//! when the channel reports that a task is complete.
//!
//! The layout is that of mlir-aie's `AIETargetNPU.cpp` and `AIEDmaToNpu.cpp`.

use thiserror::Error;

use super::tile::{Direction, Tile};

/// First two words of a stream: version 0.1 of the format, generation 3, 6 rows; 5 columns, 1 row of memory tiles.
const HEADER: [u32; 2] = [0x0603_0100, 0x0000_0105];
const HEADER_BYTES: usize = 16;

const WRITE: u32 = 0x00;
const BLOCK_WRITE: u32 = 0x01;
const WAIT: u32 = 0x80;
const PATCH: u32 = 0x81;

const WRITE_BYTES: u32 = 24;
const BLOCK_BYTES: u32 = 16;
const WAIT_BYTES: u32 = 16;
const PATCH_BYTES: u32 = 48;

/// Why a stream is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// Bytes that are not instructions.
    #[error("instruction stream: {what} at byte {at}")]
    Bytes {
        /// The fault: what, expected, found.
        what: String,
        /// Offset in the stream.
        at: usize,
    },
    /// Instructions that a design does not have.
    #[error("instruction {index}: {what}")]
    Instruction {
        /// Number of the instruction in the stream.
        index: usize,
        /// The fault: what, expected, found.
        what: String,
    },
}

/// A firmware instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Writes a register.
    Write {
        /// Address of the register.
        address: u32,
        /// Value that is written.
        value: u32,
    },
    /// Writes consecutive registers.
    BlockWrite {
        /// Address of the first register.
        address: u32,
        /// Values that are written.
        words: Vec<u32>,
    },
    /// Writes the address of a buffer of the command.
    Patch {
        /// Address of the register.
        address: u32,
        /// Index of the buffer.
        argument: u32,
        /// Bytes that are added to the buffer's address.
        offset_bytes: u32,
    },
    /// Waits until a channel reports the end of a task.
    Wait {
        /// Tile of the channel.
        tile: Tile,
        /// Direction of the channel.
        direction: Direction,
        /// Number of the channel.
        channel: u32,
    },
}

impl Instruction {
    fn words(&self) -> Vec<u32> {
        match self {
            Instruction::Write { address, value } => vec![WRITE, 0, *address, 0, *value, WRITE_BYTES],
            Instruction::BlockWrite { address, words } => {
                let bytes = BLOCK_BYTES + 4 * words.len() as u32;
                [WRITE_PREFIX, [*address, bytes]].concat().into_iter().chain(words.iter().copied()).collect()
            }
            Instruction::Patch { address, argument, offset_bytes } => {
                vec![PATCH, PATCH_BYTES, 0, 0, 0, 0, *address, 0, *argument, 0, *offset_bytes, 0]
            }
            Instruction::Wait { tile, direction, channel } => {
                let place = u32::from(*direction == Direction::Out) | tile.row << 8 | tile.col << 16;
                vec![WAIT, WAIT_BYTES, place, 1 << 8 | 1 << 16 | channel << 24]
            }
        }
    }
}

/// Opcode of a block write and the word after it.
const WRITE_PREFIX: [u32; 2] = [BLOCK_WRITE, 0];

/// Encodes these instructions as a stream.
pub fn encode_instructions(instructions: &[Instruction]) -> Vec<u8> {
    let body: Vec<u32> = instructions.iter().flat_map(Instruction::words).collect();
    let bytes = HEADER_BYTES + 4 * body.len();
    let header = [HEADER[0], HEADER[1], instructions.len() as u32, bytes as u32];
    header.iter().chain(&body).flat_map(|word| word.to_le_bytes()).collect()
}

/// Decodes the instructions of a stream, which is not trusted.
///
/// # Errors
/// [`StreamError::Bytes`] for bytes that [`encode_instructions`] does not produce.
pub fn decode(bytes: &[u8]) -> Result<Vec<Instruction>, StreamError> {
    let mut reader = Reader { bytes, at: 0 };
    reader.expect("first word", HEADER[0])?;
    reader.expect("second word", HEADER[1])?;
    let count = reader.word()?;
    reader.expect("length of the stream", u32::try_from(bytes.len()).unwrap_or(u32::MAX))?;
    // No memory is reserved by the count, which is not trusted.
    let mut instructions = Vec::new();
    for _ in 0..count {
        instructions.push(reader.instruction()?);
    }
    let left = bytes.len() - reader.at;
    if left == 0 { Ok(instructions) } else { Err(reader.fault(format!("{left} bytes behind the last instruction"))) }
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn fault(&self, what: String) -> StreamError {
        StreamError::Bytes { what, at: self.at }
    }

    fn word(&mut self) -> Result<u32, StreamError> {
        let Some(word) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<4>()) else {
            return Err(self.fault(format!("the stream ends, which has {} bytes", self.bytes.len())));
        };
        let word = u32::from_le_bytes(*word);
        self.at += 4;
        Ok(word)
    }

    fn expect(&mut self, what: &str, expected: u32) -> Result<(), StreamError> {
        let at = self.at;
        let found = self.word()?;
        if found == expected {
            return Ok(());
        }
        Err(StreamError::Bytes { what: format!("{what} is {found:#x}, expected {expected:#x}"), at })
    }

    fn zeros(&mut self, count: usize) -> Result<(), StreamError> {
        (0..count).try_for_each(|_| self.expect("reserved word", 0))
    }

    fn instruction(&mut self) -> Result<Instruction, StreamError> {
        let at = self.at;
        match self.word()? {
            WRITE => {
                self.zeros(1)?;
                let address = self.word()?;
                self.expect("upper half of an address", 0)?;
                let value = self.word()?;
                self.expect("length of a write", WRITE_BYTES)?;
                Ok(Instruction::Write { address, value })
            }
            BLOCK_WRITE => {
                self.zeros(1)?;
                let address = self.word()?;
                let length_at = self.at;
                let length = self.word()?;
                let left = (self.bytes.len() - self.at) as u64;
                let data = u64::from(length).checked_sub(BLOCK_BYTES.into());
                let Some(data) = data.filter(|data| data.is_multiple_of(4) && *data > 0 && *data <= left) else {
                    let what = format!(
                        "length of a block write is {length}, expected {BLOCK_BYTES} and one word or more of {left} bytes"
                    );
                    return Err(StreamError::Bytes { what, at: length_at });
                };
                let words = (0..data / 4).map(|_| self.word()).collect::<Result<_, _>>()?;
                Ok(Instruction::BlockWrite { address, words })
            }
            PATCH => {
                self.expect("length of a patch", PATCH_BYTES)?;
                self.zeros(4)?;
                let address = self.word()?;
                self.expect("upper half of an address", 0)?;
                let argument = self.word()?;
                self.expect("upper half of an argument", 0)?;
                let offset_bytes = self.word()?;
                self.expect("upper half of an offset", 0)?;
                Ok(Instruction::Patch { address, argument, offset_bytes })
            }
            WAIT => {
                self.expect("length of a wait", WAIT_BYTES)?;
                let place = self.word()?;
                let range_at = self.at;
                let range = self.word()?;
                if range & 0x00ff_ffff != 1 << 8 | 1 << 16 {
                    let what = format!("range of a wait is {range:#x}, expected one row and one column");
                    return Err(StreamError::Bytes { what, at: range_at });
                }
                let direction = match place & 0xff {
                    0 => Direction::In,
                    1 => Direction::Out,
                    other => {
                        let what = format!("direction of a wait is {other}, expected 0 or 1");
                        return Err(StreamError::Bytes { what, at: range_at - 4 });
                    }
                };
                if place >> 24 != 0 {
                    let what = format!("place of a wait is {place:#x}, expected its last byte to be 0");
                    return Err(StreamError::Bytes { what, at: range_at - 4 });
                }
                let tile = Tile { col: place >> 16 & 0xff, row: place >> 8 & 0xff };
                Ok(Instruction::Wait { tile, direction, channel: range >> 24 })
            }
            other => {
                let what = format!(
                    "operation {other:#x}, expected one of {WRITE:#x}, {BLOCK_WRITE:#x}, {WAIT:#x}, {PATCH:#x}"
                );
                Err(StreamError::Bytes { what, at })
            }
        }
    }
}
