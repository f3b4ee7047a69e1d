//! From sampled tokens to text, and where the text ends.

use unicorn_artifact::TokenizerSection;

use crate::detokenizer::Detokenizer;
use crate::error::TextError;
use crate::stop_strings::StopStrings;
use crate::tokenizer::Tokenizer;

/// Where generated text ends, other than at the end of the context.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StopConditions {
    /// Most tokens to generate; `None`: no limit.
    pub max_tokens: Option<u32>,
    /// Token ids that end the text and are not part of it, as [`TokenizerSection::stop_ids`](crate::TokenizerSection::stop_ids)
    /// lists them.
    pub stop_tokens: Vec<u32>,
    /// Strings that end the text and are not part of it; see [`StopStrings`].
    pub stop_strings: Vec<String>,
    /// Whether the string that ends the text is part of it nevertheless. Default: no.
    pub keeps_stop_string: bool,
    /// Tokens after which [`StopConditions::stop_tokens`] end the text; before, they have no effect. Default: 0.
    pub min_tokens: u32,
    /// Whether special tokens are part of the text: parsers of replies read some of them. Default: no.
    pub special_tokens: bool,
}

impl StopConditions {
    /// The stop tokens of a model and nothing else. `Default` has not even those.
    pub fn of(section: &TokenizerSection) -> StopConditions {
        StopConditions { stop_tokens: section.stop_ids.clone(), ..StopConditions::default() }
    }
}

/// Why generated text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The model sampled a stop token.
    StopToken,
    /// A stop string was complete.
    StopString,
    /// [`StopConditions::max_tokens`] were generated.
    MaxTokens,
    /// The sequence fills the context.
    ContextFull,
    /// The caller cancelled it.
    Cancelled,
}

/// Text that became whole with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Empty while a character is incomplete or a stop string may have begun.
    pub text: String,
    /// `Some`: this is the last piece.
    pub end: Option<EndReason>,
}

/// Turns the sampled tokens of one sequence into pieces of text and applies its [`StopConditions`].
///
/// For programs that sample tokens themselves, for example with a scheduler of several sequences.
pub struct OutputText {
    detokenizer: Detokenizer,
    stop_strings: StopStrings,
    keeps_stop_string: bool,
    stop_tokens: Vec<u32>,
    max_tokens: Option<u32>,
    min_tokens: u32,
    n_tokens: u32,
}

impl OutputText {
    /// Output of tokens that follow `prompt`.
    pub fn new(tokenizer: &Tokenizer, prompt: &[u32], conditions: StopConditions) -> OutputText {
        let StopConditions { max_tokens, stop_tokens, stop_strings, keeps_stop_string, min_tokens, special_tokens } =
            conditions;
        OutputText {
            detokenizer: Detokenizer::new(tokenizer.clone(), prompt, special_tokens),
            stop_strings: StopStrings::new(stop_strings),
            keeps_stop_string,
            stop_tokens,
            max_tokens,
            min_tokens,
            n_tokens: 0,
        }
    }

    /// Takes the next sampled token. After a piece with an end reason, no more tokens may be pushed.
    ///
    /// # Errors
    /// [`TextError::Decode`].
    pub fn push(&mut self, token: u32) -> Result<Piece, TextError> {
        self.n_tokens += 1;
        if self.stop_tokens.contains(&token) && self.n_tokens > self.min_tokens {
            return self.end(EndReason::StopToken);
        }
        let text = self.detokenizer.push(token)?;
        let (text, has_stopped) = self.stop_strings.push(&text);
        if has_stopped {
            return Ok(self.stopped(text));
        }
        if self.max_tokens.is_some_and(|max| self.n_tokens >= max) {
            let rest = self.end(EndReason::MaxTokens)?;
            return Ok(Piece { text: text + &rest.text, ..rest });
        }
        Ok(Piece { text, end: None })
    }

