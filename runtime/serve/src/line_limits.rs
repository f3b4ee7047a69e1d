//! Where a text ends by its lines, as llama-server's clients that complete code ask for it: a line with too little indentation, or a line
//! break after which the time is over.

use std::time::Duration;

use crate::api::request::Request;

/// The limits of one choice, and its text so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineLimits {
    /// White space that lines behind the first begin with, in characters; 0: any.
    min_indent: u32,
    /// Time from the first token on, after which a text of several lines ends; `None`: any.
    max_decode: Option<Duration>,
    /// A line break was written.
    has_break: bool,
    /// White space at the beginning of the last line; `None`: it is the first line, or has other characters.
    indent: Option<u32>,
}

impl LineLimits {
    /// The limits of a request.
    pub(crate) fn of(request: &Request) -> LineLimits {
        LineLimits { min_indent: request.min_indent, max_decode: request.max_decode, ..LineLimits::default() }
    }

    /// Takes the next piece of the text, `decode` after the first token. `Some`: the choice ends behind as many bytes of it.
    pub(crate) fn end_of(&mut self, text: &str, decode: Duration) -> Option<usize> {
        for (at, letter) in text.char_indices() {
            match letter {
                ' ' | '\t' => self.indent = self.indent.map(|indent| indent + 1),
                _ if self.indent.is_some_and(|indent| indent < self.min_indent) => return Some(at),
                '\n' => (self.has_break, self.indent) = (true, Some(0)),
                _ => self.indent = None,
            }
        }
        let is_over = self.has_break && self.max_decode.is_some_and(|max| decode > max);
        is_over.then_some(text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of a text that comes in these pieces.
    fn kept(mut limits: LineLimits, pieces: &[&str]) -> String {
        let mut kept = String::new();
        for piece in pieces {
            let end = limits.end_of(piece, Duration::from_millis(20));
            kept += &piece[..end.unwrap_or(piece.len())];
            if end.is_some() {
                break;
            }
        }
        kept
    }

    #[test]
    fn a_line_with_too_little_indentation_ends_the_text() {
        let limits = |min_indent| LineLimits { min_indent, ..LineLimits::default() };
        assert_eq!(kept(limits(2), &["a\n", "  ", "b\n", " ", "c", "d"]), "a\n  b\n ");
        assert_eq!(kept(limits(1), &["a\n\tb\nc"]), "a\n\tb\n");
        assert_eq!(kept(limits(1), &["a\n\n b"]), "a\n");
        assert_eq!(kept(limits(0), &["a\nb\n\nc"]), "a\nb\n\nc");
    }

    #[test]
    fn time_ends_a_text_of_several_lines() {
        let limits = |ms| LineLimits { max_decode: Some(Duration::from_millis(ms)), ..LineLimits::default() };
        assert_eq!(kept(limits(10), &["a", "b\n", "c"]), "ab\n");
        assert_eq!(kept(limits(10), &["a", "b"]), "ab");
        assert_eq!(kept(limits(30), &["a\n", "b"]), "a\nb");
    }
}
