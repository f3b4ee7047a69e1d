//! Command packets (ERT) as words, little-endian.
//!
//! ```text
//! header     state:4 │ – │ extra masks:2 @10 │ words behind the header:11 @12 │ opcode:5 @23
//! start      mask of units │ 3 (run a stream) u64 │ stream's address u64 │ words of the stream u32 │ address u64 × tensors
//! chain      commands u32 │ submitted u32 │ failed u32 │ 0 × 3 │ handle u64 × commands
//! ```
//!
//! The layout is that of Linux's `amdxdna_ctx.h`; the words of a start are those that XRT passes for a kernel of the type DPU.

use super::driver::{MAX_TENSORS, MAX_UNITS};

/// Runs one unit (`ERT_START_CU`).
const START: u32 = 0;
/// Runs several commands (`ERT_CMD_CHAIN`).
const CHAIN: u32 = 19;
/// The firmware's function that runs an instruction stream.
const RUN_STREAM: u64 = 3;

/// Bytes of a command's buffer: a page.
pub const COMMAND_BYTES: u64 = 4096;
/// Commands of a chain: what the driver's buffer of 4 KiB for a chain holds of commands with three tensors, 52 bytes each.
pub const MAX_CHAIN: usize = 64;

/// State of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not submitted, or not ended.
    Pending,
    /// Done.
    Completed,
    /// Ended without its result: a state's name.
    Failed(&'static str),
}

/// State in the header of a packet.
pub fn state(packet: &[u8]) -> State {
    match word(packet, 0).unwrap_or(0) & 15 {
        4 => State::Completed,
        0 => State::Failed("invalid"),
        5 => State::Failed("error"),
        6 => State::Failed("abort"),
        8 => State::Failed("timeout"),
        9 => State::Failed("no response"),
        _ => State::Pending,
    }
}

/// One run of an instruction stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Index of the unit.
    pub unit: usize,
    /// Address of the stream in the heap.
    pub stream_address: u64,
    /// Length of the stream, in words.
    pub stream_words: u32,
    /// Addresses of the tensors, in the order of the program's arguments.
    pub tensors: Vec<u64>,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// One run.
    Start(Start),
    /// Handles of the buffers of several runs, one after the other.
    Chain(Vec<u64>),
}

impl Packet {
    /// The packet as bytes of its words.
    ///
    /// # Panics
    /// If it has more units, tensors or commands than a packet takes.
    pub fn encode(&self) -> Vec<u8> {
        let (opcode, body) = match self {
            Packet::Start(Start { unit, stream_address, stream_words, tensors }) => {
                assert!(
                    *unit < MAX_UNITS && tensors.len() <= MAX_TENSORS,
                    "packet with unit {unit}, {} tensors",
                    tensors.len()
                );
                let mut body = vec![1 << unit];
                body.extend([RUN_STREAM, *stream_address].into_iter().flat_map(halves));
                body.push(*stream_words);
                body.extend(tensors.iter().copied().flat_map(halves));
                (START, body)
            }
            Packet::Chain(handles) => {
                assert!(handles.len() <= MAX_CHAIN, "chain of {} commands", handles.len());
                let mut body = vec![handles.len() as u32, 0, 0, 0, 0, 0];
                body.extend(handles.iter().copied().flat_map(halves));
                (CHAIN, body)
            }
        };
        const NEW: u32 = 1;
        let header = NEW | (body.len() as u32) << 12 | opcode << 23;
        std::iter::once(header).chain(body).flat_map(u32::to_le_bytes).collect()
    }

