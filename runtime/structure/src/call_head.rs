//! Where the arguments of a call begin in a reply: behind `{"name": "f", "arguments": `, however its white space.

use unicorn_text::{NamedCall, ToolFormat, named_call};

/// What a text is as the beginning of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head<'t> {
    /// More text may make it one.
    Partial,
    /// It is not the beginning of a call.
    Not,
    /// The name, and the byte at which the arguments begin.
    Whole(&'t str, usize),
}

/// Reads the head of a call; a list of calls may begin before it, or the call before end.
pub(super) fn head(text: &str) -> Head<'_> {
    let mut rest = Rest { text, at: 0 };
    rest.skip(|character| character.is_whitespace() || "[,}".contains(character));
    match read(&mut rest) {
        Ok((name, at)) => Head::Whole(name, at),
        Err(true) => Head::Partial,
        Err(false) => Head::Not,
    }
}

/// The same for a call on one of harmony's channels, behind `to=functions.`.
pub(super) fn harmony_head(text: &str) -> Head<'_> {
    let Some((before, _)) = text.split_once("<|message|>") else { return Head::Partial };
    let name = before.split([' ', '<']).next().unwrap_or_default();
    Head::Whole(name, before.len() + "<|message|>".len())
}

/// The same for a call of Gemma, `call:NAME{`: what its grammar matches begins with the head.
pub(super) fn gemma_head(text: &str) -> Head<'_> {
    const CALL: &str = "call:";
    match text.trim_start().strip_prefix(CALL).map(|behind| behind.split_once('{')) {
        Some(Some((name, _))) => Head::Whole(name, text.len() - text.trim_start().len()),
        Some(None) => Head::Partial,
        None if CALL.starts_with(text.trim_start()) => Head::Partial,
        None => Head::Not,
    }
}

/// The same for a call in Qwen's tags, `<function=NAME>`: its grammar also has the head, and holds the name to those of the tools.
pub(super) fn tagged_head(text: &str) -> Head<'_> {
    const CALL: &str = "<f";
    let call = text.trim_start();
    match call.starts_with(CALL) {
        true => Head::Whole("", text.len() - call.len()),
        false if CALL.starts_with(call) => Head::Partial,
        false => Head::Not,
    }
}

/// The same for a call of GLM, which begins with its name: its grammar also has the head.
pub(super) fn keyed_head(text: &str) -> Head<'_> {
    let call = text.trim_start();
    match call.chars().next() {
        None => Head::Partial,
        Some(letter) if letter.is_alphabetic() || letter == '_' => Head::Whole("", text.len() - call.len()),
        Some(_) => Head::Not,
    }
}

/// The same for a list of Python's calls, `[NAME(`, whose grammar also has the head.
pub(super) fn python_head(text: &str) -> Head<'_> {
    let list = text.trim_start();
    match list.strip_prefix('[') {
        Some(call) => python_name(call, text.len() - list.len()),
        None if list.is_empty() => Head::Partial,
        None => Head::Not,
    }
}

/// The same for one of Python's calls, `NAME(`.
pub(super) fn python_call_head(text: &str) -> Head<'_> {
    let call = text.trim_start();
    python_name(call, text.len() - call.len())
}

/// The same for a name before its arguments, as `format` has it.
pub(super) fn named_head(format: ToolFormat, text: &str) -> Head<'_> {
    match named_call(format, text) {
        NamedCall::Partial => Head::Partial,
        NamedCall::Not => Head::Not,
        NamedCall::Whole(name, at) => Head::Whole(name, at),
    }
}

/// The head of Python's `call`, in a text whose grammar begins at byte `at`.
fn python_name(call: &str, at: usize) -> Head<'_> {
    let is_part = |letter: char| letter.is_alphanumeric() || "_.-".contains(letter);
    match call.split_once(|letter| !is_part(letter)) {
        Some((name, _)) if call[name.len()..].starts_with('(') && !name.is_empty() => Head::Whole(name, at),
        Some(_) => Head::Not,
        None => Head::Partial,
    }
}

