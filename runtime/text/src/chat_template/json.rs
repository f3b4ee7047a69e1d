//! The filter `tojson` as transformers defines it: Python's `json.dumps`, which escapes nothing for HTML.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// `json.dumps(value, ensure_ascii=…, indent=…, separators=…, sort_keys=…)`; by default, letters outside ASCII stay as they are.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = indent.filter(|indent| !indent.is_none()).map(indentation).transpose()?;
    let (item, key) = match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators of tojson: expected two texts")),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut writer = JsonWriter {
        out: String::new(),
        indent,
        item,
        key,
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// Python's limit is a thousand as well.
const MAX_DEPTH: usize = 1000;
/// Spaces of a level's indentation.
const MAX_INDENT: usize = 100;
/// More than any context holds. A list that holds another one twice, and so on, is short in memory and endless in JSON.
const MAX_BYTES: usize = 16 << 20;

/// What a level is indented by: a number of spaces, or a text.
fn indentation(indent: Value) -> Result<String, Error> {
    let text = match indent.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(indent)?.min(MAX_INDENT + 1)),
    };
    if text.len() > MAX_INDENT {
        let detail = format!("indent of tojson: expected at most {MAX_INDENT} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    Ok(text)
}

struct JsonWriter {
    out: String,
    indent: Option<String>,
    /// Separator of two items.
    item: String,
    /// Separator of a key and its value.
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH || self.out.len() > MAX_BYTES {
            let detail = format!("tojson: expected at most {MAX_DEPTH} levels and {MAX_BYTES} bytes");
            return Err(Error::new(ErrorKind::BadSerialization, detail));
        }
        match value.kind() {
            ValueKind::None => self.out += "null",
            ValueKind::Bool => self.out += if value.is_true() { "true" } else { "false" },
            ValueKind::Number => self.out += &number(value),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items(['[', ']'], items, depth, |writer, item| writer.value(&item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.items(['{', '}'], keys, depth, |writer, key| {
                    writer.text(&key.to_string());
                    writer.out += &writer.key;
                    writer.value(&value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("a value of type {kind} has no JSON form"),
                ));
            }
        }
        Ok(())
    }

    fn items(
        &mut self,
        [open, close]: [char; 2],
        items: Vec<Value>,
        depth: usize,
        mut write: impl FnMut(&mut JsonWriter, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let is_empty = items.is_empty();
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                self.out += &self.item;
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !is_empty {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    /// A line break and the indentation of `depth`, where the output is indented.
    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out += &indent.repeat(depth);
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.out += "\\\"",
                '\\' => self.out += "\\\\",
                '\n' => self.out += "\\n",
                '\r' => self.out += "\\r",
                '\t' => self.out += "\\t",
                '\u{8}' => self.out += "\\b",
                '\u{c}' => self.out += "\\f",
                '\0'..' ' => self.escape(letter),
                '\u{7f}'.. if self.ensure_ascii => self.escape(letter),
                _ => self.out.push(letter),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, letter: char) {
        for unit in letter.encode_utf16(&mut [0; 2]) {
            self.out += &format!("\\u{unit:04x}");
        }
    }
}

/// A number as Python writes it: a float has a point or an exponent of a sign and two digits.
pub(super) fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let text = format!("{:?}", f64::try_from(value.clone()).unwrap_or(f64::NAN));
    match text.split_once('e') {
        Some((mantissa, exponent)) => match exponent.strip_prefix('-') {
            Some(digits) => format!("{mantissa}e-{digits:0>2}"),
            None => format!("{mantissa}e+{exponent:0>2}"),
        },
        None => text,
    }
}
