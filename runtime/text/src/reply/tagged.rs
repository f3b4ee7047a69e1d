//! Calls whose arguments are between tags: `<function=NAME><parameter=KEY>value</parameter></function>` of Qwen's coders.

use serde_json::{Map, Value};

use super::argument::raw_argument;

pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";

/// Name and arguments of a call in Qwen's tags. Values have the types of `schema_of` the tool's name.
pub(super) fn function<'s>(text: &str, schema_of: impl Fn(&str) -> &'s Value) -> Option<(String, Map<String, Value>)> {
    let (name, mut rest) = text.trim().strip_prefix("<function=")?.split_once('>')?;
    let schema = schema_of(name.trim());
    let mut arguments = Map::new();
    while let Some((_, parameter)) = rest.split_once(PARAMETER) {
        let (key, value) = parameter.split_once('>')?;
        // A value that was cut off ends where the next begins.
        let cut = || [PARAMETER, "</function>"].iter().filter_map(|tag| value.find(tag)).min();
        let end = value.find(PARAMETER_END).or_else(cut)?;
        let key = key.trim();
        arguments.insert(key.to_owned(), raw_argument(without_line_breaks(&value[..end]), key, schema));
        rest = &value[end..];
    }
    Some((name.trim().to_owned(), arguments))
}

/// The template writes a value on lines of its own.
fn without_line_breaks(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
