//! Calls as Python writes them, `[name(key="value", n=2), …]`, with literals as arguments.

use serde_json::{Map, Number, Value};

/// Nested lists and dictionaries of an argument.
const MAX_DEPTH: u32 = 64;

/// Names and arguments of the calls in `text`, with or without brackets around them. `None`: it is something else.
pub(super) fn calls(text: &str) -> Option<Vec<(String, Map<String, Value>)>> {
    let text = text.trim();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let mut reader = Reader { rest: inner };
    let mut calls = Vec::new();
    loop {
        calls.push(reader.call()?);
        reader.skip_space();
        if reader.rest.is_empty() {
            return Some(calls);
        }
        reader.expect(',')?;
    }
}

struct Reader<'t> {
    rest: &'t str,
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn expect(&mut self, letter: char) -> Option<()> {
        self.skip_space();
        self.rest = self.rest.strip_prefix(letter)?;
        Some(())
    }

    fn next_is(&mut self, letter: char) -> bool {
        self.skip_space();
        self.rest.starts_with(letter)
    }

    fn name(&mut self) -> Option<String> {
        self.skip_space();
        let is_part = |letter: char| letter.is_alphanumeric() || "_.-".contains(letter);
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        name.starts_with(|letter: char| letter.is_alphabetic() || letter == '_').then(|| name.to_owned())
    }

    fn call(&mut self) -> Option<(String, Map<String, Value>)> {
        let name = self.name()?;
        self.expect('(')?;
        let mut arguments = Map::new();
        while !self.next_is(')') {
            let key = self.name()?;
            self.expect('=')?;
            arguments.insert(key, self.value(0)?);
            if !self.next_is(')') {
                self.expect(',')?;
            }
        }
        self.expect(')')?;
        Some((name, arguments))
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip_space();
        match self.rest.chars().next()? {
            quote @ ('"' | '\'') => self.text(quote).map(Value::String),
            '[' => self.items('[', ']', depth).map(Value::Array),
            '(' => self.items('(', ')', depth).map(Value::Array),
            '{' => self.dictionary(depth),
            _ => self.word(),
        }
    }

    fn items(&mut self, open: char, close: char, depth: u32) -> Option<Vec<Value>> {
        self.expect(open)?;
        let mut items = Vec::new();
        while !self.next_is(close) {
            items.push(self.value(depth + 1)?);
            if !self.next_is(close) {
                self.expect(',')?;
            }
        }
        self.expect(close)?;
        Some(items)
    }

    fn dictionary(&mut self, depth: u32) -> Option<Value> {
        self.expect('{')?;
        let mut entries = Map::new();
        while !self.next_is('}') {
            let Value::String(key) = self.value(depth + 1)? else { return None };
            self.expect(':')?;
            entries.insert(key, self.value(depth + 1)?);
            if !self.next_is('}') {
                self.expect(',')?;
            }
        }
        self.expect('}')?;
        Some(Value::Object(entries))
    }

    fn text(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut letters = self.rest.char_indices().skip(1);
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => text.push(match letters.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    other => other,
                }),
                _ if letter == quote => {
                    self.rest = &self.rest[at + letter.len_utf8()..];
                    return Some(text);
                }
                _ => text.push(letter),
            }
        }
        None
    }

    /// A number, or a constant of Python or JSON.
    fn word(&mut self) -> Option<Value> {
        let is_part = |letter: char| letter.is_alphanumeric() || "_+-.".contains(letter);
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => Some(true.into()),
            "False" | "false" => Some(false.into()),
            "None" | "null" => Some(Value::Null),
            number => number.parse::<i64>().ok().map(Value::from).or_else(|| {
                let number: f64 = number.parse().ok()?;
                Number::from_f64(number).map(Value::Number)
            }),
        }
    }
}
