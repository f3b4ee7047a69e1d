//! Texts that grammars and schemas permit, and such that they do not.

use serde_json::json;

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

fn assert_schema(schema: Value, matching: &[&str], others: &[&str]) {
    let structure = Structure::Schema(schema.clone());
    assert_eq!(permitted(&structure, &[matching, others].concat()), matching, "{schema}");
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

#[test]
fn a_negated_class_of_a_pattern_permits_no_escape_of_what_it_excludes() {
    let pattern = |pattern: &str| json!({"type": "string", "pattern": pattern});
    assert_schema(pattern(r#"^[^"]*$"#), &[r#""""#, r#""a\\b""#, r#""\n""#], &[r#""\"""#, r#""a\"b""#]);
    assert_schema(pattern(r"^[^\\]+$"), &[r#""\"""#, r#""\n""#], &[r#""\\""#, r#""""#]);
    assert_schema(pattern(r"^[^]a]$"), &[r#""b""#, r#""\"""#], &[r#""]""#, r#""a""#]);
    assert_schema(pattern(r"^\[\^[^a]$"), &[r#""[^b""#], &[r#""[^a""#]);
    let named =
        json!({"type": "object", "patternProperties": {"^[^\"]$": {"const": 1}}, "additionalProperties": false});
    assert_schema(named, &[r#"{"a": 1}"#, r#"{"\\": 1}"#], &[r#"{"\"": 1}"#]);
}

#[test]
fn keywords_without_effect_are_no_error() {
    let tags = json!({"type": "array", "items": {"const": 1}, "uniqueItems": false, "unevaluatedItems": true});
    assert_schema(tags, &["[]", "[1, 1]"], &["[2]"]);
    for names in [json!({"type": "string"}), json!(true), json!({})] {
        let record = json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}});
        assert_schema(record, &["{}", r#"{"a": 1}"#], &[r#"{"a": "b"}"#]);
    }
    // A property may have a keyword's name, and a constant any.
    let named = json!({"type": "object", "properties": {"propertyNames": {"const": {"uniqueItems": false}}},
        "required": ["propertyNames"], "additionalProperties": false});
    assert_schema(named, &[r#"{"propertyNames": {"uniqueItems": false}}"#], &["{}", r#"{"propertyNames": {}}"#]);
}

#[test]
fn a_format_that_json_schema_does_not_define_is_a_note() {
    let path = json!({"type": "string", "format": "directory-path", "maxLength": 3});
    assert_schema(path, &[r#""a/b""#], &[r#""a/bc""#]);
    assert_schema(json!({"type": "string", "format": "ipv4"}), &[r#""10.0.0.255""#], &[r#""10.0.0.256""#]);
}

#[test]
fn references_may_be_escaped() {
    let schema = json!({"$ref": "#/$defs/List%3CA~0B%3E", "$defs": {"List<A~B>": {"type": "integer"}}});
    assert_schema(schema, &["1"], &["\"\""]);
}

#[test]
fn what_cannot_be_kept_is_an_error_with_the_keyword() {
    for (schema, expected) in [
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "propertyNames": {"maxLength": 3}}), "propertyNames"),
        (json!({"type": "string", "format": "json-pointer"}), "json-pointer"),
        (json!({"enum": ["a", 9007199254740993i64]}), "9007199254740993"),
        (json!({"properties": {"a": {"const": 18446744073709551615u64}}}), "18446744073709551615"),
        (json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "nothing matches"),
    ] {
        let refused = Constraint::whole(vocabulary(), &Structure::Schema(schema.clone()), Start::at_once());
        let message = refused.map(|_| ()).unwrap_err().message;
        assert!(message.contains(expected) && !message.contains('\n'), "{schema}: {message}");
    }
    assert_schema(json!({"enum": [9007199254740992i64]}), &["9007199254740992"], &["9007199254740993"]);
}

#[test]
fn bounds_that_are_no_doubles_permit_nothing_beyond_them() {
    let bounded = json!({"type": "integer", "minimum": -9223372036854775807i64, "maximum": 9223372036854775807i64});
    let matching = ["9223372036854774784", "-9223372036854774784", "0"];
    assert_schema(bounded, &matching, &["9223372036854775808", "-9223372036854775808"]);
    let above = json!({"type": "integer", "exclusiveMinimum": 9007199254740993i64});
    assert_schema(above, &["9007199254740996"], &["9007199254740992", "9007199254740993"]);
}
