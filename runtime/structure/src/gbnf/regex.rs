//! Parts of rules as regular expressions.

use std::collections::BTreeMap;

use super::escape::escaped;
use super::rules::{MAX_BYTES, MAX_DEPTH, Node, Rules, TOO_LARGE};

/// Most parts of rules that are put together, whatever their length.
const MAX_PARTS: u32 = 1 << 20;

/// A regular expression.
#[derive(Clone)]
pub(super) struct Regex {
    pub(super) text: String,
    /// It matches the empty text.
    pub(super) is_nullable: bool,
    /// It matches nothing else.
    pub(super) is_empty: bool,
}

/// Writes nodes as regular expressions, which do not lead to rules that refer to themselves.
pub(super) struct RegexWriter<'r> {
    rules: &'r Rules,
    parts_left: u32,
    written: BTreeMap<Node, Regex>,
}

impl RegexWriter<'_> {
    pub(super) fn new(rules: &Rules) -> RegexWriter<'_> {
        RegexWriter { rules, parts_left: MAX_PARTS, written: BTreeMap::new() }
    }

    /// # Errors
    /// When the expression is too large.
    pub(super) fn regex(&mut self, node: &Node) -> Result<Regex, String> {
        if let Some(regex) = self.written.get(node) {
            return Ok(regex.clone());
        }
        let mut text = String::new();
        let (is_nullable, is_empty) = self.write(node, 0, &mut text)?;
        let regex = Regex { text, is_nullable, is_empty };
        self.written.insert(node.clone(), regex.clone());
        Ok(regex)
    }

    /// Returns whether the node matches the empty text, and whether nothing else.
    fn write(&mut self, node: &Node, depth: usize, out: &mut String) -> Result<(bool, bool), String> {
        if out.len() > MAX_BYTES || depth > MAX_DEPTH || self.parts_left == 0 {
            return Err(TOO_LARGE.to_owned());
        }
        self.parts_left -= 1;
        let rules = self.rules;
        Ok(match node {
            Node::Text(text) => {
                text.chars().for_each(|character| *out += &escaped(character));
                (text.is_empty(), text.is_empty())
            }
            Node::Class(class) => {
                *out += &class.regex();
                (false, false)
            }
            Node::Rule(name) => self.write(&rules[name], depth + 1, out)?,
            Node::Sequence(nodes) => {
                let (mut is_nullable, mut is_empty) = (true, true);
                for node in nodes {
                    let part = self.write(node, depth + 1, out)?;
                    (is_nullable, is_empty) = (is_nullable && part.0, is_empty && part.1);
                }
                (is_nullable, is_empty)
            }
            Node::Choice(nodes) => {
                let (mut is_nullable, mut is_empty) = (false, true);
                for (number, node) in nodes.iter().enumerate() {
                    *out += if number == 0 { "(?:" } else { "|" };
                    let part = self.write(node, depth + 1, out)?;
                    (is_nullable, is_empty) = (is_nullable || part.0, is_empty && part.1);
                }
                *out += ")";
                (is_nullable, is_empty)
            }
            Node::Repeat(node, least, most) => {
                *out += "(?:";
                let part = self.write(node, depth + 1, out)?;
                *out += ")";
                *out += &times(*least, *most);
                (*least == 0 || part.0, *most == Some(0) || part.1)
            }
        })
    }
}

/// How often something is repeated, in a regular expression and in Lark.
pub(super) fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}
