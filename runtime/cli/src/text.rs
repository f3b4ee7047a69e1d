//! Text to token ids, and ids back to text while they arrive.

use tokenizers::Tokenizer;

use unicorn_artifact::TokenizerSection;

use super::error::CliError;

/// The tokenizer of an artifact.
pub struct Text {
    tokenizer: Tokenizer,
    /// Put before a plain prompt.
    prompt_bos: Option<u32>,
}

impl Text {
    /// # Errors
    /// If the artifact has no tokenizer, or one that does not parse.
    pub fn open(section: &TokenizerSection) -> Result<Text, CliError> {
        if section.tokenizer_json.is_empty() {
            return Err(CliError::new(
                "artifact has no tokenizer: text commands need a model that came with tokenizer.json; `logits` and \
                 `bench` work without",
            ));
        }
        let unusable = |error| CliError::new(format!("tokenizer of the artifact does not parse: {error}"));
        let mut tokenizer: Tokenizer = section.tokenizer_json.parse().map_err(unusable)?;
        // Some files keep the cut and the padding of their training.
        tokenizer.with_truncation(None).map_err(unusable)?.with_padding(None);
        Ok(Text { tokenizer, prompt_bos: section.bos_id.filter(|_| section.add_bos) })
    }

    /// Ids of a plain prompt, after the beginning-of-sequence token if the model wants one and the text does not bring it.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, CliError> {
        let mut ids = self.encode(text)?;
        if let Some(bos) = self.prompt_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Ids of the text as it stands; special tokens that are written out in it become their ids.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, CliError> {
        let encoding = self
            .tokenizer
            .encode_fast(text, false)
            .map_err(|error| CliError::new(format!("text cannot be tokenized: {error}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The beginning-of-sequence token that plain text begins with, if the model wants one.
    pub fn prompt_bos(&self) -> Option<u32> {
        self.prompt_bos
    }

    /// Text of ids that follow `context`, as they arrive.
    pub fn stream_after(&self, context: &[u32]) -> TextStream<'_> {
        TextStream::new(self, context)
    }

    /// Without special tokens.
    fn decode(&self, ids: &[u32]) -> Result<String, CliError> {
        self.tokenizer
            .decode(ids, true)
            .map_err(|error| CliError::new(format!("token ids {ids:?} cannot be decoded: {error}")))
    }
}

/// Decodes ids one at a time. What a token reads as depends on its neighbours (spaces at the start of a sequence,
/// characters of several tokens), so ids are decoded in a window and only the difference is given out:
///
/// ```text
/// ids … │ known │ pending │      text given out = decode(known + pending) − decode(known), once that ends in a
///       window_start      end    whole character; then pending becomes known
/// ```
pub struct TextStream<'t> {
    text: &'t Text,
    known: Vec<u32>,
    pending: Vec<u32>,
}

impl TextStream<'_> {
    fn new<'t>(text: &'t Text, context: &[u32]) -> TextStream<'t> {
        let known = context[context.len().saturating_sub(CONTEXT_TOKENS)..].to_vec();
        TextStream { text, known, pending: Vec::new() }
    }

    /// The text that `id` completes; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> Result<String, CliError> {
        self.pending.push(id);
        self.take(self.pending.len() >= MAX_PENDING_TOKENS)
    }

    /// The text of what is still incomplete, with U+FFFD for bytes that never became a character.
    pub fn finish(&mut self) -> Result<String, CliError> {
        self.take(true)
    }

    fn take(&mut self, even_if_incomplete: bool) -> Result<String, CliError> {
        let known_text = self.text.decode(&self.known)?;
        let mut window = self.known.clone();
        window.extend(&self.pending);
        let window_text = self.text.decode(&window)?;
        if window_text.ends_with(char::REPLACEMENT_CHARACTER) && !even_if_incomplete {
            return Ok(String::new());
        }
        let new = without_common_start(&window_text, &known_text);
        // Tokens without text (special ones) stay in the window: the next token's text may depend on what precedes them.
        if !new.is_empty() {
            self.known = std::mem::take(&mut self.pending);
        }
        Ok(new.to_owned())
    }
}

