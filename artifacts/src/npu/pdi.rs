//! Device images (PDI): the container of the commands that configure the array before its first command.
//!
//! ```text
//! words, little-endian; places are numbers of words from the start, a checksum is the inverted sum of the words before it
//! 0       4 words of bus width
//! 4       table    0 version · 1 images: 1 · 2 place of the image · 3 partitions: 1 · 4 place of the partition · 6 device · 10 "PPDI"
//!                  11 words of a partition, an image and the table: 0x20, 0x10, 0x20 · 12 words of table and image · 17 1 · 31 checksum
//! place   image    0 place of the partition · 1 partitions: 1 · 4 name, 16 bytes · 8 id · 15 checksum
//! place   partition 0, 2 words with padding · 1 words · 6, 7 load address: none · 8 place of the data · 9 attributes: CDO · 10 sections: 1
//!                  31 checksum
//! place   data     a CDO: the objects of all parts behind one head, padded to 16 bytes
//! ```
//!
//! As Debian's `bootgen` 2022.2 (`-arch versal`) writes it for one image of type CDO; AMD's UG1283 describes the headers.

use super::cdo::{CdoCommand, decode_object, encode_aligned, expect, inverted_sum, with_head};

const BUS_WIDTH: [u32; 4] = [0x0000_00dd, 0x1122_3344, 0x5566_7788, 0x99aa_bbcc];
const TABLE_AT: usize = BUS_WIDTH.len();
const TABLE_WORDS: usize = 32;
const IMAGE_AT: usize = TABLE_AT + TABLE_WORDS;
const IMAGE_WORDS: usize = 16;
const PARTITION_AT: usize = IMAGE_AT + IMAGE_WORDS;
const PARTITION_WORDS: usize = 32;
const DATA_AT: usize = PARTITION_AT + PARTITION_WORDS;
const VERSION: u32 = 0x0004_0000;
/// "PPDI", as a number.
const PPDI: u32 = 0x5050_4449;
/// Device and image that mlir-aie's tools name for the NPU.
const ID_CODE: u32 = 0x14ca_8093;
const EXTENDED_ID_CODE: u32 = 1;
const IMAGE_NAME: [u32; 3] = [u32::from_le_bytes(*b"aie_"), u32::from_le_bytes(*b"imag"), b'e' as u32];
const IMAGE_ID: u32 = 0x1c00_0000;
/// A CDO, owned by the firmware's loader.
const ATTRIBUTES: u32 = 0x0200_0006;
const NOWHERE: u32 = u32::MAX;

/// The device image of `parts`, each a list of commands that is aligned by itself.
pub fn write_pdi(parts: &[Vec<CdoCommand>]) -> Vec<u8> {
    let commands: Vec<u32> = parts.iter().flat_map(|part| encode_aligned(part)).collect();
    let data = with_head(&commands);
    let padded = data.len().next_multiple_of(4);
    let [image_at, partition_at, data_at] = [IMAGE_AT, PARTITION_AT, DATA_AT].map(|at| at as u32);
    let [words, padded_words] = [data.len(), padded].map(|len| u32::try_from(len).expect("an image has few words"));

    let mut table = vec![VERSION, 1, image_at, 1, partition_at, 0, ID_CODE, 0, 0, 0, PPDI];
    table.extend([0x0020_1020, (TABLE_WORDS + IMAGE_WORDS) as u32, 0, 0, 0, 0, EXTENDED_ID_CODE]);
    let image = [&[partition_at, 1, 0, 0][..], &IMAGE_NAME, &[0, IMAGE_ID]].concat();
    let partition = vec![padded_words, words, padded_words, 0, 0, 0, NOWHERE, NOWHERE, data_at, ATTRIBUTES, 1];
    let headers = [(table, TABLE_WORDS), (image, IMAGE_WORDS), (partition, PARTITION_WORDS)];
    let summed = |(mut header, words): (Vec<u32>, usize)| {
        header.resize(words - 1, 0);
        header.push(inverted_sum(&header));
        header
    };
    let mut image: Vec<u32> = BUS_WIDTH.into_iter().chain(headers.into_iter().flat_map(summed)).chain(data).collect();
    image.resize(DATA_AT + padded, 0);
    image.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Reads the commands of a device image with one image of one partition.
///
/// # Errors
/// The first rule that it breaks.
pub fn read_pdi(image: &[u8]) -> Result<Vec<CdoCommand>, String> {
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
    decode_object(&part(&words, "data", partition[8] as usize, padded as usize)?[..len as usize])
}

fn part<'w>(words: &'w [u32], what: &str, at: usize, len: usize) -> Result<&'w [u32], String> {
    let end = at.saturating_add(len);
    words.get(at..end).ok_or_else(|| format!("{what} is words {at} to {end}, expected up to {}", words.len()))
}

/// The last word is the inverted sum of those before it.
fn has_sum(what: &str, words: &[u32]) -> Result<(), String> {
    let (last, before) = words.split_last().expect("a part has words");
    expect(&format!("checksum of the {what}"), inverted_sum(before), *last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_bootgen_is_written_again() {
        let words = include_str!("control_image.hex").split_whitespace();
        let image: Vec<u8> = words.flat_map(|word| u32::from_str_radix(word, 16).unwrap().to_le_bytes()).collect();
        assert_eq!(write_pdi(&[read_pdi(&image).unwrap()]), image);
    }
}
