//! llama.cpp's grammars (GBNF) as llguidance's: rules that refer to themselves become rules, everything else regular expressions.
//!
//! llguidance reads a text in lexemes, the longest first, so that a text of which a shorter lexeme would have matched is not
//! written; what is written always matches. A grammar without recursion is one regular expression, and exact.

mod parse;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// A literal text.
    Text(String),
    /// One character, as a regular expression's class.
    Class(String),
    Rule(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// The least and the most repetitions of a node; `None`: no limit.
    Repeat(Box<Node>, u32, Option<u32>),
}

type Rules = BTreeMap<String, Node>;

/// Longest regular expression that rules are put together to, and the deepest rules.
const MAX_BYTES: usize = 256 << 10;
const MAX_DEPTH: usize = 200;
const TOO_LARGE: &str = "grammar is too large: expected at most 256 KiB of regular expressions";
/// Longest grammar.
const MAX_GRAMMAR_BYTES: usize = 64 << 10;
/// Most parts of rules that are put together, whatever their length.
const MAX_PARTS: u32 = 1 << 20;

/// The grammar in llguidance's form of Lark.
///
/// # Errors
/// When it is not GBNF, has no rule `root`, or is too large.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    if text.len() > MAX_GRAMMAR_BYTES {
        return Err(format!("expected a grammar of at most {MAX_GRAMMAR_BYTES} bytes, found {}", text.len()));
    }
    let rules = parse::rules(text)?;
    if !rules.contains_key("root") {
        return Err("expected a rule with the name root, found none".to_owned());
    }
    for node in rules.values() {
        let mut used = BTreeSet::new();
        references(node, &mut used);
        if let Some(unknown) = used.iter().find(|name| !rules.contains_key(**name)) {
            return Err(format!("rule {unknown:?} is used and not defined"));
        }
    }
    let regular = Regular { rules: &rules, irregular: irregular(&rules), parts_left: Cell::new(MAX_PARTS) };
    let mut lark = Lark { regular, text: String::new(), terminals: 0 };
    lark.write()?;
    Ok(lark.text)
}

fn references<'n>(node: &'n Node, found: &mut BTreeSet<&'n str>) {
    match node {
        Node::Text(_) | Node::Class(_) => {}
        Node::Rule(name) => drop(found.insert(name)),
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().for_each(|node| references(node, found)),
        Node::Repeat(node, ..) => references(node, found),
    }
}

/// Whether a rule leads to `to`.
fn reaches(rules: &Rules, from: &str, to: &str) -> bool {
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(name) = waiting.pop() {
        let mut used = BTreeSet::new();
        references(&rules[name], &mut used);
        if used.contains(to) {
            return true;
        }
        waiting.extend(used.into_iter().filter(|name| seen.insert(*name)));
    }
    false
}

/// Rules that refer to themselves, or lead to one that does.
fn irregular(rules: &Rules) -> BTreeSet<String> {
    let mut irregular: BTreeSet<String> = rules.keys().filter(|name| reaches(rules, name, name)).cloned().collect();
    loop {
        let leads = |node: &Node| {
            let mut used = BTreeSet::new();
            references(node, &mut used);
            used.iter().any(|name| irregular.contains(*name))
        };
        let more = rules.iter().filter(|(name, node)| !irregular.contains(*name) && leads(node));
        let more: Vec<String> = more.map(|(name, _)| name.clone()).collect();
        if more.is_empty() {
            return irregular;
        }
        irregular.extend(more);
    }
}

/// Which nodes are regular, and their regular expressions.
struct Regular<'r> {
    rules: &'r Rules,
    irregular: BTreeSet<String>,
    parts_left: Cell<u32>,
}

impl Regular<'_> {
    fn is(&self, node: &Node) -> bool {
        let mut used = BTreeSet::new();
        references(node, &mut used);
        used.iter().all(|name| !self.irregular.contains(*name))
    }

    fn is_nullable(&self, node: &Node) -> bool {
        match node {
            Node::Text(text) => text.is_empty(),
            Node::Class(_) => false,
            Node::Rule(name) => self.is_nullable(&self.rules[name]),
            Node::Sequence(nodes) => nodes.iter().all(|node| self.is_nullable(node)),
            Node::Choice(nodes) => nodes.iter().any(|node| self.is_nullable(node)),
            Node::Repeat(node, least, _) => *least == 0 || self.is_nullable(node),
        }
    }

    fn write(&self, node: &Node, depth: usize, out: &mut String) -> Result<(), String> {
        let parts_left = self.parts_left.get();
        if out.len() > MAX_BYTES || depth > MAX_DEPTH || parts_left == 0 {
            return Err(TOO_LARGE.to_owned());
        }
        self.parts_left.set(parts_left - 1);
        match node {
            Node::Text(text) => text.chars().for_each(|character| *out += &escaped(character)),
            Node::Class(class) => *out += class,
            Node::Rule(name) => self.write(&self.rules[name], depth + 1, out)?,
            Node::Sequence(nodes) => {
                for node in nodes {
                    self.write(node, depth + 1, out)?;
                }
            }
            Node::Choice(nodes) => {
                for (number, node) in nodes.iter().enumerate() {
                    *out += if number == 0 { "(?:" } else { "|" };
                    self.write(node, depth + 1, out)?;
                }
                *out += ")";
            }
            Node::Repeat(node, least, most) => {
                *out += "(?:";
                self.write(node, depth + 1, out)?;
                *out += ")";
                *out += &times(*least, *most);
            }
        }
        Ok(())
    }
}

