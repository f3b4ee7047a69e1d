//! A grammar whose rules are put together from lexemes, and its text in Lark.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::divided::Divided;
use super::regex::{Regex, RegexWriter, times};
use super::rules::{MAX_BYTES, MAX_DEPTH, Node, Rules, TOO_LARGE};

/// A part of a rule, over lexemes by their number.
pub(super) enum Part {
    /// One that may be empty is optional, and not empty where it is there.
    Lexeme {
        number: usize,
        is_optional: bool,
    },
    Empty,
    Rule(String),
    Sequence(Vec<Part>),
    Choice(Vec<Part>),
    Repeat(Box<Part>, u32, Option<u32>),
}

pub(super) struct LexemeGrammar {
    pub(super) start: Part,
    /// The divided rules.
    pub(super) rules: BTreeMap<String, Part>,
    pub(super) lexemes: Vec<(Node, Regex)>,
}

impl LexemeGrammar {
    /// # Errors
    /// When the grammar is too large.
    pub(super) fn of(rules: &Rules, divided: &Divided, writer: &mut RegexWriter<'_>) -> Result<LexemeGrammar, String> {
        let mut builder = Builder { divided, writer, numbers: BTreeMap::new(), lexemes: Vec::new(), n_parts: 0 };
        let start = builder.part(&Node::Rule("root".to_owned()), 0)?;
        let part = |name: &String| Ok((name.clone(), builder.part(&rules[name], 0)?));
        let rules = divided.rules.iter().map(part).collect::<Result<_, String>>()?;
        Ok(LexemeGrammar { start, rules, lexemes: builder.lexemes })
    }

    /// # Errors
    /// When the regular expressions are too large.
    pub(super) fn lark(&self) -> Result<String, String> {
        let mut text = String::new();
        for (number, (_, regex)) in self.lexemes.iter().enumerate() {
            let filled = if regex.is_nullable { " & /(?s:.)+/" } else { "" };
            writeln!(text, "T{number}: /{}/{filled}", regex.text).expect("writing to a String");
            if text.len() > 2 * MAX_BYTES {
                return Err(TOO_LARGE.to_owned());
            }
        }
        writeln!(text, "start: {}", self.text(&self.start)).expect("writing to a String");
        for (number, part) in self.rules.values().enumerate() {
            writeln!(text, "r{number}: {}", self.text(part)).expect("writing to a String");
        }
        Ok(text)
    }

    fn text(&self, part: &Part) -> String {
        let texts =
            |parts: &[Part], between| parts.iter().map(|part| self.text(part)).collect::<Vec<_>>().join(between);
        match part {
            Part::Lexeme { number, is_optional } => format!("T{number}{}", if *is_optional { "?" } else { "" }),
            Part::Empty => "\"\"".to_owned(),
            // A name that Lark permits.
            Part::Rule(name) => format!("r{}", self.rules.keys().take_while(|other| *other != name).count()),
            Part::Sequence(parts) => texts(parts, " "),
            Part::Choice(parts) => format!("({})", texts(parts, " | ")),
            Part::Repeat(part, least, most) => format!("({}){}", self.text(part), times(*least, *most)),
        }
    }
}

struct Builder<'b, 'r> {
    divided: &'b Divided,
    writer: &'b mut RegexWriter<'r>,
    numbers: BTreeMap<Node, usize>,
    lexemes: Vec<(Node, Regex)>,
    n_parts: usize,
}

impl Builder<'_, '_> {
    fn part(&mut self, node: &Node, depth: usize) -> Result<Part, String> {
        self.n_parts += 1;
        if self.n_parts > MAX_BYTES || depth > MAX_DEPTH {
            return Err(TOO_LARGE.to_owned());
        }
        let is_divided = self.divided.nodes.contains(node);
        if !is_divided && self.divided.may_be_lexeme(node) {
            return self.lexeme(node);
        }
        let mut parts = |nodes: &[Node]| nodes.iter().map(|node| self.part(node, depth + 1)).collect::<Result<_, _>>();
        Ok(match node {
            Node::Text(text) => {
                Part::Sequence(parts(&text.chars().map(|one| Node::Text(one.to_string())).collect::<Vec<_>>())?)
            }
            Node::Class(_) => self.lexeme(node)?,
            Node::Rule(name) => Part::Rule(name.clone()),
            Node::Sequence(nodes) if is_divided => Part::Sequence(parts(nodes)?),
            Node::Sequence(nodes) => Part::Sequence(self.runs(nodes, depth)?),
            Node::Choice(nodes) => Part::Choice(parts(nodes)?),
            Node::Repeat(node, least, most) => Part::Repeat(Box::new(self.part(node, depth + 1)?), *least, *most),
        })
    }

    /// Neighbours of a sequence are one lexeme where they may be.
    fn runs(&mut self, nodes: &[Node], depth: usize) -> Result<Vec<Part>, String> {
        let may_join = |node: &Node| self.divided.may_be_lexeme(node) && !self.divided.nodes.contains(node);
        let mut parts = Vec::new();
        for run in nodes.chunk_by(|a, b| may_join(a) && may_join(b)) {
            parts.push(match run {
                [one] => self.part(one, depth + 1)?,
                several => self.part(&Node::Sequence(several.to_vec()), depth + 1)?,
            });
        }
        Ok(parts)
    }

    fn lexeme(&mut self, node: &Node) -> Result<Part, String> {
        if let Some(&number) = self.numbers.get(node) {
            return Ok(Part::Lexeme { number, is_optional: self.lexemes[number].1.is_nullable });
        }
        let regex = self.writer.regex(node)?;
        if regex.is_empty {
            return Ok(Part::Empty);
        }
        let (number, is_optional) = (self.lexemes.len(), regex.is_nullable);
        self.lexemes.push((node.clone(), regex));
        self.numbers.insert(node.clone(), number);
        Ok(Part::Lexeme { number, is_optional })
    }
}
