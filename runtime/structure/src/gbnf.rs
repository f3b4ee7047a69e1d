//! llama.cpp's grammars (GBNF) as llguidance's: rules that refer to themselves become rules, everything else regular expressions.
//!
//! ```text
//! text ──► parse: Rules ──► lexemes: LexemeGrammar ──► conflicts: none ──► Lark
//!                               ▲                          │
//!                               └── what is to be divided ◄┘
//! ```
//!
//! llguidance reads a text in lexemes, the longest first. A grammar without recursion is one regular expression, and one lexeme. In others,
//! a lexeme that could read characters which belong to what follows is divided, if need be into its characters, so that exactly the texts of
//! the grammar can be written.

mod class;
mod conflicts;
mod divided;
mod escape;
mod follow;
mod lexemes;
mod parse;
mod regex;
mod rules;
mod steps;

use std::collections::BTreeSet;

use self::divided::Divided;
pub(super) use self::escape::escaped;
use self::lexemes::LexemeGrammar;
use self::regex::RegexWriter;
use self::rules::{references, self_referring};
use self::steps::Steps;

/// Longest grammar.
const MAX_GRAMMAR_BYTES: usize = 64 << 10;

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
    let mut divided = Divided { rules: self_referring(&rules), nodes: BTreeSet::new() };
    divided.extend_to_users(&rules);
    let mut writer = RegexWriter::new(&rules);
    let mut steps = Steps::default();
    loop {
        let grammar = LexemeGrammar::of(&rules, &divided, &mut writer)?;
        let too_long = conflicts::lexemes_that_read_too_far(&grammar, &rules, &mut steps);
        if too_long.is_empty() {
            return grammar.lark();
        }
        too_long.into_iter().for_each(|lexeme| divided.divide(lexeme));
        divided.extend_to_users(&rules);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::rules::TOO_LARGE;
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
            "T0: /\\x{28}(?:\\x{20})*/",
            "T1: /(?:\\x{20})*/ & /(?s:.)+/",
            "T2: /\\x{29}/",
            "start: r1",
            "r0: T0 (r0 T1?)* T2",
            "r1: r0 T1?",
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