/// A character as a regular expression.
fn escaped(character: char) -> String {
    match character.is_ascii_alphanumeric() {
        true => character.to_string(),
        false => format!("\\x{{{:X}}}", u32::from(character)),
    }
}

fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

struct Lark<'r> {
    regular: Regular<'r>,
    text: String,
    terminals: usize,
}

impl Lark<'_> {
    fn write(&mut self) -> Result<(), String> {
        let start = self.expression(&Node::Rule("root".to_owned()), 0)?;
        writeln!(self.text, "start: {start}").expect("writing to a String");
        for (name, node) in self.regular.rules {
            if self.regular.irregular.contains(name) {
                let body = self.expression(node, 0)?;
                let rule = self.rule(name);
                writeln!(self.text, "{rule}: {body}").expect("writing to a String");
            }
        }
        Ok(())
    }

    /// A rule's name that Lark permits.
    fn rule(&self, name: &str) -> String {
        format!("r{}", self.regular.irregular.iter().take_while(|other| *other != name).count())
    }

    fn expression(&mut self, node: &Node, depth: usize) -> Result<String, String> {
        if self.text.len() > 2 * MAX_BYTES || depth > MAX_DEPTH {
            return Err(TOO_LARGE.to_owned());
        }
        if self.regular.is(node) {
            return self.terminal(node);
        }
        Ok(match node {
            Node::Rule(name) => self.rule(name),
            Node::Sequence(nodes) => {
                // Neighbours that are regular are one lexeme.
                let mut parts = Vec::new();
                let is_regular: Vec<bool> = nodes.iter().map(|node| self.regular.is(node)).collect();
                let mut at = 0;
                while at < nodes.len() {
                    let run = is_regular[at..].iter().take_while(|regular| **regular).count();
                    parts.push(match run {
                        0 => self.expression(&nodes[at], depth + 1)?,
                        _ => self.terminal(&Node::Sequence(nodes[at..at + run].to_vec()))?,
                    });
                    at += run.max(1);
                }
                parts.join(" ")
            }
            Node::Choice(nodes) => {
                let parts = nodes.iter().map(|node| self.expression(node, depth + 1)).collect::<Result<Vec<_>, _>>()?;
                format!("({})", parts.join(" | "))
            }
            Node::Repeat(node, least, most) => {
                format!("({}){}", self.expression(node, depth + 1)?, times(*least, *most))
            }
            Node::Text(_) | Node::Class(_) => self.terminal(node)?,
        })
    }

    /// A lexeme of its own. One that may be empty is optional, and not empty.
    fn terminal(&mut self, node: &Node) -> Result<String, String> {
        let mut regex = String::new();
        self.regular.write(node, 0, &mut regex)?;
        if regex.is_empty() {
            return Ok("\"\"".to_owned());
        }
        let name = format!("T{}", self.terminals);
        self.terminals += 1;
        let is_nullable = self.regular.is_nullable(node);
        let (filled, optional) = if is_nullable { (" & /(?s:.)+/", "?") } else { ("", "") };
        writeln!(self.text, "{name}: /{regex}/{filled}").expect("writing to a String");
        Ok(format!("{name}{optional}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_without_recursion_is_one_expression() {
        let lark =
            to_lark("root ::= \"a/b\" digit+ # comment\ndigit ::= [0-9\\x41-\\u0043] | [^\\]\\n]{2,3}\n").unwrap();
        assert_eq!(lark, "T0: /a\\x{2F}b(?:(?:[0-9A-C]|(?:[^\\x{5D}\\x{A}]){2,3}))+/\nstart: T0\n");
    }

    #[test]
    fn rules_that_refer_to_themselves_stay_rules() {
        let lark = to_lark("root ::= list ws\nlist ::= \"(\" ws (list ws)* \")\"\nws ::= \" \"*").unwrap();
        let expected = [
            "start: r1",
            "T0: /\\x{28}(?:\\x{20})*/",
            "T1: /(?:\\x{20})*/ & /(?s:.)+/",
            "T2: /\\x{29}/",
            "r0: T0 (r0 T1?)* T2",
            "T3: /(?:\\x{20})*/ & /(?s:.)+/",
            "r1: r0 T3?",
        ];
        assert_eq!(lark.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_grammar_that_explodes_is_refused() {
        let mut grammar = "root ::= r0\n".to_owned();
        for number in 0..40 {
            writeln!(grammar, "r{number} ::= r{} r{}", number + 1, number + 1).unwrap();
        }
        grammar += "r40 ::= \"a\"";
        assert_eq!(to_lark(&grammar).unwrap_err(), TOO_LARGE);
        assert!(to_lark("a ::= \"b\"").unwrap_err().contains("root"));
        assert!(to_lark("root ::= b").unwrap_err().contains("\"b\" is used"));
    }
}
