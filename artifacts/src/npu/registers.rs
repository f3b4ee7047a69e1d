//! Registers of the shim tiles that a stream writes: descriptors and queues of tasks.
//!
//! ```text
//! address        column << 25 │ row << 20 │ offset in the tile
//! descriptor n   0x1d000 + 0x20 · n, eight words:
//!                0  words of one run
//!                1  base address, lower half; 2  upper half, packet
//!                3  count of dimension 0 << 20 │ its stride - 1
//!                4  burst of 64 bytes and more: bit 31 │ count of dimension 1 << 20 │ its stride - 1
//!                5  stride of dimension 2, - 1
//!                6  iterations - 1 << 20 │ words between them, - 1
//!                7  valid: bit 25
//! queue          0x1d204 + 8 · channel of streams into DRAM, 0x1d214 + 8 · channel of those out of it:
//!                descriptor │ runs - 1 << 16 │ reports its end: bit 31
//! ```
//!
//! A count of 0 has no end: the number of words ends the run. The last dimension of a run has this count, as in mlir-aie.

use super::task::ShimTask;
use super::tile::{Direction, Tile};

/// Words of a descriptor.
pub const DESCRIPTOR_WORDS: usize = 8;

const COLUMN_SHIFT: u32 = 25;
const ROW_SHIFT: u32 = 20;
const OFFSET_MASK: u32 = (1 << ROW_SHIFT) - 1;
const DESCRIPTORS_AT: u32 = 0x1d000;
const DESCRIPTOR_BYTES: u32 = 4 * DESCRIPTOR_WORDS as u32;
const DESCRIPTORS: u32 = 16;
const QUEUES_IN_AT: u32 = 0x1d204;
const QUEUES_OUT_AT: u32 = 0x1d214;
const QUEUE_BYTES: u32 = 8;
const CHANNELS: u32 = 2;

const STRIDE_MASK: u32 = (1 << 20) - 1;
const COUNT_MASK: u32 = (1 << 10) - 1;
const ITERATIONS_MASK: u32 = (1 << 6) - 1;
const BURST: u32 = 1 << 31;
const VALID: u32 = 1 << 25;

/// A register of a shim tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// A word of a descriptor.
    Descriptor {
        /// Number of the descriptor.
        descriptor: u32,
        /// Number of the word in the descriptor.
        word: u32,
    },
    /// Queue of a channel's tasks.
    Queue {
        /// Direction of the channel.
        direction: Direction,
        /// Number of the channel.
        channel: u32,
    },
}

impl Register {
    /// Address of the register in the shim tile of `column`.
    pub fn address(self, column: u32) -> u32 {
        let offset = match self {
            Register::Descriptor { descriptor, word } => DESCRIPTORS_AT + DESCRIPTOR_BYTES * descriptor + 4 * word,
            Register::Queue { direction: Direction::In, channel } => QUEUES_IN_AT + QUEUE_BYTES * channel,
            Register::Queue { direction: Direction::Out, channel } => QUEUES_OUT_AT + QUEUE_BYTES * channel,
        };
        column << COLUMN_SHIFT | offset
    }

    /// The register at `address`, and its tile.
    pub fn at(address: u32) -> Result<(Tile, Register), String> {
        let tile = Tile { col: address >> COLUMN_SHIFT, row: address >> ROW_SHIFT & 0x1f };
        let offset = address & OFFSET_MASK;
        let within = |from: u32, each: u32, count: u32| {
            let distance = offset.checked_sub(from).filter(|distance| *distance < each * count);
            distance.map(|distance| (distance / each, distance % each))
        };
        let queue = |from, direction| {
            let (channel, rest) = within(from, QUEUE_BYTES, CHANNELS)?;
            (rest == 0).then_some(Register::Queue { direction, channel })
        };
        let descriptor = || {
            let (descriptor, rest) = within(DESCRIPTORS_AT, DESCRIPTOR_BYTES, DESCRIPTORS)?;
            rest.is_multiple_of(4).then_some(Register::Descriptor { descriptor, word: rest / 4 })
        };
        let register = descriptor()
            .or_else(|| queue(QUEUES_IN_AT, Direction::In))
            .or_else(|| queue(QUEUES_OUT_AT, Direction::Out));
        let register = register.ok_or_else(|| format!("address {address:#x}, expected a descriptor or a queue"))?;
        Ok((tile, register))
    }
}

/// Word of a queue that runs descriptor `descriptor` `runs` times.
pub fn queue_entry(descriptor: u32, runs: usize, reports: bool) -> u32 {
    let repeats = u32::try_from(runs - 1).ok().filter(|repeats| *repeats <= 0xff).expect("at most 256 runs");
    assert!(descriptor < DESCRIPTORS, "descriptor {descriptor} of {DESCRIPTORS}");
    descriptor | repeats << 16 | u32::from(reports) << 31
}

/// A word that was written to a queue.
pub struct QueueEntry {
    /// Number of the descriptor.
    pub descriptor: u32,
    /// Number of runs.
    pub runs: usize,
    /// Whether the channel reports the end of the task.
    pub reports: bool,
}

