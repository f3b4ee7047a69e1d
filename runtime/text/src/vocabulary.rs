//! The bytes of each token of a vocabulary: tokens can be parts of characters.

use std::collections::HashMap;

use serde_json::Value;

use crate::byte_alphabet::byte_alphabet;
use crate::tokenizer::Tokenizer;

/// A token's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBytes {
    /// Bytes of the token in the middle of a text; for a special token, its name. Empty for an id without a token.
    pub bytes: Vec<u8>,
    /// It is not text.
    pub is_special: bool,
}

impl Tokenizer {
    /// The bytes of every token, by id. Goes through the whole vocabulary.
    pub fn vocabulary(&self) -> Vec<TokenBytes> {
        let tokens = self.tokens();
        let spelling = Spelling::of(&serde_json::to_value(self.decoder()).unwrap_or_default());
        let n_ids = tokens.values().max().map_or(0, |&last| last as usize + 1);
        let mut vocabulary = vec![TokenBytes::default(); n_ids];
        let added = self.added_tokens();
        for (text, id) in tokens {
            let token = &mut vocabulary[id as usize];
            (token.bytes, token.is_special) = match added.get(&id) {
                Some(&is_special) => (text.into_bytes(), is_special),
                None => (spelling.bytes(&text), false),
            };
        }
        vocabulary
    }
}

/// How a vocabulary writes bytes.
struct Spelling {
    /// Byte of each character in GPT-2's alphabet; `None`: the vocabulary does not use it.
    alphabet: Option<HashMap<char, u8>>,
    /// A text in tokens, and the text that replaces it.
    replaced: Option<(String, String)>,
    /// `<0x0A>` is a byte.
    has_byte_tokens: bool,
}

impl Spelling {
    fn of(decoder: &Value) -> Spelling {
        let listed = decoder.get("decoders").and_then(Value::as_array).cloned();
        let parts = listed.unwrap_or_else(|| vec![decoder.clone()]);
        let is = |part: &Value, kind: &str| part.get("type").and_then(Value::as_str) == Some(kind);
        let has = |kind: &str| parts.iter().any(|part| is(part, kind));
        let replaced = parts.iter().find_map(|part| {
            let text = |pointer: &str| part.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
            match (is(part, "Replace"), is(part, "Metaspace")) {
                (true, _) => Some((text("/pattern/String")?, text("/content")?)),
                (_, true) => Some((text("/replacement")?, " ".to_owned())),
                _ => None,
            }
        });
        Spelling { alphabet: has("ByteLevel").then(byte_alphabet), replaced, has_byte_tokens: has("ByteFallback") }
    }

    fn bytes(&self, token: &str) -> Vec<u8> {
        if let Some(alphabet) = &self.alphabet {
            let bytes: Option<Vec<u8>> = token.chars().map(|character| alphabet.get(&character).copied()).collect();
            return bytes.unwrap_or_else(|| token.as_bytes().to_vec());
        }
        let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
        match hex.filter(|_| self.has_byte_tokens).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => vec![byte],
            None => match &self.replaced {
                Some((from, to)) if !from.is_empty() => token.replace(from, to).into_bytes(),
                _ => token.as_bytes().to_vec(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tokenizer::tests::{BYTE_FALLBACK, BYTE_LEVEL, tokenizer};

    fn bytes(json: &str) -> Vec<Vec<u8>> {
        tokenizer(json).vocabulary().into_iter().map(|token| token.bytes).collect()
    }

    #[test]
    fn tokens_are_bytes_in_either_spelling() {
        let level: [&[u8]; 11] =
            [b"<s>", b"a", b" ", b"\xc3", b"\xa9", b" a", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xff"];
        assert_eq!(bytes(BYTE_LEVEL), level);
        let fallback: [&[u8]; 10] = [b"<s>", b" ", b"a", b" a", b"\xe5", b"\x9b", b"\xbd", b"\xc3", b"\xa9", b"\xff"];
        assert_eq!(bytes(BYTE_FALLBACK), fallback);
        let special: Vec<bool> = tokenizer(BYTE_LEVEL).vocabulary().iter().map(|token| token.is_special).collect();
        assert_eq!(special.iter().filter(|is_special| **is_special).count(), 1);
    }
}
