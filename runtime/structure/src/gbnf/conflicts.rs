//! Lexemes that read on where a shorter one would have to end.

use std::collections::BTreeSet;

use super::class::CharacterSet;
use super::follow::following;
use super::lexemes::LexemeGrammar;
use super::rules::{Node, Rules};
use super::steps::Steps;

/// Lexemes that go on behind a text at which another one, or the same, ends, with a character that may follow that one. None where that
/// takes too many steps to find out.
pub(super) fn lexemes_that_read_too_far(grammar: &LexemeGrammar, rules: &Rules, steps: &mut Steps) -> Vec<Node> {
    find(grammar, rules, steps).unwrap_or_default()
}

fn find(grammar: &LexemeGrammar, rules: &Rules, steps: &mut Steps) -> Option<Vec<Node>> {
    let automata = grammar.lexemes.iter().map(|(node, _)| Automaton::of(node, rules, steps));
    let automata = automata.collect::<Option<Vec<Automaton>>>()?;
    let begins: Vec<CharacterSet> = automata.iter().map(Automaton::beginning).collect();
    let following = following(grammar, &begins, steps)?;
    let mut found = BTreeSet::new();
    for (number, ending) in automata.iter().enumerate().filter(|(number, _)| !following[*number].is_empty()) {
        for (other, longer) in automata.iter().enumerate() {
            steps.take(1)?;
            if !found.contains(&other)
                && begins[number].intersects(&begins[other])
                && longer.goes_on_behind(ending, &following[number], steps)?
            {
                found.insert(other);
            }
        }
    }
    Some(found.into_iter().map(|number| grammar.lexemes[number].0.clone()).collect())
}

/// The places in a lexeme that match one character each (Glushkov's automaton). Limits of repetitions are left out, so that it matches
/// more texts than the lexeme, which may divide one without need.
#[derive(Default)]
struct Automaton {
    characters: Vec<CharacterSet>,
    /// The positions behind each.
    next: Vec<BTreeSet<usize>>,
    first: BTreeSet<usize>,
    last: BTreeSet<usize>,
}

/// The positions at which a part begins and ends.
struct Ends {
    first: BTreeSet<usize>,
    last: BTreeSet<usize>,
    is_nullable: bool,
}

impl Ends {
    fn empty() -> Ends {
        Ends { first: BTreeSet::new(), last: BTreeSet::new(), is_nullable: true }
    }
}

impl Automaton {
    fn of(node: &Node, rules: &Rules, steps: &mut Steps) -> Option<Automaton> {
        let mut automaton = Automaton::default();
        let ends = automaton.add(node, rules, steps)?;
        Some(Automaton { first: ends.first, last: ends.last, ..automaton })
    }

    fn beginning(&self) -> CharacterSet {
        let mut beginning = CharacterSet::default();
        for &at in &self.first {
            beginning.extend(&self.characters[at]);
        }
        beginning
    }

    fn position(&mut self, characters: CharacterSet) -> Ends {
        let at = self.characters.len();
        self.characters.push(characters);
        self.next.push(BTreeSet::new());
        Ends { first: [at].into(), last: [at].into(), is_nullable: false }
    }

    /// The positions of `after` follow those of `before`.
    fn connect(&mut self, before: &BTreeSet<usize>, after: &BTreeSet<usize>, steps: &mut Steps) -> Option<()> {
        steps.take(before.len() * after.len())?;
        before.iter().for_each(|&at| self.next[at].extend(after));
        Some(())
    }

    fn join(&mut self, mut before: Ends, after: Ends, steps: &mut Steps) -> Option<Ends> {
        self.connect(&before.last, &after.first, steps)?;
        // Both sets can be as long as all before them.
        if before.is_nullable {
            steps.take(after.first.len())?;
            before.first.extend(after.first);
        }
        let mut last = after.last;
        if after.is_nullable {
            steps.take(before.last.len())?;
            last.extend(before.last);
        }
        Some(Ends { first: before.first, last, is_nullable: before.is_nullable && after.is_nullable })
    }

    fn add(&mut self, node: &Node, rules: &Rules, steps: &mut Steps) -> Option<Ends> {
        steps.take(1)?;
        Some(match node {
            Node::Text(text) => {
                let mut ends = Ends::empty();
                for character in text.chars() {
                    let after = self.position(CharacterSet::one(character));
                    ends = self.join(ends, after, steps)?;
                }
                ends
            }
            Node::Class(class) => self.position(class.set()),
            Node::Rule(name) => self.add(&rules[name], rules, steps)?,
            Node::Sequence(nodes) => {
                let mut ends = Ends::empty();
                for node in nodes {
                    let after = self.add(node, rules, steps)?;
                    ends = self.join(ends, after, steps)?;
                }
                ends
            }
            Node::Choice(nodes) => {
                let mut ends = Ends { is_nullable: false, ..Ends::empty() };
                for node in nodes {
                    let one = self.add(node, rules, steps)?;
                    ends.first.extend(one.first);
                    ends.last.extend(one.last);
                    ends.is_nullable |= one.is_nullable;
                }
                ends
            }
            Node::Repeat(_, _, Some(0)) => Ends::empty(),
            Node::Repeat(node, least, most) => {
                let mut ends = self.add(node, rules, steps)?;
                if *most != Some(1) {
                    self.connect(&ends.last, &ends.first, steps)?;
                }
                ends.is_nullable |= *least == 0;
                ends
            }
        })
    }

    /// Whether this one goes on with a character of `following` behind a text at which `ending` ends.
    fn goes_on_behind(&self, ending: &Automaton, following: &CharacterSet, steps: &mut Steps) -> Option<bool> {
        let mut seen = BTreeSet::new();
        let mut waiting: Vec<(&BTreeSet<usize>, &BTreeSet<usize>)> = vec![(&ending.first, &self.first)];
        while let Some((ends, own)) = waiting.pop() {
            for &end in ends {
                for &at in own {
                    steps.take(1)?;
                    if !ending.characters[end].intersects(&self.characters[at]) || !seen.insert((end, at)) {
                        continue;
                    }
                    let goes_on = |next: &usize| self.characters[*next].intersects(following);
                    if ending.last.contains(&end) {
                        steps.take(self.next[at].len())?;
                        if self.next[at].iter().any(goes_on) {
                            return Some(true);
                        }
                    }
                    waiting.push((&ending.next[end], &self.next[at]));
                }
            }
        }
        Some(false)
    }
}
