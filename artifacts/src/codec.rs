//! The only use of bincode in the project: structured sections to bytes and back, with a limit on a reader's allocations.

use serde::{Serialize, de::DeserializeOwned};

use crate::error::ParseError;

/// Largest structured section (metadata, plan, kernels, tokenizer) that a reader accepts, in bytes.
pub const MAX_SECTION_BYTES: usize = 256 << 20;

/// Encodes little-endian with fixed-width integers, so that equal values are equal bytes on every machine.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    bincode::serde::encode_to_vec(value, config()).expect("our own records always encode")
}

/// Decodes all of `bytes`; trailing bytes are an error. Allocations are bounded by [`MAX_SECTION_BYTES`].
pub fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, ParseError> {
    let (value, used) = bincode::serde::decode_from_slice(bytes, config())
        .map_err(|error| ParseError::Decode { what, detail: error.to_string() })?;
    if used != bytes.len() {
        return Err(ParseError::invalid(format!("length of section {what}"), used, bytes.len()));
    }
    Ok(value)
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_little_endian().with_fixed_int_encoding().with_limit::<MAX_SECTION_BYTES>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_beyond_the_limit_is_refused() {
        for elements in [MAX_SECTION_BYTES as u64 + 1, u64::MAX] {
            let error = decode::<Vec<u8>>("plan", &elements.to_le_bytes()).unwrap_err();
            assert!(matches!(error, ParseError::Decode { what: "plan", .. }), "{error}");
        }
        let text = encode(&"weights");
        assert_eq!(decode::<String>("plan", &text).as_deref(), Ok("weights"));
        assert!(decode::<String>("plan", &[&text[..], &[0]].concat()).is_err());
    }
}
