//! Text from files, as it may stand on a terminal.

use std::borrow::Cow;

/// `text` with control characters escaped: a name in a file must not move a terminal's cursor or start a new line.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escape = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// The same for text of several lines, whose line breaks stay.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// `q_proj` of `12.q_proj`: a dispatch's label begins with its layer, if it has one.
pub fn role(label: &str) -> &str {
    match label.split_once('.') {
        Some((layer, role)) if !layer.is_empty() && layer.bytes().all(|byte| byte.is_ascii_digit()) => role,
        _ => label,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_nothing_else() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{7}\u{9b}é"), "a\\u{1b}[2Jb\\nc\\u{7}\\u{9b}é");
        assert!(matches!(printable("Gemma 3 – 27B"), Cow::Borrowed(_)));
        assert_eq!(printable_lines("a\u{1b}\n  b\r\n"), "a\\u{1b}\n  b\\r\n");
    }

    #[test]
    fn a_role_is_a_label_without_its_layer() {
        assert_eq!(["12.q_proj", "lm_head", "a.b", ".b"].map(role), ["q_proj", "lm_head", "a.b", ".b"]);
    }
}