/// `Err(true)`: the text ended before.
fn read<'t>(rest: &mut Rest<'t>) -> Result<(&'t str, usize), bool> {
    for part in ["{", "\"name\"", ":", "\""] {
        rest.expect(part)?;
    }
    let name = rest.until('"')?;
    rest.expect(",")?;
    rest.expect("\"")?;
    if !["arguments", "parameters"].contains(&rest.until('"')?) {
        return Err(false);
    }
    rest.expect(":")?;
    rest.skip(char::is_whitespace);
    // The object's own first character ends the head: white space could go on before it.
    if rest.text[rest.at..].is_empty() { Err(true) } else { Ok((name, rest.at)) }
}

struct Rest<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Rest<'t> {
    fn skip(&mut self, is_skipped: impl Fn(char) -> bool) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches(is_skipped).len();
    }

    /// `Err(true)`: the text ended before.
    fn expect(&mut self, wanted: &str) -> Result<(), bool> {
        self.skip(char::is_whitespace);
        let rest = &self.text[self.at..];
        if !rest.starts_with(wanted) {
            return Err(wanted.starts_with(rest));
        }
        self.at += wanted.len();
        Ok(())
    }

    fn until(&mut self, end: char) -> Result<&'t str, bool> {
        let rest = &self.text[self.at..];
        let (inside, _) = rest.split_once(end).ok_or(true)?;
        self.at += inside.len() + end.len_utf8();
        Ok(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmony_has_heads_of_its_own() {
        assert_eq!(harmony_head("f <|constrain|>json<|message|>{"), Head::Whole("f", 30));
        assert_eq!(harmony_head("f<|message|>{"), Head::Whole("f", 12));
        assert_eq!(harmony_head("f <|constrain|>js"), Head::Partial);
    }

    #[test]
    fn gemma_s_head_ends_with_the_brace() {
        let text = " call:f{";
        assert_eq!(gemma_head(text), Head::Whole("f", 1));
        for end in 0..text.len() {
            assert_eq!(gemma_head(&text[..end]), Head::Partial, "{end}");
        }
        assert_eq!(gemma_head("<tool_call|>"), Head::Not);
    }

    #[test]
    fn heads_in_tags_and_of_python_s_calls_begin_their_grammars() {
        assert_eq!(tagged_head("\n<func"), Head::Whole("", 1));
        assert_eq!([tagged_head("\n"), tagged_head("<")], [Head::Partial, Head::Partial]);
        assert_eq!([tagged_head("</f"), tagged_head("{")], [Head::Not, Head::Not]);
        assert_eq!([keyed_head("\nf"), keyed_head("\n")], [Head::Whole("", 1), Head::Partial]);
        assert_eq!([keyed_head("{"), keyed_head("</f")], [Head::Not, Head::Not]);
        let text = " [get-it(";
        assert_eq!(python_head(text), Head::Whole("get-it", 1));
        for end in 0..text.len() {
            assert_eq!(python_head(&text[..end]), Head::Partial, "{end}");
        }
        for other in ["[{", "[a b", "[a]", "[(", "a(", "[ a"] {
            assert_eq!(python_head(other), Head::Not, "{other}");
        }
        assert_eq!([python_call_head("\nf("), python_call_head("\nf")], [Head::Whole("f", 1), Head::Partial]);
        assert_eq!(python_call_head("</"), Head::Not);
    }

    #[test]
    fn a_head_is_whole_partial_or_none_at_every_cut() {
        let text = "\n{\"name\": \"f\",\n \"arguments\" : {";
        assert_eq!(head(text), Head::Whole("f", text.len() - 1));
        for end in 0..text.len() {
            assert_eq!(head(&text[..end]), Head::Partial, "{end}");
        }
        assert_eq!(head("[{\"name\":\"f\",\"parameters\":{"), Head::Whole("f", 26));
        for other in ["<function=f>", "{\"a\"", "{\"name\": 1", "{\"name\": \"f\", \"x\": "] {
            assert_eq!(head(other), Head::Not, "{other}");
        }
    }
}
