//! A WGSL piece as a tree of its directives.

use std::rc::Rc;

/// Lines and directives, each with the number of its line.
pub(super) type Block<'a> = Vec<(usize, Node<'a>)>;

pub(super) enum Node<'a> {
    Text(&'a str),
    Include(&'a str),
    Intrinsic(&'a str),
    /// Name and expression.
    Let(&'a str, &'a str),
    /// Conditions in order, each with its lines; that of `//#else` is `None`.
    If(Vec<(Option<&'a str>, Block<'a>)>),
    For {
        name: &'a str,
        begin: &'a str,
        end: &'a str,
        join: Option<&'a str>,
        block: Block<'a>,
    },
    Macro(&'a str, Rc<Macro<'a>>),
    /// Name and arguments.
    Expand(&'a str, &'a str),
}

pub(super) struct Macro<'a> {
    /// Where it is defined.
    pub piece: &'a str,
    pub parameters: Vec<&'a str>,
    pub block: Block<'a>,
}

/// The tree of `text`, which errors call `piece`.
pub(super) fn parse<'a>(piece: &'a str, text: &'a str) -> Result<Block<'a>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut parser = Parser { piece, lines, next: 0 };
    let (block, last) = parser.block().map_err(|error| parser.located(error))?;
    match last {
        None => Ok(block),
        Some((directive, _)) => Err(parser.located(format!("#{directive} that ends nothing"))),
    }
}

/// A directive's name and the rest of its line.
type Directive<'a> = (&'a str, &'a str);

struct Parser<'a> {
    piece: &'a str,
    lines: Vec<&'a str>,
    /// Number of lines that have been read.
    next: usize,
}

impl<'a> Parser<'a> {
    fn located(&self, error: String) -> String {
        format!("line {} of {}: {error}", self.next, self.piece)
    }

    /// Reads nodes up to a directive that ends or divides them, and that directive.
    fn block(&mut self) -> Result<(Block<'a>, Option<Directive<'a>>), String> {
        let mut block = Block::new();
        while let Some(line) = self.lines.get(self.next) {
            self.next += 1;
            let number = self.next;
            let Some(directive) = line.trim_start().strip_prefix("//#") else {
                block.push((number, Node::Text(line)));
                continue;
            };
            let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
            let rest = rest.trim();
            let node = match word {
                "include" => Node::Include(rest),
                "intrinsic" => Node::Intrinsic(rest),
                "let" => {
                    let (name, expression) = rest.split_once('=').ok_or("expected `#let NAME = EXPRESSION`")?;
                    Node::Let(name.trim(), expression)
                }
                "if" => self.branches(rest)?,
                "for" => self.for_loop(rest)?,
                "macro" => {
                    let (name, parameters) = called(rest)?;
                    let parameters = parameters.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
                    let block = self.until_end()?;
                    Node::Macro(name, Rc::new(Macro { piece: self.piece, parameters, block }))
                }
                "expand" => {
                    let (name, arguments) = called(rest)?;
                    Node::Expand(name, arguments)
                }
                "else" | "endif" | "end" => return Ok((block, Some((word, rest)))),
                _ => return Err(format!("unknown directive #{word}")),
            };
            block.push((number, node));
        }
        Ok((block, None))
    }

    fn branches(&mut self, condition: &'a str) -> Result<Node<'a>, String> {
        let mut branches = Vec::new();
        let mut condition = Some(condition);
        loop {
            let (block, last) = self.block()?;
            branches.push((condition, block));
            condition = match last {
                Some(("endif", _)) => return Ok(Node::If(branches)),
                Some(("else", rest)) if condition.is_some() => match rest.strip_prefix("if ") {
                    None if rest.is_empty() => None,
                    Some(next) => Some(next),
                    None => return Err(format!("expected #else or #else if, found `{rest}`")),
                },
                other => return Err(format!("#if without #endif, found {other:?}")),
            };
        }
    }

    fn for_loop(&mut self, header: &'a str) -> Result<Node<'a>, String> {
        let (header, join) = header.split_once(" join ").map_or((header, None), |(header, join)| (header, Some(join)));
        let (name, range) = header.split_once(" in ").ok_or("expected `#for NAME in A..B`")?;
        let (begin, end) = range.split_once("..").ok_or("expected `#for NAME in A..B`")?;
        Ok(Node::For { name: name.trim(), begin, end, join, block: self.until_end()? })
    }

    fn until_end(&mut self) -> Result<Block<'a>, String> {
        match self.block()? {
            (block, Some(("end", _))) => Ok(block),
            (_, other) => Err(format!("expected #end, found {other:?}")),
        }
    }
}

/// `NAME(LIST)` as name and list.
fn called(text: &str) -> Result<(&str, &str), String> {
    let inner = text.split_once('(').and_then(|(name, rest)| Some((name.trim(), rest.strip_suffix(')')?)));
    inner.ok_or_else(|| format!("expected `NAME(…)`, found `{text}`"))
}
