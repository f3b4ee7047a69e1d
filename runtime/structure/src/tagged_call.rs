//! Calls in Qwen's tags as a grammar, with arguments that match a JSON schema:
//!
//! ```text
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! A value is JSON, except that a text stands there as it is, up to the first `</parameter>`. Where a schema has texts among other values,
//! any text may be written. Of a text, the schema's enumerations, constants and lengths count. Parameters come in the schema's order.

use llguidance::api::TopLevelGrammar;
use serde_json::Value;
use unicorn_text::admits_text;

use crate::grammar::bounded;
use crate::rules::{Rules, alternatives, constants, counts, is_required, literal, properties, referred, repeated};
use crate::schema_rules::Mark;

/// Most references and alternatives inside each other.
const MAX_DEPTH: usize = 16;
/// What ends a value that is not a text.
const END: &str = "\n</parameter>\n";

/// A call of one of `tools`, each a name and the schema of its arguments, up to the `closer` of calls.
pub(crate) fn call_grammar(tools: &[(&str, &Value)], closer: Mark) -> TopLevelGrammar {
    let mut rules = Rules::default();
    let text = text_rule(&mut rules, &Value::Null);
    let any = rules.rule(&format!("/<parameter=[^<>\\n]+>\\n/ {text}"));
    let mut calls = Vec::new();
    for (name, schema) in tools {
        let parameters = match properties(schema) {
            Some(properties) => {
                let mut parameters = Vec::new();
                // A name that would end its tag cannot be written.
                for (name, argument) in properties.iter().filter(|(name, _)| !name.contains(['<', '>', '\n'])) {
                    let value = value(&mut rules, &text, argument, schema, 0);
                    let parameter = rules.rule(&format!("{} {value}", literal(&format!("<parameter={name}>\n"))));
                    parameters.push((parameter, is_required(schema, name)));
                }
                rules.sequence(parameters, "")
            }
            None => format!("{any}*"),
        };
        let head = literal(&format!("<function={name}>\n"));
        calls.push(rules.rule(&format!("{head} {parameters} \"</function>\\n\" {}", closer.written())));
    }
    rules.grammar(&calls, "")
}

/// The rule of a text, with its end, whose length `schema` may bound.
fn text_rule(rules: &mut Rules, schema: &Value) -> String {
    let lengths = counts(schema, "minLength", "maxLength");
    let length = lengths.map_or("*".to_owned(), repeated);
    let mut text = format!("/(?s:.){length}\\n?<\\/parameter>/");
    if lengths.is_some_and(|(least, _)| least > 0) {
        // The end has to be the first one also where the text before is too short.
        text += " & ~/(?s:.)*<\\/parameter>(?s:.)+/";
    }
    let text = rules.lazy_rule(&text);
    rules.rule(&format!("{text} \"\\n\""))
}

/// The rule of an argument, with its end. `text`: the rule of any text.
fn value(rules: &mut Rules, text: &str, schema: &Value, root: &Value, depth: usize) -> String {
    if depth > MAX_DEPTH || rules.is_full() {
        return text.to_owned();
    }
    if let Some(target) = referred(schema, root) {
        return target.map_or(text.to_owned(), |target| value(rules, text, target, root, depth + 1));
    }
    if let Some(constants) = constants(schema) {
        let written = |value: &Value| match value {
            Value::String(text) => literal(&format!("{text}{END}")),
            other => literal(&format!("{other}{END}")),
        };
        let written: Vec<String> = constants.iter().map(written).collect();
        return rules.rule(&written.join(" | "));
    }
    if let Some(schemas) = alternatives(schema).filter(|_| admits_text(schema, root)) {
        let schemas: Vec<String> = schemas.iter().map(|schema| value(rules, text, schema, root, depth + 1)).collect();
        return if schemas.iter().any(|rule| rule == text) {
            text.to_owned()
        } else {
            rules.rule(&schemas.join(" | "))
        };
    }
    if admits_text(schema, root) {
        return match schema.get("type") {
            Some(Value::String(_)) if counts(schema, "minLength", "maxLength").is_some() => text_rule(rules, schema),
            _ => text.to_owned(),
        };
    }
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        for definitions in ["$defs", "definitions"] {
            if let Some(found) = root.get(definitions) {
                fields.insert(definitions.to_owned(), found.clone());
            }
        }
    }
    let json = rules.rule(&format!("%json {}", bounded(&schema)));
    rules.rule(&format!("{json} {}", literal(END)))
}
