//! The tokens that end a text: by the metadata's keys and, because many files name only one of several, by their texts.

use std::collections::BTreeSet;

use super::vocabulary::{Token, Vocabulary, ends_a_text};
use crate::error::Result;
use crate::import::gguf::reader::Gguf;

/// The end-of-text tokens of the metadata, then those with such a text, as llama.cpp has them.
pub fn end_ids(gguf: &Gguf, vocabulary: &Vocabulary, eos_id: Option<u32>) -> Result<Vec<u32>> {
    const KEYS: [&str; 5] =
        ["eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"];
    let mut ids: Vec<u32> = eos_id.into_iter().collect();
    for key in KEYS {
        ids.extend(vocabulary.token_id(gguf, key)?);
    }
    let is_end = |token: &Token| {
        ends_a_text(token.text) || token.kind.is_matched_whole() && END_TEXTS_OR_TEXT.contains(&token.text)
    };
    ids.extend(vocabulary.tokens().filter(is_end).map(|token| token.id));
    if goes_on_after_end(vocabulary) {
        ids.retain(|id| vocabulary.text(*id) != "<|end|>");
    }
    let mut seen = BTreeSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}

/// Texts that some vocabularies have as ordinary tokens, too: in Qwen's, `</s>` is a tag of HTML.
const END_TEXTS_OR_TEXT: [&str; 5] = ["</s>", "<eos>", "<EOT>", "[EOT]", "[EOS]"];

/// Whether `<|end|>` ends a message, not the reply: that of gpt-oss goes on until it returns or calls.
fn goes_on_after_end(vocabulary: &Vocabulary) -> bool {
    let has = |text| vocabulary.id(text).is_some();
    has("<|call|>") && has("<|return|>") || has("<|calls|>") && has("<|flush|>")
}

#[cfg(test)]
mod tests {
    use super::super::tests::parsed;
    use crate::import::gguf::test_file::{TestFile, TestValue};

    fn file(tokens: &[(&str, i32)]) -> TestFile {
        let mut file = TestFile::with_tokenizer("llama", tokens);
        file.set("tokenizer.ggml.scores", TestValue::Floats(&vec![0.0; tokens.len()]));
        file.set("tokenizer.ggml.eos_token_id", TestValue::U32(0));
        file
    }

    #[test]
    fn every_end_of_text_stops_and_the_metadata_comes_first() {
        let mut file = file(&[("x", 1), ("<|end_of_text|>", 3), ("<|eot_id|>", 3), ("</s>", 1)]);
        file.set("tokenizer.ggml.eot_token_id", TestValue::U32(2));
        let files = parsed(&file);
        // "</s>" is an ordinary token here, so it is text.
        assert_eq!(files.stop_ids, [0, 2, 1]);
        assert_eq!(files.eos_token.as_deref(), Some("x"));
    }

    /// Gemma 4's file has `<|tool_response>` as a user-defined token, older files have `<|endoftext|>` as text.
    #[test]
    fn an_end_of_text_stops_whatever_its_kind() {
        let tokens = [("<eos>", 3), ("a", 1), ("<|tool_response>", 4), ("<|endoftext|>", 1), ("</s>", 4)];
        let files = parsed(&file(&tokens));
        assert_eq!(files.stop_ids, [0, 2, 3, 4]);
        let tokenizer: tokenizers::Tokenizer = files.tokenizer_json.parse().unwrap();
        assert_eq!(tokenizer.decode(&[1, 2, 1, 3], true).unwrap(), "aa");
    }

    #[test]
    fn a_message_of_gpt_oss_ends_without_the_reply() {
        let messages = [("<|return|>", 3), ("<|end|>", 3), ("<|call|>", 3), ("<|endoftext|>", 3)];
        let mut reply = file(&messages);
        reply.set("tokenizer.ggml.eot_token_id", TestValue::U32(1));
        assert_eq!(parsed(&reply).stop_ids, [0, 2, 3]);
        assert_eq!(parsed(&file(&messages[..2])).stop_ids, [0, 1]);
    }

    #[test]
    fn a_filled_in_middle_ends_at_padding_and_at_a_further_file() {
        let mut file =
            file(&[("</s>", 3), ("<|fim_pad|>", 4), ("<|file_sep|>", 4), ("<pad>", 3), ("<|fim_middle|>", 4)]);
        file.set("tokenizer.ggml.fim_pad_token_id", TestValue::U32(3));
        assert_eq!(parsed(&file).stop_ids, [0, 3, 1, 2]);
    }
}
