//! Which characters may stand behind each lexeme of a grammar.

use std::collections::BTreeMap;

use super::class::CharacterSet;
use super::lexemes::{LexemeGrammar, Part};
use super::steps::Steps;

/// The characters that may follow each lexeme, by those that each begins with. `None`: that took too many steps to find out.
pub(super) fn following(
    grammar: &LexemeGrammar,
    begin_lexemes: &[CharacterSet],
    steps: &mut Steps,
) -> Option<Vec<CharacterSet>> {
    let mut beginnings = Beginnings { lexemes: begin_lexemes, rules: BTreeMap::new() };
    loop {
        let mut is_more = false;
        for (name, part) in &grammar.rules {
            let beginning = beginnings.of(part, steps)?;
            let known = beginnings.rules.entry(name).or_default();
            is_more |= known.characters.extend(&beginning.characters) || known.is_nullable != beginning.is_nullable;
            known.is_nullable |= beginning.is_nullable;
        }
        if !is_more {
            break;
        }
    }
    let mut behind = Behind {
        beginnings,
        lexemes: vec![CharacterSet::default(); grammar.lexemes.len()],
        rules: BTreeMap::new(),
        is_more: true,
    };
    while behind.is_more {
        behind.is_more = false;
        behind.spread(&grammar.start, &CharacterSet::default(), steps)?;
        for (name, part) in &grammar.rules {
            let after = behind.rules.get(name.as_str()).cloned().unwrap_or_default();
            behind.spread(part, &after, steps)?;
        }
    }
    Some(behind.lexemes)
}

/// The characters that the texts of a part begin with, and whether it may be empty.
#[derive(Clone, Default)]
struct Beginning {
    characters: CharacterSet,
    is_nullable: bool,
}

struct Beginnings<'g> {
    lexemes: &'g [CharacterSet],
    rules: BTreeMap<&'g str, Beginning>,
}

impl Beginnings<'_> {
    fn of(&self, part: &Part, steps: &mut Steps) -> Option<Beginning> {
        steps.take(1)?;
        let mut beginning = Beginning::default();
        match part {
            Part::Lexeme { number, is_optional } => {
                beginning = Beginning { characters: self.lexemes[*number].clone(), is_nullable: *is_optional };
            }
            Part::Empty => beginning.is_nullable = true,
            Part::Rule(name) => beginning = self.rules.get(name.as_str()).cloned().unwrap_or_default(),
            Part::Sequence(parts) => {
                beginning.is_nullable = true;
                for part in parts {
                    let next = self.of(part, steps)?;
                    beginning.characters.extend(&next.characters);
                    if !next.is_nullable {
                        beginning.is_nullable = false;
                        break;
                    }
                }
            }
            Part::Choice(parts) => {
                for part in parts {
                    let next = self.of(part, steps)?;
                    beginning.characters.extend(&next.characters);
                    beginning.is_nullable |= next.is_nullable;
                }
            }
            Part::Repeat(part, least, _) => {
                beginning = self.of(part, steps)?;
                beginning.is_nullable |= *least == 0;
            }
        }
        Some(beginning)
    }
}

struct Behind<'g> {
    beginnings: Beginnings<'g>,
    lexemes: Vec<CharacterSet>,
    rules: BTreeMap<&'g str, CharacterSet>,
    is_more: bool,
}

impl<'g> Behind<'g> {
    /// Adds `after`, which may follow `part`, to what may follow the parts that it ends with, and so on within it.
    fn spread(&mut self, part: &'g Part, after: &CharacterSet, steps: &mut Steps) -> Option<()> {
        steps.take(1)?;
        match part {
            Part::Lexeme { number, .. } => self.is_more |= self.lexemes[*number].extend(after),
            Part::Empty => {}
            Part::Rule(name) => self.is_more |= self.rules.entry(name).or_default().extend(after),
            Part::Sequence(parts) => {
                let mut after = after.clone();
                for part in parts.iter().rev() {
                    self.spread(part, &after, steps)?;
                    let mut beginning = self.beginnings.of(part, steps)?;
                    if beginning.is_nullable {
                        beginning.characters.extend(&after);
                    }
                    after = beginning.characters;
                }
            }
            Part::Choice(parts) => {
                for part in parts {
                    self.spread(part, after, steps)?;
                }
            }
            Part::Repeat(part, _, Some(1)) => self.spread(part, after, steps)?,
            Part::Repeat(part, ..) => {
                let mut after = after.clone();
                after.extend(&self.beginnings.of(part, steps)?.characters);
                self.spread(part, &after, steps)?;
            }
        }
        Some(())
    }
}
