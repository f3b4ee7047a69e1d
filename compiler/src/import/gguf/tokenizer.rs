//! The tokenizer in a GGUF file's metadata as a tokenizer.json, with its special tokens and chat template.

use serde_json::{Value as Json, json};
use unicorn_artifact::TokenizerSection;

use self::end_tokens::end_ids;
use self::vocabulary::{TokenKind, Vocabulary};
use super::reader::Gguf;
use crate::error::{CompileError, Result};

mod byte_level;
mod end_tokens;
mod pre_tokenizer;
mod sentencepiece;
mod vocabulary;

/// Reads `tokenizer.*`. A file with `no_vocab`, `none` or no such key gives an empty one.
///
/// # Errors
/// For kinds of tokenizers and pre-tokenizers that are not supported, and for lists that contradict each other.
pub fn read(gguf: &Gguf) -> Result<TokenizerSection> {
    let model_key = "tokenizer.ggml.model";
    let model = match gguf.string(model_key)? {
        None | Some("no_vocab" | "none") => return Ok(TokenizerSection::default()),
        Some(model) => model,
    };
    let vocabulary = Vocabulary::read(gguf)?;
    check_rows(gguf, &vocabulary)?;
    let parts = match model {
        "gpt2" => byte_level::parts(gguf, &vocabulary)?,
        "llama" => sentencepiece::parts(gguf, &vocabulary)?,
        "gemma4" => sentencepiece::merging_parts(gguf, &vocabulary)?,
        other => {
            return Err(CompileError::Unsupported {
                what: format!("{model_key} {other}"),
                detail:
                    "supported are gpt2 (byte-level BPE), llama (SentencePiece BPE) and gemma4 (the same with merges)"
                        .to_string(),
            });
        }
    };
    let bos_id = vocabulary.token_id(gguf, "bos_token_id")?.or(parts.default_bos_id);
    let eos_id = vocabulary.token_id(gguf, "eos_token_id")?.or(parts.default_eos_id);
    let bos_token = bos_id.map(|id| vocabulary.text(id).to_string());
    let add_bos = match gguf.bool("tokenizer.ggml.add_bos_token")? {
        Some(add_bos) => add_bos || parts.always_adds_bos,
        None => parts.default_add_bos,
    };
    let add_bos = add_bos && bos_id.is_some();
    let mut tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(&vocabulary, parts.swallows_space),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": null,
        "decoder": parts.decoder,
        "model": parts.model,
    });
    let add_eos = gguf.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let (first, last) = (bos_id.filter(|_| add_bos), eos_id.filter(|_| add_eos));
    if first.or(last).is_some() {
        tokenizer["post_processor"] = template(&vocabulary, first, last);
    }
    Ok(TokenizerSection {
        tokenizer_json: tokenizer.to_string(),
        chat_template: gguf.string("tokenizer.chat_template")?.map(str::to_string),
        bos_token,
        eos_token: eos_id.map(|id| vocabulary.text(id).to_string()),
        add_bos,
        bos_id,
        stop_ids: end_ids(gguf, &vocabulary, eos_id)?,
    })
}

/// The differences between the two kinds of tokenizers: parts of tokenizer.json, and llama.cpp's values for missing keys.
struct TokenizerParts {
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    model: Json,
    default_add_bos: bool,
    /// BOS is added even where the file states otherwise.
    always_adds_bos: bool,
    /// Whether a token that is matched whole takes the white space after it, by its text.
    swallows_space: fn(&str) -> bool,
    default_bos_id: Option<u32>,
    default_eos_id: Option<u32>,
}

/// Tokens that are matched in the text before any other step.
fn added_tokens(vocabulary: &Vocabulary, swallows_space: fn(&str) -> bool) -> Vec<Json> {
    let added = vocabulary.tokens().filter(|token| token.kind.is_matched_whole());
    let entry = |token: vocabulary::Token| {
        json!({
            "id": token.id,
            "content": token.text,
            "single_word": false,
            "lstrip": false,
            "rstrip": swallows_space(token.text),
            "normalized": false,
            "special": token.kind != TokenKind::UserDefined,
        })
    };
    added.map(entry).collect()
}

/// A text between the tokens that are added to it.
fn template(vocabulary: &Vocabulary, first: Option<u32>, last: Option<u32>) -> Json {
    let special = |id: Option<u32>| id.map(|id| json!({ "SpecialToken": { "id": vocabulary.text(id), "type_id": 0 } }));
    let sequence = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
    let around =
        |texts: Vec<Json>| -> Vec<Json> { special(first).into_iter().chain(texts).chain(special(last)).collect() };
    let added = first.into_iter().chain(last);
    let tokens: serde_json::Map<String, Json> = added
        .map(|id| (vocabulary.text(id), id))
        .map(|(text, id)| (text.to_string(), json!({ "id": text, "ids": [id], "tokens": [text] })))
        .collect();
    json!({
        "type": "TemplateProcessing",
        "single": around(vec![sequence("A")]),
        "pair": around(vec![sequence("A"), sequence("B")]),
        "special_tokens": tokens,
    })
}

/// A token without a row in the embedding could occur in a text but not be computed.
fn check_rows(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<()> {
    match gguf.tensors.get("token_embd.weight") {
        Some(embedding) if vocabulary.len() > embedding.shape[0] => {
            let (tokens, rows) = (vocabulary.len(), embedding.shape[0]);
            Err(gguf.malformed(format!("vocabulary has {tokens} tokens, token_embd.weight has {rows} rows")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokenizers::Tokenizer;

    use super::super::parse;
    use super::super::test_file::{TestFile, TestValue};
    use super::*;

    pub fn parsed(file: &TestFile) -> TokenizerSection {
        parse(Path::new("model.gguf"), &file.bytes()).unwrap_or_else(|error| panic!("{error}")).tokenizer
    }

    pub fn tokenizer_of(file: &TestFile) -> Tokenizer {
        parsed(file).tokenizer_json.parse().unwrap()
    }

    /// The tokens of a text, without BOS.
    pub fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
        tokenizer.encode(text, false).unwrap().get_tokens().to_vec()
    }

    #[test]
    fn a_file_without_a_tokenizer_gives_none() {
        let mut file = TestFile::model("llama");
        file.set("tokenizer.ggml.model", TestValue::String("no_vocab"));
        let files = parsed(&file);
        assert_eq!((files.tokenizer_json.as_str(), files.stop_ids.len()), ("", 0));
    }

    #[test]
    fn the_chat_template_is_taken() {
        let mut file = TestFile::with_tokenizer("llama", &[("<unk>", 2), ("<s>", 3), ("</s>", 3)]);
        file.set("tokenizer.ggml.scores", TestValue::Floats(&[0.0; 3]));
        file.set("tokenizer.chat_template", TestValue::String("{{ bos_token }}"));
        assert_eq!(parsed(&file).chat_template.as_deref(), Some("{{ bos_token }}"));
    }
}
