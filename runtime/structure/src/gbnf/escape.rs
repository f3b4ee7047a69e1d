//! Characters within a regular expression.

/// A character as a regular expression.
pub(in super::super) fn escaped(character: char) -> String {
    match character.is_ascii_alphanumeric() {
        true => character.to_string(),
        false => format!("\\x{{{:X}}}", u32::from(character)),
    }
}
