//! Calls whose arguments are between tags: `<function=NAME><parameter=KEY>value</parameter></function>` of Qwen's coders, and
//! `NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>` of GLM.

use serde_json::{Map, Value};

use super::argument::raw_argument;

/// What a call begins with, before the name of its tool.
pub(super) const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const KEY: [&str; 2] = ["<arg_key>", "</arg_key>"];
/// What a value stands between.
pub(super) const QWEN_VALUE: [&str; 2] = [PARAMETER, PARAMETER_END];
pub(super) const GLM_VALUE: [&str; 2] = ["<arg_value>", "</arg_value>"];

/// Name and arguments of a call in Qwen's tags. Values have the types of `schema_of` the tool's name.
pub(super) fn function<'s>(text: &str, schema_of: impl Fn(&str) -> &'s Value) -> Option<(String, Map<String, Value>)> {
    let (name, mut rest) = text.trim().strip_prefix(FUNCTION)?.split_once('>')?;
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

/// Name and arguments of a call of GLM, whose tags may have line breaks between them. Values have the types of `schema_of` the tool's name.
pub(super) fn keyed<'s>(text: &str, schema_of: impl Fn(&str) -> &'s Value) -> Option<(String, Map<String, Value>)> {
    let (name, mut rest) = text.split_at(text.find(KEY[0]).unwrap_or(text.len()));
    let schema = schema_of(name.trim());
    let mut arguments = Map::new();
    while let Some((_, parameter)) = rest.split_once(KEY[0]) {
        let (key, behind) = parameter.split_once(KEY[1])?;
        let value = behind.trim_start().strip_prefix(GLM_VALUE[0])?;
        // A value that was cut off ends where the next key begins.
        let cut = || [KEY[0], "</tool_call>"].iter().filter_map(|tag| value.find(tag)).min();
        let end = value.find(GLM_VALUE[1]).or_else(cut).unwrap_or(value.len());
        let key = key.trim();
        arguments.insert(key.to_owned(), raw_argument(&value[..end], key, schema));
        rest = &value[end..];
    }
    Some((name.trim().to_owned(), arguments))
}

/// The template writes a value on lines of its own.
fn without_line_breaks(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
