//! Reads what a core's linker made: a 32-bit ELF file, whose loaded segments are code from address 0 and constants in the core's own memory.
//!
//! Source: System V ABI, "Object Files" (fields of the header and of program headers).

use super::source::{OWN_MEMORY, PROGRAM_BYTES};
use crate::control::CoreProgram;
use crate::device::{TileKind, WORD_BYTES, limits};

const HEADER_BYTES: usize = 52;
const SEGMENT_BYTES: usize = 32;
/// A segment that is loaded.
const LOAD: u32 = 1;
/// 0x7f "ELF", 32 bits, little-endian.
const IDENTITY: [u8; 6] = [0x7f, b'E', b'L', b'F', 1, 1];

/// The program of a core.
///
/// # Errors
/// What is wrong with the file: no ELF of 32 bits, another entry than 0, or segments outside of a core's memories.
pub(super) fn core_program(file: &[u8]) -> Result<CoreProgram, String> {
    if !file.starts_with(&IDENTITY) || file.len() < HEADER_BYTES {
        return Err("it is no little-endian ELF file of 32 bits".into());
    }
    let entry = word(file, 24)?;
    if entry != 0 {
        return Err(format!("it begins at address {entry:#x}, expected 0, where a core starts"));
    }
    let (first, step, count) = (word(file, 28)? as usize, half(file, 42)? as usize, half(file, 44)? as usize);
    if step < SEGMENT_BYTES {
        return Err(format!("program headers have {step} bytes, expected {SEGMENT_BYTES}"));
    }
    let mut program = CoreProgram::default();
    for index in 0..count {
        let at = index.checked_mul(step).and_then(|offset| first.checked_add(offset)).ok_or("it ends too early")?;
        let [kind, offset, address, _, file_bytes, memory_bytes] =
            [0, 1, 2, 3, 4, 5].map(|field| word(file, at + 4 * field));
        let (offset, file_bytes, memory_bytes) = (offset? as usize, file_bytes? as usize, memory_bytes? as usize);
        if kind? != LOAD || memory_bytes == 0 {
            continue;
        }
        let bytes = offset.checked_add(file_bytes).and_then(|end| file.get(offset..end)).ok_or("it ends too early")?;
        place(&mut program, address?, bytes, memory_bytes)?;
    }
    if program.code.is_empty() {
        return Err("it has no code".into());
    }
    Ok(program)
}

/// Puts a segment where it is loaded.
fn place(program: &mut CoreProgram, address: u32, bytes: &[u8], memory_bytes: usize) -> Result<(), String> {
    let ends_by = |first: u32, most: u32| {
        let end = u64::from(address - first) + memory_bytes.max(bytes.len()) as u64;
        end <= u64::from(most) && address.is_multiple_of(WORD_BYTES as u32)
    };
    let memory = limits(TileKind::Core).memory_bytes as u32;
    if address < OWN_MEMORY && ends_by(0, PROGRAM_BYTES) {
        let at = address as usize / WORD_BYTES;
        let words = words(bytes);
        program.code.resize(program.code.len().max(at + words.len()), 0);
        program.code[at..at + words.len()].copy_from_slice(&words);
        return Ok(());
    }
    if (OWN_MEMORY..OWN_MEMORY + memory).contains(&address) && ends_by(OWN_MEMORY, memory) {
        let mut bytes = bytes.to_vec();
        // What is zero at the start is not in the file.
        bytes.resize(memory_bytes.max(bytes.len()), 0);
        program.data.push((address - OWN_MEMORY, words(&bytes)));
        return Ok(());
    }
    Err(format!(
        "a segment of {memory_bytes} bytes is loaded at {address:#x}, expected words within the {PROGRAM_BYTES} bytes of program memory at 0 or \
         the {memory} bytes of data memory at {OWN_MEMORY:#x}"
    ))
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |four: &[u8]| (0..).zip(four).fold(0, |word, (index, byte)| word | u32::from(*byte) << (8 * index));
    bytes.chunks(WORD_BYTES).map(word).collect()
}

fn word(file: &[u8], at: usize) -> Result<u32, String> {
    let bytes = at.checked_add(4).and_then(|end| file.get(at..end)).ok_or("it ends too early")?;
    Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

fn half(file: &[u8], at: usize) -> Result<u16, String> {
    let bytes = file.get(at..at + 2).ok_or("it ends too early")?;
    Ok(u16::from_le_bytes(bytes.try_into().expect("two bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments as (address, bytes, bytes in memory).
    fn elf(entry: u32, segments: &[(u32, &[u8], u32)]) -> Vec<u8> {
        let mut file = IDENTITY.to_vec();
        file.resize(HEADER_BYTES, 0);
        let mut put = |at: usize, value: u32| file[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(24, entry);
        put(28, HEADER_BYTES as u32);
        put(40, HEADER_BYTES as u32 | (SEGMENT_BYTES as u32) << 16);
        put(44, segments.len() as u32);
        let mut at = (HEADER_BYTES + SEGMENT_BYTES * segments.len()) as u32;
        for (address, bytes, memory) in segments {
            for field in [LOAD, at, *address, *address, bytes.len() as u32, *memory, 7, 4] {
                file.extend(field.to_le_bytes());
            }
            at += bytes.len() as u32;
        }
        segments.iter().for_each(|(_, bytes, _)| file.extend(*bytes));
        file
    }

    #[test]
    fn code_and_constants_come_to_their_places() {
        let file = elf(0, &[(0, &[1, 0, 0, 0, 2, 0, 0], 7), (16, &[3, 0, 0, 0], 4), (0x7_f000, &[9], 8)]);
        let program = core_program(&file).unwrap();
        assert_eq!(program.code, [1, 2, 0, 0, 3]);
        assert_eq!(program.data, [(0xf000, vec![9, 0])]);
    }

    #[test]
    fn files_that_no_core_can_load_are_refused() {
        let code: &[u8] = &[0; 8];
        for (file, part) in [
            (b"MZ".to_vec(), "no little-endian ELF"),
            (elf(4, &[(0, code, 8)]), "begins at address 0x4"),
            (elf(0, &[]), "no code"),
            (elf(0, &[(0x3ffc, code, 8)]), "loaded at 0x3ffc"),
            (elf(0, &[(2, code, 8)]), "loaded at 0x2"),
            (elf(0, &[(0x6_0000, code, 8)]), "loaded at 0x60000"),
            (elf(0, &[(0x7_fffc, code, 8)]), "loaded at 0x7fffc"),
            (elf(0, &[(0x8_0000, code, 8)]), "loaded at 0x80000"),
            (elf(0, &[(0x7_0000, code, u32::MAX)]), "loaded at 0x70000"),
        ] {
            let error = core_program(&file).unwrap_err();
            assert!(error.contains(part), "{part} is not in {error}");
        }
        let whole = elf(0, &[(0, code, 8)]);
        for len in 0..whole.len() {
            assert!(core_program(&whole[..len]).is_err(), "{len} bytes");
        }
    }
}
