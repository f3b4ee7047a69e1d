//! Calls between tags as a grammar, with arguments that match a JSON schema: Qwen's, and GLM's, whose line breaks may be left out.
//!
//! ```text
//! <function=NAME>        NAME
//! <parameter=KEY>        <arg_key>KEY</arg_key>
//! VALUE                  <arg_value>VALUE</arg_value>
//! </parameter>           </tool_call>
//! </function>
//! </tool_call>
//! ```
//!
//! A value is JSON, except that a text stands there as it is, up to the first tag that ends a value. Where a schema has texts among other
//! values, any text may be written. Of a text, the schema's enumerations, constants and lengths count. Parameters come in any
//! order.

use llguidance::api::TopLevelGrammar;
use serde_json::Value;
use unicorn_text::admits_text;

use crate::grammar::bounded;
use crate::rules::{Rules, alternatives, constants, counts, is_required, literal, properties, referred, repeated};
use crate::schema_rules::Mark;

/// Most references and alternatives inside each other.
const MAX_DEPTH: usize = 16;
/// A line break that may be left out, and its rule.
const LINE: &str = "line?";
const LINE_RULE: &str = "line: \"\\n\"\n";

/// What stands around the parts of a call, as a grammar has it.
pub(crate) struct Tags {
    /// Before the name of a tool, and behind it.
    tool: [String; 2],
    /// Before the name of a parameter, and behind it.
    parameter: [String; 2],
    /// What ends a value.
    value_end: Mark,
    /// The end of a value is a line of its own.
    is_line: bool,
    /// What ends a call.
    end: String,
}

impl Tags {
    /// Qwen's, between lines. Only the `closer` of calls may be a special token.
    pub(crate) fn qwen(closer: Mark) -> Tags {
        Tags {
            tool: [literal("<function="), literal(">\n")],
            parameter: [literal("<parameter="), literal(">\n")],
            value_end: Mark { text: "</parameter>", is_special: false },
            is_line: true,
            end: format!("\"</function>\\n\" {}", closer.written()),
        }
    }

    /// GLM's, each of which may be a special token.
    pub(crate) fn glm(mark_of: impl Fn(&'static str) -> Mark) -> Tags {
        let written = |text| mark_of(text).written();
        Tags {
            tool: [String::new(), LINE.to_owned()],
            parameter: [written("<arg_key>"), format!("{} {LINE} {}", written("</arg_key>"), written("<arg_value>"))],
            value_end: mark_of("</arg_value>"),
            is_line: false,
            end: written("</tool_call>"),
        }
    }

    /// A text as it is, with the end of the value.
    fn ended(&self, text: &str) -> String {
        let Mark { text: tag, is_special } = self.value_end;
        match (self.is_line, is_special) {
            (true, _) => literal(&format!("{text}\n{tag}\n")),
            (false, false) => format!("{} {LINE}", literal(&format!("{text}{tag}"))),
            (false, true) => format!("{} {tag} {LINE}", literal(text)),
        }
    }

    /// The rule of a text, with its end, whose length `schema` may bound.
    fn text_rule(&self, rules: &mut Rules, schema: &Value) -> String {
        let lengths = counts(schema, "minLength", "maxLength");
        if self.value_end.is_special {
            let (least, most) = lengths.unwrap_or_default();
            let some = format!("/(?s:.){}/", repeated((least.max(1), most)));
            let text = if least == 0 { format!("({some})?") } else { some };
            return rules.rule(&format!("{text} {} {LINE}", self.value_end.text));
        }
        let length = lengths.map_or("*".to_owned(), repeated);
        let end = self.value_end.text.replace('/', "\\/");
        let (before, behind) = if self.is_line { ("\\n?", "\"\\n\"") } else { ("", LINE) };
        let mut text = format!("/(?s:.){length}{before}{end}/");
        if lengths.is_some_and(|(least, _)| least > 0) {
            // The end has to be the first one also where the text before is too short.
            text += &format!(" & ~/(?s:.)*{end}(?s:.)+/");
        }
        let text = rules.lazy_rule(&text);
        rules.rule(&format!("{text} {behind}"))
    }
}

/// A call of one of `tools`, each a name and the schema of its arguments, up to what ends it.
pub(crate) fn call_grammar(tools: &[(&str, &Value)], tags: &Tags) -> TopLevelGrammar {
    let mut rules = Rules::default();
    let text = tags.text_rule(&mut rules, &Value::Null);
    let around = |[before, behind]: &[String; 2], name: &str| format!("{before} {name} {behind}");
    let any = rules.rule(&format!("{} {text}", around(&tags.parameter, "/[^<>\\n]+/")));
    let mut calls = Vec::new();
    for (name, schema) in tools {
        let parameters = match properties(schema) {
            Some(properties) => {
                let mut parameters = Vec::new();
                // A name that would end its tag cannot be written.
                for (name, argument) in properties.iter().filter(|(name, _)| !name.contains(['<', '>', '\n'])) {
                    let value = value(&mut rules, (tags, &text), argument, schema, 0);
                    let parameter = rules.rule(&format!("{} {value}", around(&tags.parameter, &literal(name))));
                    parameters.push((parameter, is_required(schema, name)));
                }
                rules.any_order(parameters, "")
            }
            None => format!("{any}*"),
        };
        let head = around(&tags.tool, &literal(name));
        calls.push(rules.rule(&format!("{head} {parameters} {}", tags.end)));
    }
    rules.grammar(&calls, LINE_RULE)
}

/// The rule of an argument, with its end. `text`: the rule of any text.
fn value(rules: &mut Rules, (tags, text): (&Tags, &str), schema: &Value, root: &Value, depth: usize) -> String {
    if depth > MAX_DEPTH || rules.is_full() {
        return text.to_owned();
    }
    if let Some(target) = referred(schema, root) {
        return target.map_or(text.to_owned(), |target| value(rules, (tags, text), target, root, depth + 1));
    }
    if let Some(constants) = constants(schema) {
        let written = |value: &Value| match value {
            Value::String(text) => tags.ended(text),
            other => tags.ended(&other.to_string()),
        };
        let written: Vec<String> = constants.iter().map(written).collect();
        return rules.rule(&written.join(" | "));
    }
    if let Some(schemas) = alternatives(schema).filter(|_| admits_text(schema, root)) {
        let schemas: Vec<String> =
            schemas.iter().map(|schema| value(rules, (tags, text), schema, root, depth + 1)).collect();
        return if schemas.iter().any(|rule| rule == text) {
            text.to_owned()
        } else {
            rules.rule(&schemas.join(" | "))
        };
    }
    if admits_text(schema, root) {
        return match schema.get("type") {
            Some(Value::String(_)) if counts(schema, "minLength", "maxLength").is_some() => {
                tags.text_rule(rules, schema)
            }
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
    rules.rule(&format!("{json} {}", tags.ended("")))
}
