//! Texts that grammars and schemas permit, and such that they do not.

use super::tests::{accepts, vocabulary};
use super::*;

/// Which of the texts can be written as whole replies.
fn permitted<'t>(structure: &Structure, texts: &[&'t str]) -> Vec<&'t str> {
    let constraint =
        Constraint::whole(vocabulary(), structure, Start::at_once()).map_err(|error| error.message).unwrap();
    texts.iter().copied().filter(|text| accepts(constraint.clone(), text, true)).collect()
}

fn assert_grammar(grammar: &str, matching: &[&str], others: &[&str]) {
    let structure = Structure::from_grammar(grammar.to_owned()).unwrap();
    assert_eq!(permitted(&structure, &[matching, others].concat()), matching, "{grammar}");
}

#[test]
fn white_space_that_may_end_a_number_may_also_follow_it() {
    let grammar = r#"
        root ::= (sum "=" ws number "\n")+
        sum ::= product (("+" | "-") ws product)*
        product ::= number | "(" ws sum ")" ws
        number ::= [0-9]+ ws
        ws ::= [ \n]*
    "#;
    let matching = ["1=2\n", "1 + 2 = 3 \n", "(1)=1\n(2 -3) = 1\n\n", "1\n=\n2\n"];
    assert_grammar(grammar, &matching, &["1=2", "1=\n", "1 2=3\n", "(1=1\n"]);
}

#[test]
fn a_name_may_be_a_call_or_a_word_of_the_language() {
    let grammar = r#"
        root ::= statement+
        statement ::= "do " call ";" | "done;" | call ";"
        call ::= name | name " "? "(" call? ")"
        name ::= [a-z]+
    "#;
    let matching = ["do x;", "done;", "doner(do);", "do ne (x(y ()));done;", "do;", "d;dod();"];
    assert_grammar(grammar, &matching, &["do x y;", "x ;", "do  x;", "done", "x(;"]);
}

#[test]
fn a_text_may_end_with_what_it_may_also_contain() {
    // Palindromes of a and b around a centre, which both alternatives of a literal begin like.
    let grammar = "root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"ab\" | \"aba\"";
    assert_grammar(grammar, &["ab", "aba", "aaba", "babb", "aabaa", "babab"], &["a", "abb", "aab", "baba"]);
}

#[test]
fn repetitions_by_rules_and_by_lexemes_count_alike() {
    let grammar = "root ::= pair{2,3} \"x\"{0,2500}\npair ::= \"(\" pair? \")\" | \"x\"";
    assert_grammar(grammar, &["()x", "xx", "xxx", "(())()(x)", "xxxx"], &["x", "()", "()()()()"]);
}

#[test]
fn a_choice_may_have_many_texts() {
    let texts: Vec<String> = (0..3000).map(|number| format!("choice {number}")).chain(["".to_owned()]).collect();
    let structure = Structure::Choice(texts);
    assert_eq!(permitted(&structure, &["choice 2999", "choice 3", "", "choice", "3"]), ["choice 2999", "choice 3", ""]);
    let marks = ["\n", "/", "\"\\d\"", "a|b", "\u{1}", "é"].map(str::to_owned).to_vec();
    assert_eq!(permitted(&Structure::Choice(marks), &["\n", "/", "\"\\d\"", "a|b", "a", "1"]).len(), 4);
}
