//! [`Vocabulary`]: the tokens of `tokenizer.ggml.tokens` with their kinds and scores.

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use crate::error::Result;
use crate::import::gguf::reader::Gguf;
use crate::import::gguf::value::{Array, Value};

/// Index is id. No text appears twice.
pub struct Vocabulary<'a> {
    texts: Vec<&'a str>,
    kinds: Vec<TokenKind>,
    ids: HashMap<&'a str, u32>,
}

#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub id: u32,
    pub text: &'a str,
    pub kind: TokenKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Made by merging; also bytes, and tokens that no text gives.
    Ordinary,
    Unknown,
    Control,
    UserDefined,
}

impl TokenKind {
    /// Tokens that end a text are control tokens, even where a file has another number for them.
    fn of(text: &str, number: Option<u64>) -> TokenKind {
        match number {
            _ if ends_a_text(text) => TokenKind::Control,
            Some(2) => TokenKind::Unknown,
            Some(3) => TokenKind::Control,
            Some(4) => TokenKind::UserDefined,
            _ => TokenKind::Ordinary,
        }
    }

    /// Whether the token's text stands for the token wherever it occurs.
    pub fn is_matched_whole(self) -> bool {
        self != TokenKind::Ordinary
    }
}

/// Whether a token with this text ends a text whatever kind the file gives it.
pub fn ends_a_text(token: &str) -> bool {
    END_TEXTS.contains(&token)
}

const END_TEXTS: [&str; 21] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    // A model that fills in the middle goes on with padding or a further file where the middle ends.
    "<|fim_pad|>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<reponame>",
    "<|file_sep|>",
];

const TOKENS_KEY: &str = "tokenizer.ggml.tokens";

impl<'a> Vocabulary<'a> {
    pub fn read(gguf: &Gguf<'a>) -> Result<Vocabulary<'a>> {
        /// Longer than any real token; the work on a token grows with the square of its length.
        const LONGEST_TOKEN_BYTES: usize = 1024;
        let tokens = gguf.require(TOKENS_KEY, gguf.array(TOKENS_KEY)?)?;
        let mut vocabulary = Vocabulary { texts: Vec::new(), kinds: Vec::new(), ids: HashMap::new() };
        let kinds = list_for_tokens(gguf, "tokenizer.ggml.token_type", tokens.len())?;
        let mut kinds = kinds.into_iter().flat_map(Array::values);
        for (id, token) in tokens.values().enumerate() {
            let Value::String(text) = token else {
                return Err(gguf.malformed(format!("{TOKENS_KEY} holds {}, expected strings", token.kind())));
            };
            if text.len() > LONGEST_TOKEN_BYTES {
                let found = format!("token {id} has {} bytes", text.len());
                return Err(gguf.malformed(format!("{found}, expected at most {LONGEST_TOKEN_BYTES}")));
            }
            // A tensor has fewer rows than 2^32 by far; ids of a longer list would never be looked up.
            if let Some(first) = vocabulary.ids.insert(text, id as u32) {
                return Err(gguf.malformed(format!("token {id} is {text:?}, as token {first} is already")));
            }
            vocabulary.texts.push(text);
            let number = kinds.next().and_then(|kind| kind.as_unsigned());
            vocabulary.kinds.push(TokenKind::of(text, number));
        }
        Ok(vocabulary)
    }

    /// One score a token, from `tokenizer.ggml.scores`.
    pub fn scores(&self, gguf: &Gguf) -> Result<Vec<f32>> {
        let key = "tokenizer.ggml.scores";
        let scores = gguf.require(key, list_for_tokens(gguf, key, self.len())?)?;
        let number = |score: Value| {
            let expected_number = || gguf.malformed(format!("{key} holds {}, expected numbers", score.kind()));
            score.as_f64().map(|score| score as f32).ok_or_else(expected_number)
        };
        scores.values().map(number).collect()
    }

    pub fn len(&self) -> usize {
        self.texts.len()
    }

    pub fn text(&self, id: u32) -> &'a str {
        self.texts[id as usize]
    }

    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The token that `tokenizer.ggml.` and `name` have.
    pub fn token_id(&self, gguf: &Gguf, name: &str) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{name}");
        let Some(id) = gguf.unsigned(&key)? else { return Ok(None) };
        if id >= self.len() {
            return Err(gguf.malformed(format!("{key} is {id}, the vocabulary has {} tokens", self.len())));
        }
        Ok(Some(id as u32))
    }

    pub fn tokens(&self) -> impl Iterator<Item = Token<'a>> {
        let numbered = self.texts.iter().zip(&self.kinds).zip(0..);
        numbered.map(|((text, kind), id)| Token { id, text, kind: *kind })
    }

    /// Text to id, as tokenizer.json's model has it.
    pub fn to_json(&self) -> Map<String, Json> {
        self.tokens().map(|token| (token.text.to_string(), Json::from(token.id))).collect()
    }
}

/// An array with an element for each token, where the file has it.
fn list_for_tokens<'a>(gguf: &Gguf<'a>, key: &str, tokens: usize) -> Result<Option<Array<'a>>> {
    let list = gguf.array(key)?;
    match list.filter(|list| list.len() != tokens) {
        Some(list) => Err(gguf.malformed(format!("{key} has {} elements, {TOKENS_KEY} has {tokens}", list.len()))),
        None => Ok(list),
    }
}
