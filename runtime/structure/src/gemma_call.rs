//! Gemma's calls as a grammar: `call:NAME{key:<mark>text<mark>,n:2}`, whose arguments match a JSON schema.

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use crate::rules::literal;
use crate::schema_rules::{Mark, Notation, SchemaRules};

/// A call of one of `tools`, each a name and the schema of its arguments, and what closes it.
pub(crate) fn call_grammar(tools: &[(&str, &Value)], mark: Mark, closing: &str) -> TopLevelGrammar {
    let notation = Notation::Gemma(mark);
    let mut values = SchemaRules::new(notation);
    let mut calls = Vec::new();
    for (name, schema) in tools {
        let arguments = values.value(schema, schema, 0);
        // Arguments are an object, whatever the schema is.
        let arguments = if schema.get("properties").is_some() { arguments } else { "object".into() };
        calls.push(values.rules.rule(&format!("{} {arguments} {closing}", literal(&format!("call:{name}")))));
    }
    values.rules.grammar(&calls, &notation.common())
}