    /// Ends the text for `reason`: the last piece has what was kept back. The piece's own reason differs where that completes a
    /// stop string.
    ///
    /// # Errors
    /// [`TextError::Decode`].
    pub fn end(&mut self, reason: EndReason) -> Result<Piece, TextError> {
        let rest = self.detokenizer.finish()?;
        let (text, has_stopped) = self.stop_strings.push(&rest);
        Ok(match has_stopped {
            true => self.stopped(text),
            false => Piece { text: text + &self.stop_strings.finish(), end: Some(reason) },
        })
    }

    /// The last piece, of `text` before a stop string.
    fn stopped(&self, text: String) -> Piece {
        let stop = self.stopped_by().filter(|_| self.keeps_stop_string).unwrap_or_default();
        Piece { text: text + stop, end: Some(EndReason::StopString) }
    }

    /// The stop string that ended the text.
    pub fn stopped_by(&self) -> Option<&str> {
        self.stop_strings.found()
    }

    /// Tokens that were pushed, a stop token included.
    pub fn n_tokens(&self) -> u32 {
        self.n_tokens
    }
}

impl EndReason {
    /// A name for reports: `stop_token`, `stop_string`, `length`, `context_full` or `interrupted`.
    pub fn name(self) -> &'static str {
        match self {
            EndReason::StopToken => "stop_token",
            EndReason::StopString => "stop_string",
            EndReason::MaxTokens => "length",
            EndReason::ContextFull => "context_full",
            EndReason::Cancelled => "interrupted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::{BYTE_LEVEL, tokenizer};

    /// Ids of the test vocabulary: "a", " ", the two bytes of "é", " a".
    const IDS: [u32; 5] = [1, 2, 3, 4, 5];

    fn output(conditions: StopConditions) -> OutputText {
        OutputText::new(&tokenizer(BYTE_LEVEL), &[1], conditions)
    }

    fn pieces(output: &mut OutputText, ids: &[u32]) -> Vec<(String, Option<EndReason>)> {
        let mut pieces = Vec::new();
        for &id in ids {
            let Piece { text, end } = output.push(id).unwrap();
            pieces.push((text, end));
            if end.is_some() {
                break;
            }
        }
        pieces
    }

    #[test]
    fn a_stop_token_ends_the_text_and_is_no_part_of_it() {
        let mut output = output(StopConditions { stop_tokens: vec![5], ..StopConditions::default() });
        let expected = [("a", None), (" ", None), ("", None), ("é", None), ("", Some(EndReason::StopToken))];
        assert_eq!(pieces(&mut output, &IDS), expected.map(|(text, end)| (text.to_owned(), end)));
        assert_eq!(output.n_tokens(), 5);
    }

    #[test]
    fn a_limit_ends_the_text_with_what_was_kept_back() {
        let conditions =
            StopConditions { max_tokens: Some(2), stop_strings: vec![" a".into()], ..StopConditions::default() };
        let expected = [("a".to_owned(), None), (" ".to_owned(), Some(EndReason::MaxTokens))];
        assert_eq!(pieces(&mut output(conditions), &IDS), expected);
    }

    #[test]
    fn a_stop_string_ends_the_text_also_with_its_last_piece() {
        let conditions = |stop: &str| StopConditions { stop_strings: vec![stop.into()], ..StopConditions::default() };
        let expected = [("a", None), (" ", None), ("", None), ("", Some(EndReason::StopString))];
        assert_eq!(pieces(&mut output(conditions("é")), &IDS), expected.map(|(text, end)| (text.to_owned(), end)));
        let mut output = output(conditions("\u{fffd}"));
        assert_eq!(output.push(3).unwrap(), Piece { text: String::new(), end: None });
        let last = Piece { text: String::new(), end: Some(EndReason::StopString) };
        assert_eq!(output.end(EndReason::ContextFull).unwrap(), last);
        let mut kept = super::OutputText::new(
            &tokenizer(BYTE_LEVEL),
            &[1],
            StopConditions { keeps_stop_string: true, ..conditions(" é") },
        );
        let expected = [("a", None), ("", None), ("", None), (" é", Some(EndReason::StopString))];
        assert_eq!(pieces(&mut kept, &IDS), expected.map(|(text, end)| (text.to_owned(), end)));
    }
}