impl QueueEntry {
    /// Reads a word.
    pub fn of(value: u32) -> Result<QueueEntry, String> {
        if value & 0x7f00_fff0 != 0 {
            return Err(format!("task is {value:#x}, expected no bits but descriptor, repeats and report"));
        }
        Ok(QueueEntry { descriptor: value & 0xf, runs: (value >> 16 & 0xff) as usize + 1, reports: value >> 31 == 1 })
    }
}

/// The fields of a descriptor that this compiler sets. Strides are one less, as in the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    words: u32,
    base: u32,
    counts: [u32; 2],
    strides: [u32; 3],
    /// Number of iterations less one, and words between them less one.
    iterations: [u32; 2],
}

impl Descriptor {
    /// The descriptor that a task runs.
    pub fn of(task: &ShimTask) -> Descriptor {
        let field = |value: usize, mask: u32, what: &str| {
            let value = u32::try_from(value).ok().filter(|value| *value <= mask);
            value.unwrap_or_else(|| panic!("{what} exceeds its field of {mask:#x}"))
        };
        let [inner, middle] = task.wraps.unwrap_or_default();
        // A dimension that ends with the run has no count.
        let middle = if inner * middle == task.words { 0 } else { middle };
        let repeats = task.runs > 1 && task.iteration_stride > 0;
        Descriptor {
            words: field(task.words, u32::MAX, "number of words"),
            base: field(task.offset_bytes, u32::MAX, "offset"),
            counts: [field(inner, COUNT_MASK, "first count"), field(middle, COUNT_MASK, "second count")],
            strides: task.strides.map(|stride| field(stride - 1, STRIDE_MASK, "stride")),
            iterations: if repeats {
                [
                    field(task.runs - 1, ITERATIONS_MASK, "number of runs"),
                    field(task.iteration_stride - 1, STRIDE_MASK, "distance of runs"),
                ]
            } else {
                [0, 0]
            },
        }
    }

    /// The words of the registers.
    pub fn words(&self) -> [u32; DESCRIPTOR_WORDS] {
        let [count_0, count_1] = self.counts;
        let [stride_0, stride_1, stride_2] = self.strides;
        let [iterations, distance] = self.iterations;
        [
            self.words,
            self.base,
            0,
            count_0 << 20 | stride_0,
            BURST | count_1 << 20 | stride_1,
            stride_2,
            iterations << 20 | distance,
            VALID,
        ]
    }

    /// Reads registers.
    pub fn read(words: &[u32; DESCRIPTOR_WORDS]) -> Result<Descriptor, String> {
        let descriptor = Descriptor {
            words: words[0],
            base: words[1],
            counts: [words[3] >> 20 & COUNT_MASK, words[4] >> 20 & COUNT_MASK],
            strides: [words[3] & STRIDE_MASK, words[4] & STRIDE_MASK, words[5] & STRIDE_MASK],
            iterations: [words[6] >> 20 & ITERATIONS_MASK, words[6] & STRIDE_MASK],
        };
        match descriptor.words().iter().zip(words).position(|(known, found)| known != found) {
            None => Ok(descriptor),
            Some(index) => Err(format!(
                "word {index} of a descriptor is {:#x}, expected {:#x}: no packets, locks or chains, and valid",
                words[index],
                descriptor.words()[index]
            )),
        }
    }

    /// The task that runs it `runs` times on a buffer.
    pub fn task(&self, argument: usize, offset_bytes: usize, runs: usize) -> Result<ShimTask, String> {
        if self.base as usize != offset_bytes {
            return Err(format!(
                "base address is {:#x}, expected {offset_bytes:#x}, the offset of its patch",
                self.base
            ));
        }
        let [inner, middle] = self.counts.map(|count| count as usize);
        let is_line = self.counts == [0, 0] && self.strides == [0; 3];
        let words = self.words as usize;
        if !is_line && (inner == 0 || self.strides[0] != 0 || !words.is_multiple_of(inner * middle.max(1))) {
            let found = [self.counts[0], self.counts[1], self.strides[0] + 1];
            return Err(format!(
                "counts and innermost stride are {found:?}, expected counts that divide {words} words and a stride of 1"
            ));
        }
        if middle * inner == words && !is_line {
            return Err(format!("second count is {middle}, expected 0 where it ends with the run"));
        }
        let middle = if middle == 0 && !is_line { words / inner } else { middle };
        let [iterations, distance] = self.iterations.map(|field| field as usize);
        if iterations == 0 && distance != 0 {
            return Err(format!("distance of runs is {}, expected none without iterations", distance + 1));
        }
        if iterations != 0 && iterations + 1 != runs {
            return Err(format!("{runs} runs of a descriptor of {} iterations, expected as many", iterations + 1));
        }
        Ok(ShimTask {
            argument,
            offset_bytes,
            words,
            wraps: (!is_line).then_some([inner, middle]),
            strides: self.strides.map(|stride| stride as usize + 1),
            iteration_stride: if iterations == 0 { 0 } else { distance + 1 },
            runs,
        })
    }
}
