//! Gemma's calls: `call:NAME{key:<escape>text<escape>,n:2,inner:{list:[true]}}`, where a text stands between two marks.

use serde_json::{Map, Value};

/// Deepest nesting of lists and objects.
const MAX_DEPTH: usize = 64;

/// Name and arguments of a call whose texts stand between two `mark`s; `None`: it is not one.
pub(super) fn call(text: &str, mark: &str) -> Option<(String, Map<String, Value>)> {
    let text = text.trim();
    // Gemma 4 may leave out the word.
    let call = text.strip_prefix("call").unwrap_or(text).strip_prefix(':')?;
    let (name, rest) = call.split_at(call.find('{')?);
    let mut reader = Reader { rest, mark };
    let Value::Object(arguments) = reader.value(0)? else { return None };
    reader.rest.trim().is_empty().then(|| (name.trim().to_owned(), arguments))
}

struct Reader<'t> {
    rest: &'t str,
    mark: &'t str,
}

impl<'t> Reader<'t> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(text) = self.marked() {
            return Some(text?.into());
        }
        if self.takes('{') {
            let mut object = Map::new();
            while !self.takes('}') {
                let key = match self.marked() {
                    Some(key) => key?,
                    None => self.until(|letter| letter == ':')?,
                };
                self.takes(':').then_some(())?;
                object.insert(key.to_owned(), self.value(depth + 1)?);
                self.separator('}')?;
            }
            return Some(object.into());
        }
        if self.takes('[') {
            let mut list = Vec::new();
            while !self.takes(']') {
                list.push(self.value(depth + 1)?);
                self.separator(']')?;
            }
            return Some(list.into());
        }
        let plain = self.until(|letter| ",]}".contains(letter))?;
        // A text without marks is one all the same.
        Some(
            serde_json::from_str(plain).ok().filter(|value: &Value| !value.is_string()).unwrap_or_else(|| plain.into()),
        )
    }

    /// The text between two marks, if the rest begins with one; `Some(None)`: there is no second one.
    fn marked(&mut self) -> Option<Option<&'t str>> {
        let behind = self.rest.trim_start().strip_prefix(self.mark)?;
        let Some((text, rest)) = behind.split_once(self.mark) else { return Some(None) };
        self.rest = rest;
        Some(Some(text))
    }

    fn takes(&mut self, letter: char) -> bool {
        let found = self.rest.trim_start().strip_prefix(letter);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    /// A comma, or the bracket that closes the list.
    fn separator(&mut self, closer: char) -> Option<()> {
        (self.takes(',') || self.rest.trim_start().starts_with(closer)).then_some(())
    }

    /// The text before the first letter that ends it, without white space around it; never empty.
    fn until(&mut self, ends: impl Fn(char) -> bool) -> Option<&'t str> {
        let (text, rest) = self.rest.split_at(self.rest.find(ends)?);
        self.rest = rest;
        Some(text.trim()).filter(|text| !text.is_empty())
    }
}
