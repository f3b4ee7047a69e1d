//! The tokenizer of an artifact: text to token ids. `detokenizer` is the inverse.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use unicorn_artifact::TokenizerSection;

use crate::added_letters::decode_added_letters;
use crate::error::TextError;

/// A model's tokenizer. Cloning is cheap: clones share the vocabulary. All methods may be called from several threads at once.
///
/// ```no_run
/// # fn example(model: &unicorn_runtime::Model) -> Result<(), unicorn_text::TextError> {
/// let tokenizer = unicorn_text::Tokenizer::new(model.tokenizer_section())?;
/// let prompt: Vec<u32> = tokenizer.encode_prompt("Once upon a time")?;
/// let text: String = tokenizer.decode(&prompt)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tokenizer {
    tokenizer: Arc<tokenizers::Tokenizer>,
    /// The beginning-of-sequence token, if it precedes plain prompts.
    prompt_bos: Option<u32>,
    /// The tokens that follow a text that is embedded.
    text_end: Vec<u32>,
    /// The same tokenizer without special tokens in texts. Made by the first call that needs it.
    literal: Arc<OnceLock<tokenizers::Tokenizer>>,
}

impl Tokenizer {
    /// Parses the tokenizer section of an artifact, which takes tens of milliseconds for a large vocabulary.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] or [`TextError::Tokenizer`].
    pub fn new(section: &TokenizerSection) -> Result<Tokenizer, TextError> {
        if section.tokenizer_json.is_empty() {
            return Err(TextError::NoTokenizer);
        }
        let unusable = |error: tokenizers::Error| TextError::Tokenizer { detail: error.to_string() };
        let mut tokenizer: tokenizers::Tokenizer = section.tokenizer_json.parse().map_err(unusable)?;
        // Some files keep the truncation and the padding of their training.
        tokenizer.with_truncation(None).map_err(unusable)?.with_padding(None);
        decode_added_letters(&mut tokenizer).map_err(unusable)?;
        let prompt_bos = section.bos_id.filter(|_| section.add_bos);
        let text_end = text_end(&tokenizer).map_err(unusable)?;
        Ok(Tokenizer { tokenizer: Arc::new(tokenizer), prompt_bos, text_end, literal: Arc::default() })
    }

