//! Calls whose arguments are between tags: `<function=NAME><parameter=KEY>value</parameter></function>` of Qwen's coders.

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
