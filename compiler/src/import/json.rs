//! [`Fields`]: a JSON object of a file from outside, read field by field with errors that name file, field, expected
//! and found.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{CompileError, Result};

/// One object of a JSON file. A field that is `null` reads as absent, except where a method is documented otherwise.
pub(crate) struct Fields<'a> {
    path: &'a Path,
    /// Dotted place of the object within the file, with a dot at its end; empty for the file's root.
    section: String,
    object: &'a Map<String, Value>,
}

/// Parses the `bytes` of the JSON file at `path`.
pub(crate) fn parse_json(path: &Path, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|error| CompileError::malformed(path, format!("file is not JSON: {error}")))
}

impl<'a> Fields<'a> {
    pub fn root(path: &'a Path, value: &'a Value) -> Result<Fields<'a>> {
        let object = value.as_object().ok_or_else(|| CompileError::malformed(path, "file is not a JSON object"))?;
        Ok(Fields { path, section: String::new(), object })
    }

    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        let object = self.read(name, "an object", Value::as_object)?;
        Ok(object.map(|object| Fields { path: self.path, section: format!("{}{name}.", self.section), object }))
    }

    /// Whether the field is present, even as `null`.
    pub fn is_written(&self, name: &str) -> bool {
        self.object.contains_key(name)
    }

    /// Whether the field is present and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    pub fn value(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.object.keys().map(String::as_str)
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.read(name, "a string", Value::as_str)
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        self.read(name, "a number", Value::as_f64)
    }

    pub fn required_number(&self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| self.error(name, "is missing, expected a number"))
    }

    pub fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>> {
        self.read(name, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    pub fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>> {
        self.read(name, "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// Token ids given as one integer or a list of them.
    pub fn token_ids(&self, name: &str) -> Result<Option<Vec<u32>>> {
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        self.read(name, "a token id or a list of them", |value| match value.as_array() {
            Some(list) => list.iter().map(id).collect(),
            None => Some(vec![id(value)?]),
        })
    }

    /// A size within 1..=max.
    pub fn size(&self, name: &str, max: usize) -> Result<Option<usize>> {
        let expected = format!("an integer from 1 to {max}");
        self.read(name, &expected, |value| {
            usize::try_from(value.as_u64()?).ok().filter(|size| (1..=max).contains(size))
        })
    }

    pub fn error(&self, name: &str, what: &str) -> CompileError {
        CompileError::malformed(self.path, format!("{}{name} {what}", self.section))
    }

    fn read<T>(&self, name: &str, expected: &str, convert: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.error(name, &format!("is {}, expected {expected}", brief(value))))
    }
}

/// A value as the file has it, cut if it is long.
fn brief(value: &Value) -> String {
    const LONGEST_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}
