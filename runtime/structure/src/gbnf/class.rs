//! One character of several: a class as it is written, and as a set.

use super::escape::escaped;

/// A class of characters: those of its ranges, or all others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class {
    pub(super) ranges: Vec<(char, char)>,
    pub(super) is_negated: bool,
}

impl Class {
    /// Every character.
    pub(super) fn any() -> Class {
        Class { ranges: Vec::new(), is_negated: true }
    }

    /// The class as a regular expression.
    pub(super) fn regex(&self) -> String {
        if self.ranges.is_empty() {
            return "(?s:.)".to_owned();
        }
        let ranges = self.ranges.iter().map(|&(first, last)| match first == last {
            true => escaped(first),
            false => format!("{}-{}", escaped(first), escaped(last)),
        });
        format!("[{}{}]", if self.is_negated { "^" } else { "" }, ranges.collect::<String>())
    }

    pub(super) fn set(&self) -> CharacterSet {
        let ranges = self.ranges.iter().map(|&(first, last)| (u32::from(first), u32::from(last)));
        let set = CharacterSet::of(ranges.collect());
        if self.is_negated { set.complement() } else { set }
    }
}

/// Numbers of characters, as ranges in their order that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CharacterSet(Vec<(u32, u32)>);

impl CharacterSet {
    fn of(mut ranges: Vec<(u32, u32)>) -> CharacterSet {
        ranges.sort_unstable();
        let mut set: Vec<(u32, u32)> = Vec::new();
        for (first, last) in ranges {
            match set.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => set.push((first, last)),
            }
        }
        CharacterSet(set)
    }

    pub(super) fn one(character: char) -> CharacterSet {
        CharacterSet(vec![(u32::from(character), u32::from(character))])
    }

    fn complement(&self) -> CharacterSet {
        let mut next = 0;
        let mut others = Vec::new();
        for &(first, last) in &self.0 {
            if next < first {
                others.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= u32::from(char::MAX) {
            others.push((next, u32::from(char::MAX)));
        }
        CharacterSet(others)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the characters of `other`, and returns whether it had some that were not there.
    pub(super) fn extend(&mut self, other: &CharacterSet) -> bool {
        let joined = CharacterSet::of([&self.0[..], &other.0[..]].concat());
        let is_more = joined != *self;
        *self = joined;
        is_more
    }

    pub(super) fn intersects(&self, other: &CharacterSet) -> bool {
        let (mut own, mut others) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(&&(first, last)), Some(&&(other_first, other_last))) = (own.peek(), others.peek()) {
            if first <= other_last && other_first <= last {
                return true;
            }
            if last < other_last {
                own.next()
            } else {
                others.next()
            };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_a_set_of_characters() {
        let class = |ranges: &[(char, char)], is_negated| Class { ranges: ranges.to_vec(), is_negated };
        let set = |ranges: &[(char, char)], is_negated| class(ranges, is_negated).set();
        assert_eq!(set(&[('c', 'e'), ('a', 'b'), ('d', 'f')], false), CharacterSet(vec![(97, 102)]));
        assert_eq!(set(&[('b', 'b')], true), CharacterSet(vec![(0, 97), (99, 0x10_FFFF)]));
        assert_eq!(Class::any().set(), CharacterSet(vec![(0, 0x10_FFFF)]));
        assert!(set(&[('a', 'a'), ('x', 'z')], false).intersects(&set(&[('m', 'x')], false)));
        assert!(!set(&[('a', 'a'), ('x', 'z')], false).intersects(&set(&[('b', 'w')], false)));
        let mut letters = CharacterSet::one('a');
        assert!(letters.extend(&CharacterSet::one('b')) && !letters.extend(&CharacterSet::one('a')));
        assert_eq!(letters, CharacterSet(vec![(97, 98)]));
        assert_eq!(class(&[('a', 'c'), (']', ']')], true).regex(), "[^a-c\\x{5D}]");
    }
}
