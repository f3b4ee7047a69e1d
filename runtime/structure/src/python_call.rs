//! Calls as Python writes them, as a grammar: `[NAME(key="text", n=2), …]`, whose arguments match JSON schemas.

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use crate::rules::{literal, properties};
use crate::schema_rules::{Notation, SchemaRules};

/// A list of calls of `tools`, each a name and the schema of its arguments, and what closes it. `is_only`: of one call.
pub(crate) fn calls_grammar(
    tools: &[(&str, &Value)],
    notation: Notation,
    is_only: bool,
    closing: &str,
) -> TopLevelGrammar {
    grammar(tools, notation, &|call| {
        let further = if is_only { String::new() } else { format!("({} {call})*", notation.separator()) };
        format!("\"[\" {call} {further} \"]\" {closing}")
    })
}

/// One of these calls, and what closes it.
pub(crate) fn call_grammar(tools: &[(&str, &Value)], notation: Notation, closing: &str) -> TopLevelGrammar {
    grammar(tools, notation, &|call| format!("{call} {closing}"))
}

/// What `listed` makes of the rule of a call.
fn grammar(tools: &[(&str, &Value)], notation: Notation, listed: &dyn Fn(&str) -> String) -> TopLevelGrammar {
    let mut values = SchemaRules::new(notation);
    let mut calls = Vec::new();
    for (name, schema) in tools {
        let arguments = match properties(schema) {
            Some(properties) => {
                let key = |name: &str| is_name(name).then(|| literal(&format!("{name}=")));
                values.members(properties, schema, (schema, 0), &key)
            }
            None => "any_arguments".into(),
        };
        calls.push(values.rules.rule(&format!("{} {arguments} \")\"", literal(&format!("{name}(")))));
    }
    let call = values.rules.rule(&calls.join(" | "));
    let list = values.rules.rule(&listed(&call));
    let comma = notation.separator();
    let common = format!(
        "{}any_arguments: (argument ({comma} argument)*)?\nargument: /[A-Za-z_][A-Za-z0-9_]*=/ value\n",
        notation.common()
    );
    values.rules.grammar(&[list], &common)
}

/// Whether Python, and what reads the call, take it as the name of a parameter.
fn is_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphabetic() || letter == '_';
    name.starts_with(is_letter) && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}