    /// Ids of a plain prompt: those of `text`, preceded by the beginning-of-sequence token if the model expects one and the text
    /// does not begin with it.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode(text).map(|ids| self.begun(ids))
    }

    /// Ids of a plain prompt, whose text has these.
    pub fn begun(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let bos = self.prompt_bos.filter(|bos| ids.first() != Some(bos));
        ids.splice(..0, bos);
        ids
    }

    /// Ids of a text whose embedding is wanted: those of [`Tokenizer::encode_prompt`], followed by the tokens that the model's own
    /// tokenizer puts after a text, such as the end-of-text token of Qwen3-Embedding.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode_embedded(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode_embedded_within(text, usize::MAX)
    }

    /// The same of the beginning of the text that has at most `max_tokens`, those behind it included.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode_embedded_within(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode_prompt(text)?;
        ids.truncate(max_tokens.saturating_sub(self.text_end.len()));
        ids.extend(&self.text_end);
        Ok(ids)
    }

    /// Ids of `text` alone, as a rendered chat template needs them. Special tokens that are written out in the text, such as
    /// `<|im_start|>`, become their ids.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding =
            self.tokenizer.encode_fast(text, false).map_err(|error| TextError::Encode { detail: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The same with special tokens that are written out in the text encoded as other text is.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode_literally(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let literal = self.literal.get_or_init(|| {
            let mut tokenizer = (*self.tokenizer).clone();
            tokenizer.set_encode_special_tokens(true);
            tokenizer
        });
        let encoding =
            literal.encode_fast(text, false).map_err(|error| TextError::Encode { detail: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// A token as the vocabulary writes it; empty for an id that it does not have.
    pub fn written(&self, id: u32) -> String {
        self.tokenizer.id_to_token(id).unwrap_or_default()
    }

    /// Length of the longest token of the vocabulary in bytes, as it is written there: at least as many as its text has. Goes
    /// through the whole vocabulary.
    pub fn longest_token_bytes(&self) -> usize {
        self.tokenizer.get_vocab(true).keys().map(String::len).max().unwrap_or(0)
    }

    /// The beginning-of-sequence token that precedes a plain prompt; `None` if the model expects none.
    pub fn prompt_bos(&self) -> Option<u32> {
        self.prompt_bos
    }

    /// Text of `ids`, without special tokens. For ids that arrive one by one, use [`Tokenizer::detokenizer`]: the concatenation of
    /// what single ids decode to is not the text of all of them.
    ///
    /// # Errors
    /// [`TextError::Decode`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        self.decode_with(ids, false)
    }

    /// Text of `ids`, with their special tokens where `special_tokens`.
    ///
    /// # Errors
    /// [`TextError::Decode`].
    pub fn decode_with(&self, ids: &[u32], special_tokens: bool) -> Result<String, TextError> {
        self.tokenizer
            .decode(ids, !special_tokens)
            .map_err(|error| TextError::Decode { tokens: ids.to_vec(), detail: error.to_string() })
    }

    /// The id of a token as the vocabulary writes it, for example `<|fim_prefix|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Ids of all tokens, by the vocabulary's texts.
    pub(crate) fn tokens(&self) -> HashMap<String, u32> {
        self.tokenizer.get_vocab(true)
    }

    /// Tokens that were added to the model's vocabulary, and whether each is special.
    pub(crate) fn added_tokens(&self) -> HashMap<u32, bool> {
        self.tokenizer.get_added_tokens_decoder().into_iter().map(|(id, token)| (id, token.special)).collect()
    }

    /// The decoder of tokens to text, as tokenizer.json describes it.
    pub(crate) fn decoder(&self) -> Option<&tokenizers::DecoderWrapper> {
        self.tokenizer.get_decoder()
    }
}

/// What the tokenizer's post-processor puts after a text.
fn text_end(tokenizer: &tokenizers::Tokenizer) -> Result<Vec<u32>, tokenizers::Error> {
    let (text, whole) = (tokenizer.encode_fast("a", false)?, tokenizer.encode_fast("a", true)?);
    let (text, whole) = (text.get_ids(), whole.get_ids());
    let starts = 0..=whole.len().saturating_sub(text.len());
    let start = starts.into_iter().find(|start| whole[*start..].starts_with(text)).unwrap_or(whole.len());
    Ok(whole.get(start + text.len()..).unwrap_or_default().to_vec())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Byte-level BPE as GPT-2's: `Ġ` is a space, `é` is the two bytes `Ã` `©`.
    pub(crate) const BYTE_LEVEL: &str = r#"{
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "Ġ": 2, "Ã": 3, "©": 4, "Ġa": 5, "ð": 6, "Ł": 7, "ĺ": 8,
                  "Ģ": 9, "ÿ": 10}, "merges": [["Ġ", "a"]]}
    }"#;

    /// SentencePiece with byte fallback as Llama 2's: the first space of a sequence is not text.
    pub(crate) const BYTE_FALLBACK: &str = r#"{
        "version": "1.0", "truncation": null, "padding": null, "post_processor": null, "pre_tokenizer": null,
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                       {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<s>", "vocab": {"<s>": 0, "▁": 1, "a": 2, "▁a": 3,
                  "<0xE5>": 4, "<0x9B>": 5, "<0xBD>": 6, "<0xC3>": 7, "<0xA9>": 8, "<0xFF>": 9},
                  "merges": [["▁", "a"]]}
    }"#;

    pub(crate) fn tokenizer(tokenizer_json: &str) -> Tokenizer {
        let section = TokenizerSection { tokenizer_json: tokenizer_json.into(), ..TokenizerSection::default() };
        Tokenizer::new(&section).unwrap()
    }

    #[test]
    fn a_prompt_begins_with_one_bos() {
        let section = TokenizerSection {
            tokenizer_json: BYTE_LEVEL.into(),
            add_bos: true,
            bos_id: Some(0),
            ..TokenizerSection::default()
        };
        let tokenizer = Tokenizer::new(&section).unwrap();
        assert_eq!(tokenizer.encode_prompt("a a").unwrap(), [0, 1, 5]);
        assert_eq!(tokenizer.encode_prompt("<s>a").unwrap(), [0, 1]);
        assert_eq!(tokenizer.encode("a").unwrap(), [1]);
    }

    #[test]
    fn a_special_token_may_be_text() {
        let json = BYTE_LEVEL.replace(r#""ÿ": 10"#, r#""ÿ": 10, "<": 11, "s": 12, ">": 13"#);
        let tokenizer = tokenizer(&json);
        assert_eq!(tokenizer.encode("<s>a").unwrap(), [0, 1]);
        assert_eq!(tokenizer.encode_literally("<s>a").unwrap(), [11, 12, 13, 1]);
        assert_eq!(["<s>", "Ġa", ""].map(String::from), [0, 5, 99].map(|id| tokenizer.written(id)));
    }

    #[test]
    fn an_embedded_text_ends_as_the_post_processor_has_it() {
        assert_eq!(tokenizer(BYTE_LEVEL).encode_embedded("a a").unwrap(), [1, 5]);
        let end = r#""post_processor": {"type": "TemplateProcessing", "pair": [], "single": [
            {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}"#;
        let with_end = tokenizer(&BYTE_LEVEL.replace(r#""post_processor": null"#, end));
        assert_eq!(with_end.encode_embedded("a a").unwrap(), [1, 5, 0]);
        assert_eq!(with_end.encode_prompt("a a").unwrap(), [1, 5]);
        assert_eq!(with_end.encode_embedded_within("a a", 2).unwrap(), [1, 0]);
    }

    #[test]
    fn an_artifact_without_tokenizer_is_refused() {
        let error = Tokenizer::new(&TokenizerSection::default()).err().unwrap();
        assert!(error.to_string().starts_with("artifact has no tokenizer"));
    }
}
