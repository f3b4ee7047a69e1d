//! SPIR-V of one target: compressed, with a record of each module's needs, so that readers need not parse the module.
//!
//! ```text
//! records   │ 0 │ 1 │ 2 │ … │ n │ n+1 │ … │ m │        words, hash and needs, one a module
//! frames    │ zstd: modules 0..=n │ zstd: n+1..=m │     the compiler's choices · their alternatives
//! ```
//!
//! Kernels of a target are similar, so a frame holds many of them and is a sixth of their size. A start without tuning unpacks
//! only the first frame.

use std::collections::BTreeSet;
use std::io::Read;

use ruzstd::decoding::StreamingDecoder;
use serde::{Deserialize, Serialize};

use crate::error::ParseError;
use crate::header::hex;

/// Largest frame that a reader unpacks, in bytes of SPIR-V.
pub const MAX_FRAME_BYTES: u64 = 64 << 20;
/// Largest window of a frame, in bytes, which a reader allocates in addition to the result.
pub const MAX_WINDOW_BYTES: u64 = 8 << 20;
/// Most bytes that zstd decodes at a time.
const MAX_BLOCK_BYTES: usize = 128 << 10;
/// Words before the first instruction of a module.
const SPIRV_HEADER_WORDS: u64 = 5;

/// The SPIR-V modules of a target. A module's number is its place in `records`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleSet {
    /// One record for each module.
    pub records: Vec<ModuleRecord>,
    /// The modules' words, in the order of `records`.
    pub frames: Vec<ModuleFrame>,
}

/// Facts about a module that are known without unpacking it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleRecord {
    /// Length of the SPIR-V, in words of 4 bytes.
    pub words: u32,
    /// BLAKE3 of the SPIR-V, little-endian.
    pub hash: [u8; 32],
    /// Its requirements of a device.
    pub needs: ModuleNeeds,
}

/// Consecutive modules as one zstd frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleFrame {
    /// Number of modules.
    pub modules: u32,
    /// Their words, little-endian, one module after the other, compressed.
    pub zstd: Vec<u8>,
}

/// A module's requirements of a device, in Vulkan's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModuleNeeds {
    /// Size of the subgroups that it was made for; 0: it uses none.
    pub subgroup_size: u32,
    /// Invocations of a workgroup.
    pub workgroup_invocations: u32,
    /// Arithmetic in f16 (`shaderFloat16`).
    pub float16: bool,
    /// Integers of 8 bits (`shaderInt8`).
    pub int8: bool,
    /// Integers of 16 bits (`shaderInt16`).
    pub int16: bool,
    /// Integers of 64 bits (`shaderInt64`).
    pub int64: bool,
    /// Atomics on 64-bit integers in buffers (`shaderBufferInt64Atomics`).
    pub int64_atomics: bool,
    /// Packed dot products of int8 (`shaderIntegerDotProduct`).
    pub integer_dot_product: bool,
    /// The Vulkan memory model (`vulkanMemoryModel`).
    pub memory_model: bool,
    /// Products of cooperative matrices, each shape once.
    pub matrices: Vec<MatrixShape>,
}

/// A product of cooperative matrices: (rows, depth) times (depth, columns) added to (rows, columns).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MatrixShape {
    /// Rows of the left operand and of the sum.
    pub rows: u32,
    /// Columns of the right operand and of the sum.
    pub columns: u32,
    /// Columns of the left operand, rows of the right one.
    pub depth: u32,
    /// Elements of both operands.
    pub operands: MatrixElement,
    /// Elements of the sum.
    pub sums: MatrixElement,
}

/// Number format of a cooperative matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MatrixElement {
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// Signed, 8 bits.
    I8,
    /// Signed, 32 bits.
    I32,
}

impl ModuleSet {
    /// Bytes of all modules as SPIR-V.
    pub fn unpacked_bytes(&self) -> u64 {
        self.records.iter().map(|record| 4 * u64::from(record.words)).sum()
    }

    /// Bytes of all modules as they are stored.
    pub fn packed_bytes(&self) -> u64 {
        self.frames.iter().map(|frame| frame.zstd.len() as u64).sum()
    }

    /// SPIR-V of the modules numbered in `wanted`, each at its number; the others may be empty. Allocates at most the frames that
    /// hold them ([`MAX_FRAME_BYTES`] each) and a window of [`MAX_WINDOW_BYTES`].
    ///
    /// # Errors
    /// [`ParseError`] when a frame differs from its records.
    pub fn unpack(&self, wanted: impl IntoIterator<Item = u32>) -> Result<Vec<Vec<u32>>, ParseError> {
        let wanted: BTreeSet<usize> = wanted.into_iter().map(|module| module as usize).collect();
        let mut modules = vec![Vec::new(); self.records.len()];
        let mut first = 0;
        for frame in &self.frames {
            let numbers = first..first + frame.modules as usize;
            first = numbers.end;
            if wanted.range(numbers.clone()).next().is_some() {
                let records = self.records.get(numbers.clone()).unwrap_or_default();
                for (number, words) in numbers.zip(frame.unpack(records)?) {
                    modules[number] = words;
                }
            }
        }
        Ok(modules)
    }

