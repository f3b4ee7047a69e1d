//! Text from files in a form that is safe to print: a name must not move the cursor, ring the bell or begin another line.

use std::borrow::Cow;

/// `text` with every control character as its escape, such as `\u{1b}`, `\n`. Characters that change the direction of the text
/// around them count as control characters: they make a name look like another.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_control(letter) { escaped.extend(letter.escape_default()) } else { escaped.push(letter) }
    }
    Cow::Owned(escaped)
}

/// The same for text of several lines, whose line breaks are not changed.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

fn is_control(letter: char) -> bool {
    // C0, DEL and C1; then line and paragraph separators, marks, embeddings, overrides and isolates of direction.
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{061c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_others_stay() {
        assert_eq!(
            printable("\x1b[2J\x07bell\nnext\u{9b}31m\u{202e}txt"),
            "\\u{1b}[2J\\u{7}bell\\nnext\\u{9b}31m\\u{202e}txt"
        );
        for sound in ["layers.0.mlp.up_proj.weight", "模型-7B ü 👩‍🚀", ""] {
            assert!(matches!(printable(sound), Cow::Borrowed(_)));
            assert_eq!(printable(sound), sound);
        }
        assert_eq!(printable_lines("a\u{1b}\n  b\r\n"), "a\\u{1b}\n  b\\r\n");
    }
}
