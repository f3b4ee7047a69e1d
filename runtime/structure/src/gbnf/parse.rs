//! The text of a GBNF grammar as rules.

use super::class::Class;
use super::{Node, Rules};

/// Most nested parentheses.
const MAX_NESTED: usize = 100;
/// Most repetitions that a number may give, as in llama.cpp.
const MAX_REPETITIONS: u32 = 2000;

/// Every rule by its name.
pub(super) fn rules(text: &str) -> Result<Rules, String> {
    let mut parser = Parser { text, at: 0 };
    let mut rules = Rules::new();
    parser.skip(true);
    while !parser.rest().is_empty() {
        let name = parser.name()?;
        parser.skip(false);
        parser.expect("::=")?;
        parser.skip(true);
        let node = parser.choice(0)?;
        // Rules of one name are alternatives of it.
        let node = match rules.remove(&name) {
            Some(before) => Node::Choice(vec![before, node]),
            None => node,
        };
        rules.insert(name, node);
        parser.skip(true);
    }
    Ok(rules)
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn wrong(&self, expected: &str) -> String {
        let found: String = self.rest().chars().take(20).collect();
        let line = self.text[..self.at].matches('\n').count() + 1;
        format!("line {line}: expected {expected}, found {found:?}")
    }

    /// White space and comments; line breaks too, where `lines`.
    fn skip(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                '#' => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                '\n' | '\r' if !lines => return,
                next if next.is_whitespace() => self.at += next.len_utf8(),
                _ => return,
            }
        }
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        if !self.rest().starts_with(wanted) {
            return Err(self.wrong(&format!("{wanted:?}")));
        }
        self.at += wanted.len();
        Ok(())
    }

    fn name(&mut self) -> Result<String, String> {
        let is_part = |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
        let length = self.rest().find(|character| !is_part(character)).unwrap_or(self.rest().len());
        if length == 0 {
            return Err(self.wrong("the name of a rule"));
        }
        let name = self.rest()[..length].to_owned();
        self.at += length;
        Ok(name)
    }

    fn choice(&mut self, nested: usize) -> Result<Node, String> {
        if nested > MAX_NESTED {
            return Err(self.wrong("fewer parentheses within one another"));
        }
        let mut alternatives = vec![self.sequence(nested)?];
        while self.peek() == Some('|') {
            self.at += 1;
            self.skip(true);
            alternatives.push(self.sequence(nested)?);
        }
        Ok(if alternatives.len() == 1 { alternatives.remove(0) } else { Node::Choice(alternatives) })
    }

    fn sequence(&mut self, nested: usize) -> Result<Node, String> {
        let mut nodes = Vec::new();
        while let Some(next) = self.peek() {
            let node = match next {
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.at += 1;
                    Node::Class(Class::any())
                }
                '(' => {
                    self.at += 1;
                    self.skip(true);
                    let node = self.choice(nested + 1)?;
                    self.expect(")")?;
                    node
                }
                next if next.is_ascii_alphanumeric() || "-_".contains(next) => Node::Rule(self.name()?),
                '|' | ')' | '\n' | '\r' => break,
                _ => return Err(self.wrong("a text in quotes, a class, a rule, or a parenthesis")),
            };
            self.skip(nested > 0);
            let node = self.repeated(node)?;
            self.skip(nested > 0);
            nodes.push(node);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) })
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, String> {
        loop {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let end = self.rest().find('}').ok_or_else(|| self.wrong("a closing brace"))?;
                    let (least, most) = bounds(&self.rest()[..end]).ok_or_else(|| self.wrong("numbers in braces"))?;
                    self.at += end;
                    (least, most)
                }
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat(Box::new(node), least, most);
        }
    }

    fn literal(&mut self) -> Result<Node, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => {
                    self.at += 1;
                    return Ok(Node::Text(text));
                }
                Some(_) => text.push(self.character()?),
                None => return Err(self.wrong("a closing quote")),
            }
        }
    }

    fn class(&mut self) -> Result<Node, String> {
        self.at += 1;
        let is_negated = self.peek() == Some('^');
        self.at += usize::from(is_negated);
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                Some(']') if !ranges.is_empty() => {
                    self.at += 1;
                    return Ok(Node::Class(Class { ranges, is_negated }));
                }
                Some(']') | None => return Err(self.wrong("a character of a class, and a bracket behind the last")),
                Some(_) => ranges.push(self.range()?),
            }
        }
    }

    /// A character of a class, or the first and the last of several.
    fn range(&mut self) -> Result<(char, char), String> {
        let first = self.character()?;
        if !self.rest().starts_with('-') || self.rest().starts_with("-]") {
            return Ok((first, first));
        }
        self.at += 1;
        let last = self.character()?;
        match first <= last {
            true => Ok((first, last)),
            false => Err(self.wrong("ranges from the lower character to the higher")),
        }
    }

    /// A character of a text or a class, which may be escaped.
    fn character(&mut self) -> Result<char, String> {
        let next = self.next().ok_or_else(|| self.wrong("a character"))?;
        if next != '\\' {
            return Ok(next);
        }
        let escaped = self.next().ok_or_else(|| self.wrong("a character behind the backslash"))?;
        let digits = match escaped {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => return Ok(other),
        };
        let code = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let character = code.and_then(char::from_u32).ok_or_else(|| self.wrong("a character's number in base 16"))?;
        self.at += digits;
        Ok(character)
    }
}

/// The bounds of a repetition, from the text between braces.
fn bounds(text: &str) -> Option<(u32, Option<u32>)> {
    let number = |text: &str| text.trim().parse().ok().filter(|number| *number <= MAX_REPETITIONS);
    match text.split_once(',') {
        None => number(text).map(|times| (times, Some(times))),
        Some((least, "")) => Some((number(least)?, None)),
        Some((least, most)) => {
            let least = if least.trim().is_empty() { 0 } else { number(least)? };
            let most = number(most)?;
            (least <= most).then_some((least, Some(most)))
        }
    }
}