    /// Every module.
    ///
    /// # Errors
    /// Errors of [`ModuleSet::unpack`].
    pub fn unpack_all(&self) -> Result<Vec<Vec<u32>>, ParseError> {
        self.unpack(0..self.records.len() as u32)
    }

    /// Checks that frames hold one module for each record, and that [`ModuleSet::unpack`] accepts their size.
    pub(crate) fn validate(&self) -> Result<(), ParseError> {
        let in_frames: u64 = self.frames.iter().map(|frame| u64::from(frame.modules)).sum();
        if in_frames != self.records.len() as u64 {
            return Err(ParseError::invalid("modules of all frames", self.records.len(), in_frames));
        }
        if let Some(short) = self.records.iter().find(|record| u64::from(record.words) < SPIRV_HEADER_WORDS) {
            return Err(ParseError::invalid(
                "words of a module",
                format!("at least {SPIRV_HEADER_WORDS}"),
                short.words,
            ));
        }
        let mut records = self.records.iter();
        for frame in &self.frames {
            let words: u64 = records.by_ref().take(frame.modules as usize).map(|record| u64::from(record.words)).sum();
            if 4 * words > MAX_FRAME_BYTES {
                return Err(ParseError::invalid(
                    "bytes of a frame of modules",
                    format!("at most {MAX_FRAME_BYTES}"),
                    4 * words,
                ));
            }
        }
        Ok(())
    }
}

impl ModuleFrame {
    fn unpack(&self, records: &[ModuleRecord]) -> Result<Vec<Vec<u32>>, ParseError> {
        let broken = |detail: String| ParseError::Decode { what: "kernels, a frame of modules,", detail };
        let window = match window_bytes(&self.zstd) {
            Some(window) if window <= MAX_WINDOW_BYTES => window as usize,
            found => {
                let found = found.map_or("none".into(), |bytes| bytes.to_string());
                return Err(broken(format!("its window is {found}, expected at most {MAX_WINDOW_BYTES} bytes")));
            }
        };
        // ruzstd panics where its window cannot be allocated. While it grows, it takes up to three times the window and a block.
        let needed = 3 * window + MAX_BLOCK_BYTES;
        if Vec::<u8>::new().try_reserve_exact(needed).is_err() {
            return Err(broken(format!("memory ran out: it takes {needed} bytes to unpack")));
        }
        let mut decoder = StreamingDecoder::new(&self.zstd[..]).map_err(|error| broken(error.to_string()))?;
        let mut modules = Vec::with_capacity(records.len());
        let mut bytes = Vec::new();
        for record in records {
            bytes.resize(4 * record.words as usize, 0);
            decoder.read_exact(&mut bytes).map_err(|error| broken(error.to_string()))?;
            let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")));
            let words: Vec<u32> = words.collect();
            let hash = *blake3::hash(&bytes).as_bytes();
            if hash != record.hash {
                return Err(ParseError::invalid("hash of a module", hex(&record.hash), hex(&hash)));
            }
            modules.push(words);
        }
        match decoder.read(&mut [0]) {
            Ok(0) => Ok(modules),
            Ok(_) => Err(broken("it holds more than its modules".into())),
            Err(error) => Err(broken(error.to_string())),
        }
    }
}

/// The window that a zstd frame requires, in bytes (RFC 8878, 3.1.1.1); `None`: this is not such a frame.
fn window_bytes(frame: &[u8]) -> Option<u64> {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let [descriptor, rest @ ..] = frame.strip_prefix(&MAGIC)? else { return None };
    let is_single_segment = descriptor & 0x20 != 0;
    if !is_single_segment {
        let (exponent, mantissa) = (rest.first()? >> 3, u64::from(rest[0] & 7));
        let base = 1u64 << (10 + exponent);
        return Some(base + base / 8 * mantissa);
    }
    // The window is the whole content, whose size follows the dictionary's number.
    let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = |len: usize| {
        let bytes = rest.get(dictionary_bytes..dictionary_bytes + len)?;
        Some(bytes.iter().rev().fold(0u64, |size, &byte| size << 8 | u64::from(byte)))
    };
    match descriptor >> 6 {
        0 => size(1),
        1 => size(2).map(|size| size + 256),
        2 => size(4),
        _ => size(8),
    }
}

#[cfg(feature = "write")]
mod write {
    use std::io::{self, Write};

    use super::{MAX_WINDOW_BYTES, ModuleFrame, ModuleNeeds, ModuleRecord, ModuleSet};

