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
        self.rest = self.rest.strip_prefix(quote)?;
        loop {
            let mut letters = self.rest.chars();
            let letter = letters.next()?;
            self.rest = letters.as_str();
            match letter {
                '\\' => self.escape(&mut text)?,
                _ if letter == quote => return Some(text),
                _ => text.push(letter),
            }
        }
    }

    /// What stands for a backslash and what follows it. As in Python, a backslash before any other letter is one.
    fn escape(&mut self, text: &mut String) -> Option<()> {
        let mut letters = self.rest.chars();
        let letter = letters.next()?;
        self.rest = letters.as_str();
        match letter {
            '\n' => {}
            '\\' | '\'' | '"' => text.push(letter),
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'a' => text.push('\x07'),
            'b' => text.push('\x08'),
            'f' => text.push('\x0c'),
            'v' => text.push('\x0b'),
            'x' => text.push(self.code(2)?),
            'u' => text.push(self.code(4)?),
            'U' => text.push(self.code(8)?),
            other => text.extend(['\\', other]),
        }
        Some(())
    }

    /// The character whose code is the next `n` hexadecimal digits. JSON writes one above U+FFFF as two codes.
    fn code(&mut self, n: usize) -> Option<char> {
        let first = self.digits(n)?;
        let second = || u16::from_str_radix(self.rest.strip_prefix("\\u")?.get(..4)?, 16).ok();
        let pair = u16::try_from(first).ok().filter(|first| (0xd800..0xdc00).contains(first)).zip(second());
        let joined = pair.and_then(|(first, second)| char::decode_utf16([first, second]).next()?.ok());
        if joined.is_some() {
            self.rest = &self.rest["\\u0000".len()..];
        }
        Some(joined.or(char::from_u32(first)).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn digits(&mut self, n: usize) -> Option<u32> {
        let digits = self.rest.get(..n).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        self.rest = &self.rest[n..];
        u32::from_str_radix(digits, 16).ok()
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