/// Enough of the prompt to hold a whole character of byte tokens and its left neighbour.
const CONTEXT_TOKENS: usize = 6;
/// No character takes more than four tokens; bytes that are not a character by then never will be.
const MAX_PENDING_TOKENS: usize = 8;

/// `text` from the first character on in which it differs from `start`.
fn without_common_start<'t>(text: &'t str, start: &str) -> &'t str {
    text.strip_prefix(start).unwrap_or_else(|| {
        let common: usize =
            text.chars().zip(start.chars()).take_while(|(a, b)| a == b).map(|(letter, _)| letter.len_utf8()).sum();
        &text[common..]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte-level BPE as GPT-2's: `Ġ` is a space, `é` is the two bytes `Ã` `©`.
    const BYTE_LEVEL: &str = r#"{
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "Ġ": 2, "Ã": 3, "©": 4, "Ġa": 5, "ð": 6, "Ł": 7, "ĺ": 8,
                  "Ģ": 9, "ÿ": 10}, "merges": [["Ġ", "a"]]}
    }"#;

    /// SentencePiece with byte fallback as Llama 2's: the first space of a sequence is not text.
    const BYTE_FALLBACK: &str = r#"{
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

    fn text(tokenizer_json: &str) -> Text {
        let section = TokenizerSection { tokenizer_json: tokenizer_json.into(), ..TokenizerSection::default() };
        Text::open(&section).unwrap()
    }

    /// What is given out after each id, and at the end.
    fn stream(text: &Text, context: &[u32], ids: &[u32]) -> Vec<String> {
        let mut stream = text.stream_after(context);
        let mut parts: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        parts.push(stream.finish().unwrap());
        parts
    }

    #[test]
    fn a_character_of_two_tokens_comes_whole() {
        let text = text(BYTE_LEVEL);
        assert_eq!(stream(&text, &[1], &[5, 3, 4, 5]), [" a", "", "é", " a", ""]);
        assert_eq!(stream(&text, &[], &[6, 7, 8, 9]), ["", "", "", "😀", ""]);
    }

    #[test]
    fn bytes_that_are_no_character_come_as_replacement() {
        let text = text(BYTE_LEVEL);
        assert_eq!(stream(&text, &[1], &[10, 1]), ["", "\u{fffd}a", ""]);
        assert_eq!(stream(&text, &[1], &[1, 3]), ["a", "", "\u{fffd}"]);
        let parts = stream(&text, &[1], &[10; 20]);
        assert_eq!(parts.concat().chars().count(), 20);
        assert!(parts[..10].iter().any(|part| !part.is_empty()));
    }

    #[test]
    fn byte_fallback_waits_for_the_whole_character() {
        let text = text(BYTE_FALLBACK);
        assert_eq!(stream(&text, &[0, 3], &[4, 5, 6, 7, 8, 3]), ["", "", "国", "", "é", " a", ""]);
        assert_eq!(stream(&text, &[0, 3], &[9, 2]), ["", "\u{fffd}a", ""]);
    }

    #[test]
    fn spaces_are_kept_after_a_prompt_and_special_tokens_are_not_text() {
        let text = text(BYTE_FALLBACK);
        assert_eq!(stream(&text, &[0, 3], &[3, 3]), [" a", " a", ""]);
        assert_eq!(stream(&text, &[0], &[3, 0, 3]), ["a", "", " a", ""]);
    }

    #[test]
    fn a_prompt_begins_with_one_bos() {
        let section = TokenizerSection {
            tokenizer_json: BYTE_LEVEL.into(),
            add_bos: true,
            bos_id: Some(0),
            ..TokenizerSection::default()
        };
        let text = Text::open(&section).unwrap();
        assert_eq!(text.encode_prompt("a a").unwrap(), [0, 1, 5]);
        assert_eq!(text.encode_prompt("<s>a").unwrap(), [0, 1]);
        assert_eq!(text.encode("a").unwrap(), [1]);
    }

    #[test]
    fn an_artifact_without_tokenizer_is_refused() {
        let error = Text::open(&TokenizerSection::default()).err().unwrap();
        assert!(matches!(error, CliError::Failed(message) if message.starts_with("artifact has no tokenizer")));
    }
}