    /// A module that is to be stored.
    #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Module {
        /// SPIR-V, entry point `main`.
        pub words: Vec<u32>,
        /// Its requirements of a device.
        pub needs: ModuleNeeds,
    }

    /// SmolLM2 for all targets has 5.4 MB of SPIR-V at level 3, and less than 5 MB at this level.
    const LEVEL: i32 = 9;

    impl ModuleSet {
        /// Stores each group of modules that is not empty as one frame; numbers of modules continue over all groups.
        ///
        /// # Errors
        /// When memory for zstd is exhausted.
        pub fn pack<'a>(groups: impl IntoIterator<Item = &'a [Module]>) -> io::Result<ModuleSet> {
            let mut set = ModuleSet::default();
            for modules in groups.into_iter().filter(|modules| !modules.is_empty()) {
                let mut bytes = Vec::new();
                for Module { words, needs } in modules {
                    let start = bytes.len();
                    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
                    let hash = *blake3::hash(&bytes[start..]).as_bytes();
                    set.records.push(ModuleRecord { words: words.len() as u32, hash, needs: needs.clone() });
                }
                set.frames.push(ModuleFrame { modules: modules.len() as u32, zstd: compress(&bytes)? });
            }
            Ok(set)
        }
    }

    fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
        encoder.window_log(MAX_WINDOW_BYTES.ilog2())?;
        encoder.write_all(bytes)?;
        encoder.finish()
    }
}

#[cfg(feature = "write")]
pub use write::Module;

#[cfg(all(test, feature = "write"))]
mod tests {
    use super::*;

    fn module(len: usize) -> Module {
        let words = (0..len as u32).map(|word| word.wrapping_mul(2_654_435_761)).collect();
        Module { words, needs: ModuleNeeds { float16: true, ..ModuleNeeds::default() } }
    }

    #[test]
    fn modules_survive_a_round_trip_and_other_frames_stay_packed() {
        let modules = [module(7), module(100_000), module(9)];
        let set = ModuleSet::pack([&modules[..2], &[], &modules[2..]]).unwrap();
        assert_eq!(set.validate(), Ok(()));
        assert_eq!((set.frames.len(), set.unpacked_bytes()), (2, 4 * (7 + 100_000 + 9)));
        let words: Vec<Vec<u32>> = modules.iter().map(|module| module.words.clone()).collect();
        assert_eq!(set.unpack_all().unwrap(), words);
        assert_eq!(set.unpack([2]).unwrap(), [vec![], vec![], words[2].clone()]);
        assert_eq!(set.unpack([0]).unwrap(), [words[0].clone(), words[1].clone(), vec![]]);
    }

    #[test]
    fn a_frame_of_the_wrong_length_is_refused() {
        let modules = [module(7), module(8)];
        let whole = ModuleSet::pack([&modules[..]]).unwrap();
        let with = |change: &dyn Fn(&mut ModuleSet)| {
            let mut set = whole.clone();
            change(&mut set);
            set.validate().and_then(|()| set.unpack_all()).expect_err("a broken frame").to_string()
        };
        assert!(with(&|set| set.records[1].words = 9).contains("frame of modules"));
        assert!(with(&|set| set.records[1].hash[7] ^= 1).contains("hash of a module"));
        let shorter = ModuleSet::pack([&[module(7)][..]]).unwrap().records;
        assert!(with(&|set| set.records[1] = shorter[0].clone()).contains("more than its modules"));
        assert!(with(&|set| set.records[0].words = 6).contains("hash of a module"));
        assert!(with(&|set| set.records[0].words = 4).contains("words of a module"));
        assert!(with(&|set| set.records[0].words = u32::MAX).contains("bytes of a frame"));
        assert!(with(&|set| set.frames[0].modules = 3).contains("modules of all frames"));
        assert!(with(&|set| set.frames[0].zstd.clear()).contains("window is none"));
        for len in 0..whole.frames[0].zstd.len() {
            with(&|set| set.frames[0].zstd.truncate(len));
        }
    }

    /// Blocks that repeat one byte: a few bytes decode to gigabytes.
    #[test]
    fn a_frame_that_unpacks_to_far_more_is_not_unpacked() {
        let repeated = [[0b010, 0, 0b1_0000, 0].as_slice(); 100_000].concat();
        let bomb = |window: u8| [&[0x28, 0xb5, 0x2f, 0xfd, 0, window], &repeated[..]].concat();
        let refused = |zstd: Vec<u8>| {
            let records = vec![ModuleRecord { words: 5, ..ModuleRecord::default() }];
            let set = ModuleSet { records, frames: vec![ModuleFrame { modules: 1, zstd }] };
            set.unpack_all().expect_err("more than a module").to_string()
        };
        assert!(refused(bomb(30 << 3)).contains("its window is"));
        assert!(refused(bomb(13 << 3)).contains("hash of a module"), "it ends with the first module");
    }

    #[test]
    fn windows_are_read_as_zstd_writes_them() {
        let frame = |bytes: usize| ModuleSet::pack([&[module(bytes / 4)][..]]).unwrap().frames[0].zstd.clone();
        for bytes in [20, 300, 70_000, 3 << 20, 20 << 20] {
            let window = window_bytes(&frame(bytes)).expect("a frame");
            assert!(window <= MAX_WINDOW_BYTES, "{bytes} bytes have a window of {window}");
        }
        assert_eq!(window_bytes(b"(\xb5/"), None);
        assert_eq!(window_bytes(&[0x28, 0xb5, 0x2f, 0xfd, 0x20, 77]), Some(77));
        assert_eq!(window_bytes(&[0x28, 0xb5, 0x2f, 0xfd, 0x60, 1, 1]), Some(256 + 257));
    }
}
