//! A control image of an NPU program, as Debian's bootgen writes one.

/// The image of `artifacts/src/npu/control_image.hex`: it writes tiles of column 0.
pub fn control_image() -> Vec<u8> {
    let words = include_str!("../../artifacts/src/npu/control_image.hex").split_whitespace();
    words.flat_map(|word| u32::from_str_radix(word, 16).expect("a word").to_le_bytes()).collect()
}

/// Places of the heads of [`control_image`] in words, with their lengths; the last word of each is its checksum.
const HEADS: [(usize, usize); 4] = [(4, 32), (0x24, 16), (0x34, 32), (0x54, 5)];

/// `bytes` with right checksums where [`control_image`] has its heads.
pub fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, len) in HEADS {
        let Some(head) = bytes.get_mut(4 * at..4 * (at + len)) else { continue };
        let (words, sum) = head.split_at_mut(4 * (len - 1));
        let words = words.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")));
        sum.copy_from_slice(&(!words.fold(0, u32::wrapping_add)).to_le_bytes());
    }
    bytes
}
