//! Sizes that the estimate prefers to the chosen one, and the limits that exclude them: the answer to why a tile is not larger.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use crate::legal::Fault;
use crate::rule::Rule;

/// The excluded sizes of one problem, from the fastest to the one next to the chosen size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exclusions {
    by_rule: BTreeMap<Rule, (usize, Excluded)>,
    next: Option<Rule>,
}

/// A size that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// The size, such as `64 × 160 × 128`.
    pub size: String,
    /// Estimated cycles of the problem with it.
    pub cycles: usize,
    /// The limit: what is there and what the size needs.
    pub fault: Fault,
}

impl Exclusions {
    /// Adds a size that is no faster than all before it.
    pub fn add(&mut self, excluded: Excluded) {
        let rule = excluded.fault.rule;
        self.next = Some(rule);
        let count = self.by_rule.get(&rule).map_or(0, |(count, _)| *count);
        self.by_rule.insert(rule, (count + 1, excluded));
    }

    /// The limit that decided, which is that of the next better size; `None`: no size would be better.
    pub fn decided(&self) -> Option<Rule> {
        self.next
    }

    /// The next better size that a limit excludes.
    pub fn next_of(&self, rule: Rule) -> Option<&Excluded> {
        self.by_rule.get(&rule).map(|(_, excluded)| excluded)
    }

    /// Lines for people: the limit that decided, then the others. `cycles` and `unit`: the chosen size's estimate, and what it is limited by.
    pub fn explained(&self, cycles: usize, unit: &str) -> String {
        let Some(decided) = self.next else {
            return format!("  decided by         {unit}: no size is better, whether it fits or not");
        };
        let others = self.by_rule.keys().filter(|rule| **rule != decided);
        let lines = std::iter::once(("decided by", &decided)).chain(others.map(|rule| ("also excludes", rule)));
        let line = |(label, rule): (&str, &Rule)| {
            let (count, next) = &self.by_rule[rule];
            let sizes = if *count == 1 { "better size exceeds" } else { "better sizes exceed" };
            let gain = match cycles - next.cycles.min(cycles) {
                0 => "as fast".to_owned(),
                fewer => format!("{:.2} % faster", 100.0 * fewer as f64 / cycles as f64),
            };
            let (size, limit) = (&next.size, Limit(&next.fault));
            format!("  {label:<18} {rule}: {count} {sizes} it; the next, {size}, {gain}: {limit}")
        };
        lines.map(line).collect::<Vec<_>>().join("\n")
    }
}

/// A fault without its rule's name, which the line begins with.
struct Limit<'f>(&'f Fault);

impl Display for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {}", self.0.place, self.0.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_next_to_the_chosen_one_decides() {
        let excluded = |size: &str, cycles, rule, what: &str| {
            let fault = Fault { rule, place: "core".into(), what: what.into() };
            Excluded { size: size.into(), cycles, fault }
        };
        let mut exclusions = Exclusions::default();
        assert_eq!(exclusions.decided(), None);
        assert!(exclusions.explained(1000, "matrix unit").contains("matrix unit: no size is better"));
        exclusions.add(excluded("a", 900, Rule::Memory, "3 bytes, expected at most 1"));
        exclusions.add(excluded("b", 950, Rule::Descriptors, "17 descriptors, expected at most 16"));
        exclusions.add(excluded("c", 990, Rule::Memory, "2 bytes, expected at most 1"));
        assert_eq!(exclusions.decided(), Some(Rule::Memory));
        assert_eq!(exclusions.next_of(Rule::Memory).expect("two exceed it").size, "c");
        let expected = "  decided by         memory: 2 better sizes exceed it; the next, c, 1.00 % faster: core has 2 bytes, expected at most 1\n  \
            also excludes      descriptors: 1 better size exceeds it; the next, b, 5.00 % faster: core has 17 descriptors, expected at most 16";
        assert_eq!(exclusions.explained(1000, "matrix unit"), expected);
    }
}
