//! The text of a GBNF grammar as rules.

use super::class::Class;
use super::rules::{Node, Rules};

/// Most nested parentheses, and repetitions of one another.
const MAX_NESTED: usize = 100;
/// Most repetitions that a number may give.
const MAX_REPETITIONS: u32 = 100_000;
/// Most repetitions of one another: more than llama.cpp permits, too, could take too much memory only once a text is matched.
const MAX_NESTED_REPETITIONS: u64 = 2000;

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
        // Of rules with one name, the last one counts, as in llama.cpp.
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
                '#' => self.at += self.rest().find(['\n', '\r']).unwrap_or(self.rest().len()),
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
            nodes.push(self.repeated(node, nested)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) })
    }

    /// The node with the repetitions that stand behind it.
    fn repeated(&mut self, mut node: Node, nested: usize) -> Result<Node, String> {
        for _ in 0..MAX_NESTED {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let end = self.rest().find('}').ok_or_else(|| self.wrong("a closing brace"))?;
                    let expected = "numbers in braces, the lower one first, up to 100000";
                    let (least, most) = bounds(&self.rest()[..end]).ok_or_else(|| self.wrong(expected))?;
                    self.at += end;
                    (least, most)
                }
                _ => return Ok(node),
            };
            let inner = repetitions(&node);
            node = Node::Repeat(Box::new(node), least, most);
            if inner > 1 && repetitions(&node) > MAX_NESTED_REPETITIONS {
                return Err(self.wrong("at most 2000 repetitions by numbers within one another"));
            }
            self.at += 1;
            self.skip(nested > 0);
        }
        Err(self.wrong("fewer repetitions of one another"))
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
            // What has a meaning elsewhere, as \d, would be a plain letter here.
            other if other.is_ascii_alphanumeric() => {
                return Err(self.wrong("n, r, t, x, u, U or a punctuation mark behind the backslash"));
            }
            other => return Ok(other),
        };
        let hex = self.rest().get(..digits).filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
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
        Some((least, most)) if most.trim().is_empty() => Some((number(least)?, None)),
        Some((least, most)) => {
            let (least, most) = (number(least)?, number(most)?);
            (least <= most).then_some((least, Some(most)))
        }
    }
}

/// How often a part of a node is repeated at most, by the numbers of all repetitions around it.
fn repetitions(node: &Node) -> u64 {
    match node {
        Node::Text(_) | Node::Class(_) | Node::Rule(_) => 1,
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().map(repetitions).max().unwrap_or(1),
        Node::Repeat(node, least, most) => repetitions(node).saturating_mul(u64::from(most.unwrap_or(*least).max(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(text: &str) -> Node {
        rules(text).unwrap().remove("root").unwrap()
    }

    #[test]
    fn repetitions_have_spaces_and_numbers() {
        let times = |least, most| Node::Repeat(Box::new(Node::Text("a".to_owned())), least, most);
        for (text, least, most) in [("{ 4}", 4, Some(4)), ("{2 , 3 }", 2, Some(3)), ("{2, }", 2, None), (" *", 0, None)]
        {
            assert_eq!(root(&format!("root ::= \"a\"{text}")), times(least, most), "{text}");
        }
        assert_eq!(root("root ::= \"a\"{3,5000}"), times(3, Some(5000)));
        assert_eq!(root("root ::= \"a\"* ?"), Node::Repeat(Box::new(times(0, None)), 0, Some(1)));
    }

    #[test]
    fn the_last_rule_of_a_name_counts() {
        assert_eq!(root("root ::= \"a\"\nroot ::= \"b\" # c\rroot ::= \"c\""), Node::Text("c".to_owned()));
    }

    #[test]
    fn what_is_no_gbnf_is_refused() {
        for (text, expected) in [
            (r#"root ::= "a"{,}"#, "numbers in braces"),
            (r#"root ::= "a"{,10}"#, "numbers in braces"),
            (r#"root ::= "a"{4,2}"#, "the lower one first"),
            (r#"root ::= "a"{100001}"#, "up to 100000"),
            (r#"root ::= ((([^x]*){0,99}){0,99}){0,99}"#, "2000 repetitions"),
            (r#"root ::= "\d""#, "behind the backslash"),
            (r#"root ::= [\w]"#, "behind the backslash"),
            (r#"root ::= "\x+f""#, "in base 16"),
            (r#"root ::= "a" b ::= "c""#, "a text in quotes"),
        ] {
            let message = rules(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        // Deep rules would overflow the stack.
        let deep = format!("root ::= \"a\"{}", "*".repeat(60_000));
        assert!(rules(&deep).unwrap_err().contains("fewer repetitions"));
    }
}
