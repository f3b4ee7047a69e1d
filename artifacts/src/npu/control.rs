//! Control images: the device image (PDI) that configures the array before its first command. A user's tools make it of a program's
//! MLIR (mlir-aie's `aiecc` with Peano); this project has no compiler for the cores.
//!
//! ```text
//! words, little-endian; places are numbers of words from the start, a checksum is the inverted sum of the words before it
//! 0       4 words of bus width
//! 4       table    0 version · 1 images: 1 · 2 place of the image · 3 partitions: 1 · 4 place of the partition · 10 "PPDI" · 31 checksum
//! place   image    0 place of the partition · 1 partitions: 1 · 4 name, 16 bytes · 15 checksum
//! place   partition 1 words · 2 words with padding · 8 place of the data · 31 checksum
//! place   data     0 words of the head behind it: 4 · 1 "CDO" · 2 version · 3 words of commands · 4 checksum, then the commands
//! command          words of operands << 16 │ 1 << 8 │ number, operands; 255 words: their number is the next word
//! ```
//!
//! The check covers which tiles an image writes, not what its cores then do: these are confined to the process by the system's IOMMU.

use super::FIRST_CORE_ROW;

/// Longest image: four columns of cores with all of their memories take less.
pub const MAX_CONTROL_BYTES: usize = 4 << 20;

const TABLE_AT: usize = 4;
const TABLE_WORDS: usize = 32;
const IMAGE_WORDS: usize = 16;
const PARTITION_WORDS: usize = 32;
const DATA_HEAD_WORDS: usize = 5;
const VERSION: u32 = 0x0004_0000;
/// "PPDI", as a number.
const PPDI: u32 = 0x5050_4449;
/// "CDO", as a number.
const CDO: u32 = 0x004f_4443;
const CDO_VERSION: u32 = 0x200;
/// Operands' number that stands in a word of its own.
const LONG: u32 = 255;
/// Bits of an address: column, row of the array, and place in the tile.
const COLUMN_SHIFT: u32 = 25;
const ROW_SHIFT: u32 = 20;
const ROW_MASK: u32 = 0x1f;
const ROWS: u32 = FIRST_CORE_ROW + 4;

/// Checks that `image` is a device image whose commands write tiles of the first `columns` columns alone. Returns the number of its commands
/// that write.
///
/// # Errors
/// The first rule that it breaks.
pub fn check_control(image: &[u8], columns: u32) -> Result<usize, String> {
    if image.len() > MAX_CONTROL_BYTES || !image.len().is_multiple_of(4) {
        return Err(format!("{} bytes, expected whole words and at most {MAX_CONTROL_BYTES} bytes", image.len()));
    }
    let words: Vec<u32> =
        image.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("four"))).collect();
    let table = part(&words, "header table", TABLE_AT, TABLE_WORDS)?;
    expect("number at the start", PPDI, table[10])?;
    expect("version", VERSION, table[0])?;
    has_sum("header table", table)?;
    expect("number of images", 1, table[1])?;
    expect("number of partitions", 1, table[3])?;
    let partition_at = table[4];
    let header = part(&words, "image", table[2] as usize, IMAGE_WORDS)?;
    has_sum("image", header)?;
    expect("partition of the image", partition_at, header[0])?;
    expect("number of partitions of the image", 1, header[1])?;
    let partition = part(&words, "partition", partition_at as usize, PARTITION_WORDS)?;
    has_sum("partition", partition)?;
    let [len, padded] = [partition[1], partition[2]];
    if len > padded {
        return Err(format!("partition has {len} words, expected at most its {padded} with padding"));
    }
    // The padding is a part of the file as well.
    let data = &part(&words, "data", partition[8] as usize, padded as usize)?[..len as usize];
    let head = part(data, "head of the data", 0, DATA_HEAD_WORDS)?;
    expect("number of the data", CDO, head[1])?;
    expect("words of the head", 4, head[0])?;
    expect("version of the data", CDO_VERSION, head[2])?;
    has_sum("head of the data", head)?;
    expect("words of commands", len - DATA_HEAD_WORDS as u32, head[3])?;
    check_commands(&data[DATA_HEAD_WORDS..], columns)
}

fn expect(what: &str, expected: u32, found: u32) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("{what} is {found:#x}, expected {expected:#x}")) }
}

fn part<'w>(words: &'w [u32], what: &str, at: usize, len: usize) -> Result<&'w [u32], String> {
    let end = at.saturating_add(len);
    words.get(at..end).ok_or_else(|| format!("{what} is words {at} to {end}, expected up to {}", words.len()))
}

/// The last word is the inverted sum of those before it.
fn has_sum(what: &str, words: &[u32]) -> Result<(), String> {
    let (last, before) = words.split_last().expect("a part has words");
    expect(&format!("checksum of the {what}"), !before.iter().fold(0, |sum: u32, word| sum.wrapping_add(*word)), *last)
}

fn check_commands(mut words: &[u32], columns: u32) -> Result<usize, String> {
    let (mut index, mut writes) = (0, 0);
    while let Some((head, rest)) = words.split_first() {
        let (len, rest) = match (head >> 16 & LONG, rest.split_first()) {
            (LONG, Some((len, rest))) => (*len as usize, rest),
            (LONG, None) => return Err(format!("command {index} ends before its length")),
            (len, _) => (len as usize, rest),
        };
        let Some((operands, rest)) = rest.split_at_checked(len) else {
            return Err(format!("command {index} has {len} operands, expected at most {}", rest.len()));
        };
        let of = |what: String| format!("command {index}, {head:#010x}: {what}");
        // Number, and operands of each: none moves memory of the system or runs code of the firmware.
        let (expected, upper, bytes) = match head & !(LONG << 16) {
            // A masked write: address, mask, value. A write: address, value.
            0x102 => (3, None, 4),
            0x103 => (2, None, 4),
            // A block, and the same with addresses of two words, upper half first.
            0x105 => (len.max(3), Some(()), 4 * len.max(3) - 8),
            0x107 => (4, Some(()), 4),
            0x108 => (3, Some(()), 4),
            // Nothing, with operands that place the next command.
            0x111 => {
                (words, index) = (rest, index + 1);
                continue;
            }
            _ => return Err(of("unknown, expected a write or nothing".into())),
        };
        if len != expected {
            return Err(of(format!("{len} operands, expected {expected}")));
        }
        let address = match upper {
            Some(()) if operands[0] != 0 => {
                return Err(of(format!("upper half of the address is {:#x}, expected 0", operands[0])));
            }
            Some(()) => operands[1],
            None => operands[0],
        };
        let last = u64::from(address) + bytes as u64 - 4;
        let (column, row) = (address >> COLUMN_SHIFT, address >> ROW_SHIFT & ROW_MASK);
        if column >= columns || row >= ROWS || last >> ROW_SHIFT != u64::from(address >> ROW_SHIFT) {
            return Err(of(format!("address {address:#x} to {last:#x}, expected a tile of {columns} columns")));
        }
        (words, index, writes) = (rest, index + 1, writes + 1);
    }
    Ok(writes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(check_control(&image(), 1), Ok(4));
        assert_eq!(check_control(&changed(4, VERSION, true), 4), Ok(4));
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
        assert_eq!(check_commands(&block(302), 1), Ok(1));
        assert!(check_commands(&block(303), 1).unwrap_err().contains("303 operands, expected at most 302"));
        assert!(check_commands(&[0x00ff_0105], 1).unwrap_err().contains("ends before its length"));
        assert!(check_commands(&block(u32::MAX), 1).is_err());
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
