//! Letters that are tokens beside a byte-level vocabulary.
//!
//! Such a vocabulary writes each byte as a character. Thirteen bytes never occur in UTF-8, and DeepSeek's first
//! vocabularies have the characters of those, `ü` among them, as added tokens for the letters themselves. Its decoder
//! takes them for the bytes, which are no text.

use serde_json::{Value, json};
use tokenizers::{DecoderWrapper, Tokenizer};

use crate::byte_alphabet::byte_alphabet;

/// The characters of the bytes C0, C1 and F5 to FF.
const LETTERS: [char; 13] = ['À', 'Á', 'õ', 'ö', '÷', 'ø', 'ù', 'ú', 'û', 'ü', 'ý', 'þ', 'ÿ'];

/// Has the tokenizer decode those letters among its added tokens as letters.
///
/// # Errors
/// Those of `tokenizers`, when it does not take the decoder.
pub(crate) fn decode_added_letters(tokenizer: &mut Tokenizer) -> Result<(), tokenizers::Error> {
    let Some(DecoderWrapper::ByteLevel(bytes)) = tokenizer.get_decoder() else { return Ok(()) };
    let added = tokenizer.get_added_tokens_decoder();
    let is_added = |letter: &char| added.values().any(|token| token.content.chars().eq([*letter]));
    let letters: Vec<char> = LETTERS.into_iter().filter(is_added).collect();
    if letters.is_empty() {
        return Ok(());
    }
    let mut decoders: Vec<Value> = letters.into_iter().map(spell).collect();
    decoders.push(serde_json::to_value(bytes)?);
    let decoder: DecoderWrapper = serde_json::from_value(json!({ "type": "Sequence", "decoders": decoders }))?;
    tokenizer.with_decoder(Some(decoder));
    Ok(())
}

/// A decoder that writes a letter's own bytes in its place, as the vocabulary does. No other token has the letter.
fn spell(letter: char) -> Value {
    let characters = byte_alphabet();
    let character =
        |byte: u8| characters.iter().find(|(_, written)| **written == byte).map(|(character, _)| *character);
    let spelled: String = letter.to_string().bytes().filter_map(character).collect();
    json!({ "type": "Replace", "pattern": { "String": letter }, "content": spelled })
}

#[cfg(test)]
mod tests {
    use crate::tokenizer::tests::tokenizer;

    /// `f`, `r`, the two bytes of `é`, and the letters `ü` and `À` as DeepSeek-V2 has them.
    const GERMAN: &str = r#"{
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [
            {"id": 4, "content": "ü", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
             "special": false},
            {"id": 5, "content": "À", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
             "special": false}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"f": 0, "r": 1, "Ã": 2, "©": 3, "ü": 4, "À": 5}, "merges": []}
    }"#;

    #[test]
    fn an_added_letter_is_itself_in_text() {
        let tokenizer = tokenizer(GERMAN);
        let ids = tokenizer.encode("fürÀé").unwrap();
        assert_eq!(ids, [0, 4, 1, 5, 2, 3]);
        assert_eq!(tokenizer.decode(&ids).unwrap(), "fürÀé");
        let mut detokenizer = tokenizer.detokenizer(&[]);
        let pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(*id).unwrap()).collect();
        assert_eq!(pieces, ["f", "ü", "r", "À", "", "é"]);
        let bytes: Vec<Vec<u8>> = tokenizer.vocabulary().into_iter().map(|token| token.bytes).collect();
        assert_eq!(bytes[3..], [vec![0xa9], "ü".into(), "À".into()]);
    }
}
