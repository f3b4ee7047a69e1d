//! `tokenizer.ggml.model` gpt2: BPE over bytes, which are written as printable characters in the vocabulary.

use serde_json::{Value as Json, json};

use super::TokenizerParts;
use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::Vocabulary;
use crate::error::Result;
use crate::import::gguf::reader::Gguf;
use crate::import::gguf::value::Value;

pub fn parts(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<TokenizerParts> {
    // Files from before the key existed are split as llama.cpp splits them.
    let pre_tokenizer = PreTokenizer::named(gguf.string("tokenizer.ggml.pre")?.unwrap_or("default"))?;
    let mut steps: Vec<Json> = pre_tokenizer.patterns.iter().map(|pattern| split(pattern)).collect();
    steps.push(byte_level());
    Ok(TokenizerParts {
        normalizer: if pre_tokenizer.composes_unicode { json!({ "type": "NFC" }) } else { Json::Null },
        pre_tokenizer: json!({ "type": "Sequence", "pretokenizers": steps }),
        decoder: byte_level(),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre_tokenizer.takes_known_words_whole,
            "vocab": vocabulary.to_json(),
            "merges": merges(gguf, vocabulary)?,
        }),
        default_add_bos: pre_tokenizer.adds_bos,
        always_adds_bos: false,
        swallows_space: |_| false,
        default_bos_id: None,
        default_eos_id: None,
    })
}

pub fn split(pattern: &str) -> Json {
    json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
}

fn byte_level() -> Json {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false })
}

/// Pairs in order of their rank. `tokenizers` refuses a pair whose parts or whole are not tokens; this error also names its place.
pub fn merges(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Vec<Json>> {
    let key = "tokenizer.ggml.merges";
    let list = gguf.require(key, gguf.array(key)?)?;
    let pair = |(rank, merge): (usize, Value)| {
        let Value::String(merge) = merge else {
            return Err(gguf.malformed(format!("{key} holds {}, expected strings", merge.kind())));
        };
        // The first character is part of a token even where it is a space.
        let first_char_bytes = merge.chars().next().map_or(0, char::len_utf8);
        let Some(space) = merge[first_char_bytes..].find(' ') else {
            return Err(gguf.malformed(format!("merge {rank} is {merge:?}, expected two tokens with a space between")));
        };
        let (left, right) = (&merge[..first_char_bytes + space], &merge[first_char_bytes + space + 1..]);
        for token in [left, right, &format!("{left}{right}")] {
            if vocabulary.id(token).is_none() {
                return Err(gguf.malformed(format!("merge {rank} needs {token:?}, which is no token")));
            }
        }
        Ok(json!([left, right]))
    };
    list.values().enumerate().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::{encode, parsed, tokenizer_of};
    use crate::import::gguf::parse;
    use crate::import::gguf::test_file::{TestFile, TestValue};

    fn file() -> TestFile {
        let tokens = [
            ("<|end|>", 3),
            ("<think>", 4),
            ("Ġ", 1),
            ("t", 1),
            ("o", 1),
            ("1", 1),
            ("Ã", 1),
            ("©", 1),
            ("Ġt", 1),
            ("to", 1),
            ("Ġto", 1),
            ("Ã©", 1),
            ("11", 1),
        ];
        let mut file = TestFile::with_tokenizer("gpt2", &tokens);
        file.set("tokenizer.ggml.merges", TestValue::Strings(&["Ġ t", "t o", "Ġt o", "Ã ©", "1 1"]));
        file.set("tokenizer.ggml.pre", TestValue::String("gpt-2"));
        file
    }

    #[test]
    fn merges_work_on_bytes_within_words() {
        let tokenizer = tokenizer_of(&file());
        assert_eq!(encode(&tokenizer, "to to11é"), ["to", "Ġto", "11", "Ã©"]);
        assert_eq!(tokenizer.decode(&[9, 10, 11], false).unwrap(), "to toé");
    }

    #[test]
    fn special_tokens_are_found_in_text_and_end_it() {
        let tokenizer = tokenizer_of(&file());
        assert_eq!(encode(&tokenizer, "<think>to<|end|>"), ["<think>", "to", "<|end|>"]);
        assert_eq!(tokenizer.decode(&[1, 9, 0], true).unwrap(), "<think>to");
        let files = parsed(&file());
        assert_eq!((files.stop_ids, files.add_bos, files.bos_id), (vec![0], false, None));
    }

    #[test]
    fn the_named_pre_tokenizer_is_used() {
        let mut file = file();
        file.set("tokenizer.ggml.pre", TestValue::String("smollm"));
        assert_eq!(encode(&tokenizer_of(&file), "11"), ["1", "1"]);
        file.set("tokenizer.ggml.pre", TestValue::String("klingon"));
        let message = parse(Path::new("model.gguf"), &file.bytes()).err().unwrap().to_string();
        assert!(
            message.contains("tokenizer.ggml.pre klingon is not supported: supported are: default, gpt-2"),
            "{message}"
        );
    }

    /// glm4 takes a word that is a token whole, chatglm-bpe merges its parts.
    #[test]
    fn words_that_are_tokens_are_taken_whole_by_some() {
        let mut file = file();
        file.set("tokenizer.ggml.merges", TestValue::Strings(&["Ġ t", "Ġt o", "Ã ©"]));
        file.set("tokenizer.ggml.pre", TestValue::String("glm4"));
        assert_eq!(encode(&tokenizer_of(&file), "to11"), ["to", "11"]);
        file.set("tokenizer.ggml.pre", TestValue::String("chatglm-bpe"));
        assert_eq!(encode(&tokenizer_of(&file), "to11"), ["t", "o", "1", "1"]);
    }

    #[test]
    fn a_merge_of_no_tokens_is_refused() {
        for (merge, expected) in [
            ("t x", "merge 0 needs \"x\", which is no token"),
            ("o t", "merge 0 needs \"ot\", which is no token"),
            ("to", "merge 0 is \"to\", expected two tokens with a space between"),
        ] {
            let mut file = file();
            file.set("tokenizer.ggml.merges", TestValue::Strings(&[merge]));
            let message = parse(Path::new("model.gguf"), &file.bytes()).err().unwrap().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
