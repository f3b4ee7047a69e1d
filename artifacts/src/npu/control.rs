//! Control images: the device image (PDI) that configures the array before its first command. This project makes it without programs for
//! the cores, for which it has no compiler; a user's tools make a complete one of a program's MLIR (mlir-aie's `aiecc` with Peano).
//!
//! The check covers which tiles an image writes, not what its cores then do: these are confined to the process by the system's IOMMU.

use super::FIRST_CORE_ROW;
use super::cdo::CdoCommand;
use super::pdi::read_pdi;

/// Longest image: four columns of cores with all of their memories take less.
pub const MAX_CONTROL_BYTES: usize = 4 << 20;

/// Bits of an address: column, row of the array, and place in the tile.
const COLUMN_SHIFT: u32 = 25;
const ROW_SHIFT: u32 = 20;
const ROW_MASK: u32 = 0x1f;
const ROWS: u32 = FIRST_CORE_ROW + 4;
/// Offset of a core's control register in its tile (aie-rt's `xaiemlgbl_params.h`).
pub const CORE_CONTROL: u32 = 0x3_2000;
/// Bit of [`CORE_CONTROL`] that lets the core run.
pub const CORE_ENABLE: u32 = 1;

/// What an image does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Commands that write.
    pub writes: usize,
    /// Commands that let a core run: none in an image without programs for the cores.
    pub cores: usize,
}

/// Checks that `image` is a device image whose commands write tiles of the first `columns` columns alone.
///
/// # Errors
/// The first rule that it breaks.
pub fn check_control(image: &[u8], columns: u32) -> Result<Control, String> {
    if image.len() > MAX_CONTROL_BYTES || !image.len().is_multiple_of(4) {
        return Err(format!("{} bytes, expected whole words and at most {MAX_CONTROL_BYTES} bytes", image.len()));
    }
    check_commands(&read_pdi(image)?, columns)
}

/// Whether `image` lets cores run; not an image that breaks a rule.
pub fn runs_cores(image: &[u8], columns: u32) -> bool {
    check_control(image, columns).is_ok_and(|control| control.cores > 0)
}

fn check_commands(commands: &[CdoCommand], columns: u32) -> Result<Control, String> {
    let mut control = Control { writes: 0, cores: 0 };
    for (index, command) in commands.iter().enumerate() {
        let (address, bytes) = match command {
            CdoCommand::Nothing { .. } => continue,
            CdoCommand::Write { address, .. } | CdoCommand::MaskWrite { address, .. } => (*address, 4),
            CdoCommand::Block { address, words } => (*address, 4 * words.len() as u64),
        };
        let last = u64::from(address) + bytes - 4;
        let (column, row) = (address >> COLUMN_SHIFT, address >> ROW_SHIFT & ROW_MASK);
        if column >= columns || row >= ROWS || last >> ROW_SHIFT != u64::from(address >> ROW_SHIFT) {
            return Err(format!(
                "command {index}: address {address:#x} to {last:#x}, expected a tile of {columns} columns"
            ));
        }
        control.writes += 1;
        control.cores += usize::from(row >= FIRST_CORE_ROW && lets_run(command));
    }
    Ok(control)
}

