//! Where a call begins whose name stands before its arguments, which are JSON.
//!
//! ```text
//! Mistral   NAME[CALL_ID]ID[ARGS]{…}                 [CALL_ID]ID and [ARGS] may be missing
//! GLM-4     NAME, and on the next line {…}
//! DeepSeek  NAME<｜tool▁sep｜>{…}                     V3.1
//!           TYPE<｜tool▁sep｜>NAME, ```json and {…}   V3 and R1
//! ```

use super::format::ToolFormat;

/// What a text is as the beginning of such a call.
#[derive(Debug, PartialEq, Eq)]
pub enum NamedCall<'t> {
    /// More text may make it one.
    Partial,
    /// It is not the beginning of a call.
    Not,
    /// The tool's name, and the byte at which the arguments begin.
    Whole(&'t str, usize),
}

/// Longest text before the arguments, in bytes.
const MAX_HEAD_BYTES: usize = 512;
const SEPARATOR: &str = "<｜tool▁sep｜>";

/// Reads what precedes the arguments of a call in `format`, behind the text that opens it.
pub fn named_call(format: ToolFormat, text: &str) -> NamedCall<'_> {
    let mut head = Head { text, at: 0 };
    let read = match format {
        ToolFormat::Mistral => head.mistral(),
        ToolFormat::Glm4 => head.glm4(),
        ToolFormat::DeepSeek => head.deepseek(),
        _ => Err(Ended(false)),
    };
    match read {
        Ok(name) => NamedCall::Whole(name, head.at),
        Err(Ended(true)) if text.len() < MAX_HEAD_BYTES => NamedCall::Partial,
        Err(_) => NamedCall::Not,
    }
}

/// The text is not a head; `true`: it ended too early to decide.
struct Ended(bool);

struct Head<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Head<'t> {
    fn mistral(&mut self) -> Result<&'t str, Ended> {
        let name = self.name()?;
        if self.takes("[CALL_ID]")? {
            self.name()?;
        }
        self.takes("[ARGS]")?;
        self.arguments().map(|()| name)
    }

    fn glm4(&mut self) -> Result<&'t str, Ended> {
        let name = self.name()?;
        let behind = &self.text[self.at..];
        let space = &behind[..behind.len() - behind.trim_start().len()];
        let is_ended = space.len() == behind.len();
        if !space.contains('\n') && !is_ended {
            return Err(Ended(false));
        }
        self.arguments().map(|()| name)
    }

    fn deepseek(&mut self) -> Result<&'t str, Ended> {
        let first = self.name()?;
        if !self.takes(SEPARATOR)? {
            return Err(Ended(false));
        }
        if self.rest().starts_with('{') {
            return self.arguments().map(|()| first);
        }
        let name = self.name()?;
        self.takes("```json")?;
        self.arguments().map(|()| name)
    }

    /// What follows, behind white space.
    fn rest(&mut self) -> &'t str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }

    fn name(&mut self) -> Result<&'t str, Ended> {
        let is_part = |letter: char| letter.is_alphanumeric() || "_.-".contains(letter);
        let rest = self.rest();
        let length = rest.find(|letter| !is_part(letter)).ok_or(Ended(true))?;
        self.at += length;
        if length == 0 { Err(Ended(false)) } else { Ok(&rest[..length]) }
    }

    /// Whether `marker` follows; it is left behind.
    fn takes(&mut self, marker: &str) -> Result<bool, Ended> {
        let rest = self.rest();
        if rest.len() < marker.len() && marker.starts_with(rest) {
            return Err(Ended(true));
        }
        let is_there = rest.starts_with(marker);
        self.at += if is_there { marker.len() } else { 0 };
        Ok(is_there)
    }

    /// The brace of the arguments follows; it stays.
    fn arguments(&mut self) -> Result<(), Ended> {
        match self.rest().chars().next() {
            Some('{') => Ok(()),
            other => Err(Ended(other.is_none())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_whole_partial_or_none_at_every_cut() {
        for (format, text, name) in [
            (ToolFormat::Mistral, "get-it [ARGS] {", "get-it"),
            (ToolFormat::Mistral, "f[CALL_ID]a1B2c3D4e[ARGS]{", "f"),
            (ToolFormat::Mistral, "f{", "f"),
            (ToolFormat::Glm4, "f \n{", "f"),
            (ToolFormat::DeepSeek, "f<｜tool▁sep｜>{", "f"),
            (ToolFormat::DeepSeek, "function<｜tool▁sep｜>f\n```json\n{", "f"),
        ] {
            assert_eq!(named_call(format, text), NamedCall::Whole(name, text.len() - 1), "{text}");
            for (end, _) in text.char_indices() {
                assert_eq!(named_call(format, &text[..end]), NamedCall::Partial, "{}", &text[..end]);
            }
        }
        for (format, text) in [
            (ToolFormat::Mistral, "f is"),
            (ToolFormat::Mistral, "[{"),
            (ToolFormat::Glm4, "f {"),
            (ToolFormat::DeepSeek, "f {"),
            (ToolFormat::DeepSeek, "function<｜tool▁sep｜>f\n```xml"),
            (ToolFormat::Hermes, "f{"),
        ] {
            assert_eq!(named_call(format, text), NamedCall::Not, "{text}");
        }
        assert_eq!(named_call(ToolFormat::Mistral, &"f".repeat(MAX_HEAD_BYTES)), NamedCall::Not);
    }
}