    /// Decodes the packet that these bytes begin with.
    ///
    /// # Errors
    /// A description of what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Packet, String> {
        let header = word(bytes, 0).ok_or("packet has no header")?;
        let count = (header >> 12 & 0x7ff) as usize;
        let body: Option<Vec<u32>> = (1..=count).map(|index| word(bytes, index)).collect();
        let body = body.ok_or_else(|| format!("packet of {count} words, which its buffer does not hold"))?;
        if header >> 10 & 3 != 0 {
            return Err("packet with extra masks of units, expected one".into());
        }
        let wide =
            |words: &[u32]| words.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect();
        match (header >> 23 & 31, body.as_slice()) {
            (START, [mask, low, high, address_low, address_high, stream_words, tensors @ ..]) => {
                if mask.count_ones() != 1 {
                    return Err(format!("mask of units is {mask:#x}, expected one bit"));
                }
                if u64::from(*low) | u64::from(*high) << 32 != RUN_STREAM {
                    return Err(format!("function {low} of the firmware, expected {RUN_STREAM}"));
                }
                if !tensors.len().is_multiple_of(2) || tensors.len() / 2 > MAX_TENSORS {
                    return Err(format!(
                        "{} words of tensors, expected two for each of at most {MAX_TENSORS}",
                        tensors.len()
                    ));
                }
                Ok(Packet::Start(Start {
                    unit: mask.trailing_zeros() as usize,
                    stream_address: u64::from(*address_low) | u64::from(*address_high) << 32,
                    stream_words: *stream_words,
                    tensors: wide(tensors),
                }))
            }
            (CHAIN, [commands, 0, _, 0, 0, 0, handles @ ..]) => {
                if handles.len() != 2 * *commands as usize || *commands == 0 || *commands as usize > MAX_CHAIN {
                    return Err(format!(
                        "chain of {commands} commands with {} words, expected 1 to {MAX_CHAIN}",
                        handles.len()
                    ));
                }
                Ok(Packet::Chain(wide(handles)))
            }
            (opcode, _) => Err(format!("packet of opcode {opcode} with {count} words, expected a start or a chain")),
        }
    }
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let bytes = bytes.get(4 * index..4 * index + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Packet {
        Packet::Start(Start {
            unit: 2,
            stream_address: 0x4_0001_8000,
            stream_words: 300,
            tensors: vec![0x7f00_1234_5000, 16],
        })
    }

    /// Word by word from the kernel's masks: count at bits 12 to 22, opcode at 23 to 27.
    #[test]
    fn a_packet_has_the_words_of_the_driver() {
        let words: Vec<u32> =
            start().encode().chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [0x0000_a001, 4, 3, 0, 0x0001_8000, 4, 300, 0x1234_5000, 0x7f00, 16, 0]);
        let words = Packet::Chain(vec![7]).encode();
        assert_eq!(words[..8], [0x01, 0x80, 0x80, 0x09, 1, 0, 0, 0]);
        assert_eq!(words[28..], [7, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn packets_are_read_back_and_broken_ones_refused() {
        for packet in [start(), Packet::Chain(vec![3, 1 << 40])] {
            let mut bytes = packet.encode();
            bytes.resize(COMMAND_BYTES as usize, 0);
            assert_eq!(Packet::decode(&bytes), Ok(packet));
        }
        let refused = |change: &dyn Fn(&mut Vec<u8>), part: &str| {
            let mut bytes = start().encode();
            change(&mut bytes);
            let error = Packet::decode(&bytes).unwrap_err();
            assert!(error.contains(part), "{part} is not in {error}");
        };
        refused(&|bytes| bytes.clear(), "no header");
        refused(&|bytes| bytes.truncate(12), "does not hold");
        refused(&|bytes| bytes[4] = 3, "expected one bit");
        refused(&|bytes| bytes[8] = 1, "function 1");
        refused(&|bytes| bytes[1] |= 4, "extra masks");
        refused(&|bytes| bytes[3] |= 1, "expected a start or a chain");
        refused(&|bytes| bytes[1] -= 0x10, "words of tensors");
    }

    #[test]
    fn states_are_those_of_ert() {
        let of = |value: u8| state(&[value | 0xa0, 0, 0, 0]);
        assert_eq!([of(1), of(2), of(3), of(7)], [State::Pending; 4]);
        assert_eq!((of(4), of(5), of(8)), (State::Completed, State::Failed("error"), State::Failed("timeout")));
    }
}