/// Whether a command to a core's tile sets the bit that lets it run.
fn lets_run(command: &CdoCommand) -> bool {
    let offset = |address: u32| address & ((1 << ROW_SHIFT) - 1);
    match command {
        CdoCommand::Write { address, value } => offset(*address) == CORE_CONTROL && value & CORE_ENABLE != 0,
        CdoCommand::MaskWrite { address, mask, value } => {
            offset(*address) == CORE_CONTROL && mask & value & CORE_ENABLE != 0
        }
        CdoCommand::Block { address, words } => {
            let at = CORE_CONTROL.checked_sub(offset(*address)).filter(|at| at.is_multiple_of(4));
            at.and_then(|at| words.get(at as usize / 4)).is_some_and(|value| value & CORE_ENABLE != 0)
        }
        CdoCommand::Nothing { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npu::cdo::decode_commands;

    /// Written by Debian's `bootgen` 2022.2-2 (`-arch versal`, one image of type cdo) for three CDO files: a block of three words, a masked write and
    /// two writes.
    const IMAGE: &str = include_str!("control_image.hex");

    fn image() -> Vec<u8> {
        let words = IMAGE.split_whitespace().map(|word| u32::from_str_radix(word, 16).unwrap());
        words.flat_map(u32::to_le_bytes).collect()
    }

    /// The image with word `at` changed, and the checksums of all heads made right again where `fix` says so.
    fn changed(at: usize, value: u32, fix: bool) -> Vec<u8> {
        let bytes = image();
        let mut words: Vec<u32> =
            bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
        words[at] = value;
        for (from, len) in [(4, 32), (0x24, 16), (0x34, 32), (0x54, 5)].into_iter().filter(|_| fix) {
            let sum = words[from..from + len - 1].iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
            words[from + len - 1] = !sum;
        }
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn an_image_of_bootgen_is_taken() {
        let expected = Control { writes: 4, cores: 1 };
        assert_eq!(check_control(&image(), 1), Ok(expected));
        assert_eq!(check_control(&image(), 4), Ok(expected));
        assert!(runs_cores(&image(), 1));
        // The last command writes the core's control: another value, and another register.
        assert!(!runs_cores(&changed(0x68, 0, true), 1) && !runs_cores(&changed(0x66, 0x0023_2004, true), 1));
        // Not taken at all.
        assert!(!runs_cores(&image()[..64], 1) && !runs_cores(&image(), 0));
    }

    #[test]
    fn every_broken_rule_is_named() {
        for (at, value, part) in [
            (14, 0, "number at the start"),
            (4, 0x0003_0000, "version is"),
            (5, 2, "number of images"),
            (6, 0xffff_ffff, "image is words"),
            (7, 2, "number of partitions is"),
            (8, 0x4000_0000, "partition of the image"),
            (0x25, 9, "number of partitions of the image"),
            (0x35, 0x4000, "expected at most its"),
            (0x36, 0x4000, "data is words"),
            (0x3c, 0xffff_fff0, "data is words"),
            (0x54, 5, "words of the head"),
            (0x55, 1, "number of the data"),
            (0x56, 1, "version of the data"),
            (0x57, 1, "words of commands"),
            // The first command, a block: too long, of another number, at another address.
            (0x59, 0x00fe_0105, "254 operands, expected at most"),
            (0x59, 0x0005_0109, "unknown"),
            (0x59, 0x0005_0108, "5 operands, expected 3"),
            (0x5a, 1, "upper half of the address"),
            (0x5b, 0x0221_d000, "expected a tile of 1 columns"),
            (0x5b, 0x0061_d000, "expected a tile of 1 columns"),
            // A block that runs into the next tile.
            (0x5b, 0x002f_fff8, "expected a tile of 1 columns"),
        ] {
            let fault = check_control(&changed(at, value, true), 1).expect_err(part);
            assert!(fault.contains(part), "word {at:#x}: {part} is not in: {fault}");
        }
        for (at, part) in
            [(5, "header table"), (0x28, "of the image"), (0x40, "of the partition"), (0x57, "of the data")]
        {
            let fault = check_control(&changed(at, 0x1234_5678, false), 1).expect_err(part);
            assert!(fault.contains("checksum") && fault.contains(part), "word {at:#x}: {fault}");
        }
    }

    #[test]
    fn a_long_block_has_its_length_in_a_word_of_its_own() {
        let block = |len: u32| [&[0x00ff_0105, len, 0, 0x0022_0000], &[7; 300][..]].concat();
        let checked = |words: &[u32]| decode_commands(words).and_then(|commands| check_commands(&commands, 1));
        assert_eq!(checked(&block(302)), Ok(Control { writes: 1, cores: 0 }));
        assert!(checked(&block(303)).unwrap_err().contains("303 operands, expected at most 302"));
        assert!(checked(&[0x00ff_0105]).unwrap_err().contains("ends before its length"));
        assert!(checked(&block(u32::MAX)).is_err());
    }

    #[test]
    fn no_cut_image_is_taken_and_none_ends_in_a_panic() {
        let whole = image();
        for len in 0..whole.len() {
            assert!(check_control(&whole[..len], 4).is_err(), "{len} bytes");
        }
        for at in 0..whole.len() / 4 {
            for value in [0, 1, 0x7fff_ffff, 0xffff_ffff] {
                let _ = check_control(&changed(at, value, true), 4);
            }
        }
        let long = vec![0; MAX_CONTROL_BYTES + 4];
        assert!(check_control(&long, 4).unwrap_err().contains("at most"));
    }
}
