//! The characters by which a byte-level vocabulary writes bytes.

use std::collections::HashMap;

/// GPT-2's alphabet: printable characters of Latin-1 stand for themselves, the other bytes are numbered from U+0100 on.
pub(crate) fn byte_alphabet() -> HashMap<char, u8> {
    let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = '\u{100}'..;
    (0..=u8::MAX)
        .map(|byte| match stands_for_itself(byte) {
            true => (char::from(byte), byte),
            false => (next.next().expect("there are more characters"), byte),
        })
        .collect()
}
