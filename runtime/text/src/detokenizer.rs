//! Token ids back to text while they arrive, never half a character.

use crate::error::TextError;
use crate::tokenizer::Tokenizer;

/// Decodes ids one at a time.
///
/// The text of a token depends on its neighbours (a space at the start of a sequence, characters of several tokens), so ids are
/// decoded in a window and only the difference is returned:
///
/// ```text
/// ids … │ known │ pending │      returned = decode(known + pending) − decode(known), once that ends in a whole
///       window_start      end    character; then pending becomes known
/// ```
pub struct Detokenizer {
    tokenizer: Tokenizer,
    known: Vec<u32>,
    pending: Vec<u32>,
    /// Whether special tokens are text.
    special_tokens: bool,
}

impl Tokenizer {
    /// A decoder for ids that follow `prompt` and arrive one at a time.
    pub fn detokenizer(&self, prompt: &[u32]) -> Detokenizer {
        Detokenizer::new(self.clone(), prompt, false)
    }
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer, prompt: &[u32], special_tokens: bool) -> Detokenizer {
        let known = prompt[prompt.len().saturating_sub(CONTEXT_TOKENS)..].to_vec();
        Detokenizer { tokenizer, known, pending: Vec::new(), special_tokens }
    }

    /// The text that `id` completes; empty while a character is incomplete, and for special tokens.
    ///
    /// # Errors
    /// [`TextError::Decode`].
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.pending.push(id);
        self.take(self.pending.len() >= MAX_PENDING_TOKENS)
    }

    /// The text of what is still incomplete, with U+FFFD for bytes that never became a character. Called when no more ids come.
    ///
    /// # Errors
    /// [`TextError::Decode`].
    pub fn finish(&mut self) -> Result<String, TextError> {
        self.take(true)
    }

    fn take(&mut self, even_if_incomplete: bool) -> Result<String, TextError> {
        let known_text = self.tokenizer.decode_with(&self.known, self.special_tokens)?;
        let mut window = self.known.clone();
        window.extend(&self.pending);
        let window_text = self.tokenizer.decode_with(&window, self.special_tokens)?;
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
    use crate::tokenizer::tests::{BYTE_FALLBACK, BYTE_LEVEL, tokenizer};

    /// What is returned after each id, and at the end.
    fn stream(tokenizer: &Tokenizer, prompt: &[u32], ids: &[u32]) -> Vec<String> {
        let mut detokenizer = tokenizer.detokenizer(prompt);
        let mut parts: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
        parts.push(detokenizer.finish().unwrap());
        parts
    }

    #[test]
    fn a_character_of_two_tokens_comes_whole() {
        let tokenizer = tokenizer(BYTE_LEVEL);
        assert_eq!(stream(&tokenizer, &[1], &[5, 3, 4, 5]), [" a", "", "é", " a", ""]);
        assert_eq!(stream(&tokenizer, &[], &[6, 7, 8, 9]), ["", "", "", "😀", ""]);
    }

    #[test]
    fn bytes_that_are_no_character_come_as_replacement() {
        let tokenizer = tokenizer(BYTE_LEVEL);
        assert_eq!(stream(&tokenizer, &[1], &[10, 1]), ["", "\u{fffd}a", ""]);
        assert_eq!(stream(&tokenizer, &[1], &[1, 3]), ["a", "", "\u{fffd}"]);
        let parts = stream(&tokenizer, &[1], &[10; 20]);
        assert_eq!(parts.concat().chars().count(), 20);
        assert!(parts[..10].iter().any(|part| !part.is_empty()));
    }

    #[test]
    fn byte_fallback_yields_whole_characters() {
        let tokenizer = tokenizer(BYTE_FALLBACK);
        assert_eq!(stream(&tokenizer, &[0, 3], &[4, 5, 6, 7, 8, 3]), ["", "", "国", "", "é", " a", ""]);
        assert_eq!(stream(&tokenizer, &[0, 3], &[9, 2]), ["", "\u{fffd}a", ""]);
    }

    #[test]
    fn spaces_are_kept_after_a_prompt_and_special_tokens_are_not_text() {
        let tokenizer = tokenizer(BYTE_FALLBACK);
        assert_eq!(stream(&tokenizer, &[0, 3], &[3, 3]), [" a", " a", ""]);
        assert_eq!(stream(&tokenizer, &[0], &[3, 0, 3]), ["a", "", " a", ""]);
    }
}
