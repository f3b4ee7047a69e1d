//! Which rules and parts are put together from several lexemes.

use std::collections::BTreeSet;

use super::rules::{Node, Rules, references};

/// What is no lexeme, nor a part of one, but put together from lexemes.
pub(super) struct Divided {
    pub(super) rules: BTreeSet<String>,
    pub(super) nodes: BTreeSet<Node>,
}

impl Divided {
    pub(super) fn divide(&mut self, node: Node) {
        match node {
            Node::Rule(name) => drop(self.rules.insert(name)),
            other => drop(self.nodes.insert(other)),
        }
    }

    /// Adds the rules that lead to one of them.
    pub(super) fn extend_to_users(&mut self, rules: &Rules) {
        loop {
            let leads = |name: &String, node: &Node| !self.rules.contains(name) && !self.may_be_lexeme(node);
            let more: Vec<String> =
                rules.iter().filter(|(name, node)| leads(name, node)).map(|(name, _)| name.clone()).collect();
            if more.is_empty() {
                return;
            }
            self.rules.extend(more);
        }
    }

    /// Whether the rules that a node refers to are parts of lexemes.
    pub(super) fn may_be_lexeme(&self, node: &Node) -> bool {
        let mut used = BTreeSet::new();
        references(node, &mut used);
        used.iter().all(|name| !self.rules.contains(*name))
    }
}
