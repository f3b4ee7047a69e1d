//! Gemma's calls as a grammar: `call:NAME{key:<mark>text<mark>,n:2}`, whose arguments match a JSON schema.
//!
//! Of a schema it takes types, properties and which of them are required, items, enumerations, constants and alternatives; anything
//! else of it leaves any value. Properties are written in the order of their names, as Gemma's chat templates write them.

use std::collections::BTreeMap;
use std::fmt::Write;

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

/// Deepest nesting of a schema that is followed; below it, a value is any.
const MAX_DEPTH: usize = 16;
/// Most rules; values behind these are any.
const MAX_RULES: usize = 2000;

/// What stands on both sides of a text.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) text: &'static str,
    /// The vocabulary has it as a special token.
    pub(crate) is_special: bool,
}

/// A call of one of `tools`, each a name and the schema of its arguments.
pub(crate) fn call_grammar(tools: &[(&str, &Value)], mark: Mark) -> TopLevelGrammar {
    let mut lark = Lark { rules: String::new(), count: 0, mark };
    let calls: Vec<String> = tools
        .iter()
        .map(|(name, schema)| {
            let arguments = lark.value(schema, schema, 0);
            // Arguments are an object, whatever the schema is.
            let arguments = if schema.get("properties").is_some() { arguments } else { "object".into() };
            lark.rule(&format!("{} {arguments}", literal(&format!("call:{name}"))))
        })
        .collect();
    // Names of keys and plain values have no mark of their own.
    let common = format!(
        "text: {}\nKEY: /[^\\s:,<>\\[\\]{{}}\"]+/\n\
         NUMBER: INTEGER /(\\.[0-9]{{1,20}})?([eE][+-]?[0-9]{{1,3}})?/\nINTEGER: /-?(0|[1-9][0-9]{{0,18}})/\n\
         object: \"{{\" (pair (\",\" pair)*)? \"}}\"\npair: KEY \":\" value\nlist: \"[\" (value (\",\" value)*)? \"]\"\n\
         value: text | NUMBER | \"true\" | \"false\" | \"null\" | object | list\n",
        mark.text_rule()
    );
    TopLevelGrammar::from_lark(format!("start: {}\n{}{common}", calls.join(" | "), lark.rules))
}

impl Mark {
    /// How the grammar writes it.
    fn written(self) -> String {
        if self.is_special { self.text.to_owned() } else { literal(self.text) }
    }

    /// The rule of a text between marks, and the rule that it refers to.
    fn text_rule(self) -> String {
        let mark = self.written();
        match self.is_special {
            true => format!("{mark} TEXT? {mark}\nTEXT: /(?s:.)+/"),
            false => format!("{mark} rest\nrest[lazy]: /(?s:.)*{}/", self.text.replace('|', "\\|")),
        }
    }
}

/// A text as a literal of the grammar.
fn literal(text: &str) -> String {
    json!(text).to_string()
}

struct Lark {
    rules: String,
    count: usize,
    mark: Mark,
}

impl Lark {
    /// Adds a rule and returns its name.
    fn rule(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("r{}", self.count);
        writeln!(self.rules, "{name}: {body}").expect("writing to a String");
        name
    }

    /// The rule of the values that `schema`, a part of `root`, describes.
    fn value(&mut self, schema: &Value, root: &Value, depth: usize) -> String {
        if depth > MAX_DEPTH || self.count > MAX_RULES {
            return "value".into();
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            let found = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            return found.map_or("value".into(), |found| self.value(found, root, depth + 1));
        }
        let constants = schema.get("enum").and_then(Value::as_array).cloned();
        let constants = constants.or_else(|| Some(vec![schema.get("const")?.clone()]));
        if let Some(constants) = constants.filter(|constants| !constants.is_empty()) {
            let written: Option<Vec<String>> = constants.iter().map(|value| self.constant(value)).collect();
            return written.map_or("value".into(), |written| self.rule(&written.join(" | ")));
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(found) = schema.get(name).and_then(Value::as_array).filter(|found| !found.is_empty()) {
                let kinds: Vec<String> = found.iter().map(|schema| self.value(schema, root, depth + 1)).collect();
                return self.rule(&kinds.join(" | "));
            }
        }
        match schema.get("type") {
            Some(Value::Array(kinds)) if !kinds.is_empty() => {
                let of_kind = |lark: &mut Self, kind: &Value| {
                    let mut one = schema.as_object().cloned().unwrap_or_default();
                    one.insert("type".into(), kind.clone());
                    lark.value(&Value::Object(one), root, depth + 1)
                };
                let kinds: Vec<String> = kinds.iter().map(|kind| of_kind(self, kind)).collect();
                self.rule(&kinds.join(" | "))
            }
            Some(Value::String(kind)) => self.of_type(kind, schema, root, depth),
            None if schema.get("properties").is_some() => self.of_type("object", schema, root, depth),
            _ => "value".into(),
        }
    }

    fn of_type(&mut self, kind: &str, schema: &Value, root: &Value, depth: usize) -> String {
        match kind {
            "string" => "text".into(),
            "integer" => "INTEGER".into(),
            "number" => "NUMBER".into(),
            "boolean" => self.rule("\"true\" | \"false\""),
            "null" => self.rule("\"null\""),
            "array" => match schema.get("items") {
                Some(items @ Value::Object(_)) => {
                    let item = self.value(items, root, depth + 1);
                    self.rule(&format!("\"[\" ({item} (\",\" {item})*)? \"]\""))
                }
                _ => "list".into(),
            },
            "object" => match schema.get("properties").and_then(Value::as_object) {
                Some(properties) => self.object(properties, schema, root, depth),
                None => "object".into(),
            },
            _ => "value".into(),
        }
    }

    /// An object of these properties, of which those that are not required may be left out.
    fn object(&mut self, properties: &Map<String, Value>, schema: &Value, root: &Value, depth: usize) -> String {
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|required| required == name));
        let sorted: BTreeMap<&String, &Value> = properties.iter().collect();
        // What may follow the properties before: nothing of the object yet, or a pair, behind which comes a comma.
        let (mut first, mut behind) = (self.rule("\"\""), self.rule("\"\""));
        for (name, schema) in sorted.into_iter().rev() {
            let value = self.value(schema, root, depth + 1);
            let pair = self.rule(&format!("{} {value}", literal(&format!("{name}:"))));
            let skipped = |rest: &str| if is_required(name) { String::new() } else { format!(" | {rest}") };
            let bodies =
                [format!("{pair} {behind}{}", skipped(&first)), format!("\",\" {pair} {behind}{}", skipped(&behind))];
            [first, behind] = bodies.map(|body| self.rule(&body));
        }
        self.rule(&format!("\"{{\" {first} \"}}\""))
    }
    /// A constant of a schema; `None`: a list or an object.
    fn constant(&self, value: &Value) -> Option<String> {
        match value {
            Value::String(text) => Some(format!("{0} {1} {0}", self.mark.written(), literal(text))),
            Value::Array(_) | Value::Object(_) => None,
            plain => Some(literal(&plain.to_string())),
        }
    }
}
