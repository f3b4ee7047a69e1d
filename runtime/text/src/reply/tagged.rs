//! Calls whose arguments are between tags: `<function=NAME><parameter=KEY>value</parameter></function>` of Qwen's coders, and
//! `call:NAME{key:<escape>text<escape>,n:2}` of FunctionGemma.

use serde_json::{Map, Value};

/// Name and arguments of a call in Qwen's tags. A value that is JSON other than a text is used as JSON.
pub(super) fn function(text: &str) -> Option<(String, Map<String, Value>)> {
    let (name, mut rest) = text.trim().strip_prefix("<function=")?.split_once('>')?;
    let mut arguments = Map::new();
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let (key, value) = parameter.split_once('>')?;
        // A value that was cut off ends where the next begins.
        let end = ["</parameter>", "<parameter=", "</function>"].iter().filter_map(|tag| value.find(tag)).min()?;
        arguments.insert(key.trim().to_owned(), value_of(without_line_breaks(&value[..end])));
        rest = &value[end..];
    }
    Some((name.trim().to_owned(), arguments))
}

/// The template writes a value on lines of its own.
fn without_line_breaks(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

fn value_of(text: &str) -> Value {
    serde_json::from_str(text).ok().filter(|value: &Value| !value.is_string()).unwrap_or_else(|| text.into())
}

const ESCAPE: &str = "<escape>";

/// Name and arguments of a call of FunctionGemma.
pub(super) fn gemma(text: &str) -> Option<(String, Map<String, Value>)> {
    let (name, rest) = text.trim().strip_prefix("call:")?.split_once('{')?;
    let mut rest = rest.trim_end().strip_suffix('}')?;
    let mut arguments = Map::new();
    while !rest.trim().is_empty() {
        let (key, value) = rest.split_once(':')?;
        let (value, behind) = match value.strip_prefix(ESCAPE) {
            Some(text) => {
                let (text, behind) = text.split_once(ESCAPE)?;
                (Value::from(text), behind)
            }
            None => {
                let end = plain_end(value);
                (value_of(&value[..end].replace(ESCAPE, "\"")), &value[end..])
            }
        };
        arguments.insert(key.trim().to_owned(), value);
        rest = behind.strip_prefix(',').unwrap_or(behind);
    }
    Some((name.trim().to_owned(), arguments))
}

/// Where a value that is not a text ends: at the first comma outside of brackets and texts.
fn plain_end(value: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while let Some(letter) = value[at..].chars().next() {
        match letter {
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => return at,
            '<' if value[at..].starts_with(ESCAPE) => {
                let text = at + ESCAPE.len();
                at = value[text..].find(ESCAPE).map_or(value.len(), |end| text + end + ESCAPE.len());
                continue;
            }
            _ => {}
        }
        at += letter.len_utf8();
    }
    value.len()
}
