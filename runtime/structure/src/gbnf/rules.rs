//! The rules of a grammar, as they were read.

use std::collections::{BTreeMap, BTreeSet};

use super::class::Class;

/// Longest regular expression that rules are put together to, and the deepest rules.
pub(super) const MAX_BYTES: usize = 256 << 10;
pub(super) const MAX_DEPTH: usize = 200;
pub(super) const TOO_LARGE: &str = "grammar is too large: expected at most 256 KiB of regular expressions";

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    /// A literal text.
    Text(String),
    /// One character.
    Class(Class),
    Rule(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// The least and the most repetitions of a node; `None`: no limit.
    Repeat(Box<Node>, u32, Option<u32>),
}

pub(super) type Rules = BTreeMap<String, Node>;

pub(super) fn references<'n>(node: &'n Node, found: &mut BTreeSet<&'n str>) {
    match node {
        Node::Text(_) | Node::Class(_) => {}
        Node::Rule(name) => drop(found.insert(name)),
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().for_each(|node| references(node, found)),
        Node::Repeat(node, ..) => references(node, found),
    }
}

/// Whether a rule leads to `to`.
pub(super) fn reaches(rules: &Rules, from: &str, to: &str) -> bool {
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

/// Rules that refer to themselves, also by way of others.
pub(super) fn self_referring(rules: &Rules) -> BTreeSet<String> {
    rules.keys().filter(|name| reaches(rules, name, name)).cloned().collect()
}
