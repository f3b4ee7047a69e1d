//! Values that a JSON schema describes, as rules of a grammar, in notations that are not JSON: Gemma's and Python's.
//!
//! Of a schema they take types, properties and which of them are required, items, enumerations, constants, alternatives, bounds of numbers
//! and numbers of items, and in Python lengths of texts; anything else of it leaves any value.

use serde_json::{Map, Value, json};

use crate::rules::{Rules, alternatives, constants, counts, is_required, literal, properties, referred, repeated};

/// Deepest nesting of a schema that is followed; below it, a value is any.
const MAX_DEPTH: usize = 16;
/// What bounds a number.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// Numbers are those of JSON; 18 digits fit into 64 bits.
const NUMBERS: &str = "NUMBER: INTEGER /(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?/\nINTEGER: /-?(0|[1-9][0-9]{0,17})/\n";
/// A character between Python's double quotes, or single quotes.
const PYTHON_DOUBLE: &str = r#"([^"\\\x00-\x1f\x7f]|ESCAPE)"#;
const PYTHON_SINGLE: &str = r"([^'\\\x00-\x1f\x7f]|ESCAPE)";
/// Python's escapes, of which no two make one character.
const PYTHON_ESCAPE: &str =
    r#"\\(["'\\abfnrtv]|x[0-9A-Fa-f]{2}|u([0-9A-CEFa-cef][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}))"#;

/// What stands on both sides of a text, or behind a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) text: &'static str,
    /// The vocabulary has it as a special token.
    pub(crate) is_special: bool,
}

/// How values are written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notation {
    /// `{key:<mark>text<mark>,n:[1,true,null]}`, with keys in the order of their names, as Gemma's chat templates write them.
    Gemma(Mark),
    /// `{"key": "text", "n": [1, True, None]}`, with keys in the schema's order.
    Python,
    /// The same, where JSON's `true`, `false` and `null` may take the place of Python's words.
    PythonOrJson,
}

impl Mark {
    /// How the grammar writes it.
    pub(crate) fn written(self) -> String {
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

impl Notation {
    /// Rules that those of values refer to.
    pub(crate) fn common(self) -> String {
        let [yes, no, none] = [Value::Bool(true), Value::Bool(false), Value::Null].map(|value| self.word(&value));
        let (text, key) = match self {
            Notation::Gemma(mark) => (mark.text_rule(), "KEY: /[^\\s:,<>\\[\\]{}\"]+/\npair: KEY \":\" value\n"),
            Notation::Python | Notation::PythonOrJson => (python_text((0, None)), "pair: text /: ?/ value\n"),
        };
        let comma = self.separator();
        format!(
            "text: {text}\n{NUMBERS}{key}object: \"{{\" (pair ({comma} pair)*)? \"}}\"\n\
             list: \"[\" (value ({comma} value)*)? \"]\"\n\
             value: text | NUMBER | {yes} | {no} | {none} | object | list\n"
        )
    }

    /// What stands between two values.
    pub(crate) fn separator(self) -> &'static str {
        match self {
            Notation::Gemma(_) => "\",\"",
            Notation::Python | Notation::PythonOrJson => "/, ?/",
        }
    }

    /// What is neither text, list nor object.
    fn word(self, value: &Value) -> String {
        let json = literal(&value.to_string());
        let python = match value {
            Value::Bool(true) => literal("True"),
            Value::Bool(false) => literal("False"),
            Value::Null => literal("None"),
            _ => return json,
        };
        match self {
            Notation::Gemma(_) => json,
            Notation::Python => python,
            Notation::PythonOrJson => format!("({python} | {json})"),
        }
    }

    /// A constant of a schema; `None`: a list or an object.
    fn constant(self, value: &Value) -> Option<String> {
        match (self, value) {
            (_, Value::Array(_) | Value::Object(_)) => None,
            (Notation::Gemma(mark), Value::String(text)) => Some(format!("{0} {1} {0}", mark.written(), literal(text))),
            (_, Value::String(text)) => Some(python_literal(text)),
            (_, plain) => Some(self.word(plain)),
        }
    }

    /// What stands before the value of a property.
    fn key(self, name: &str) -> String {
        match self {
            Notation::Gemma(_) => literal(&format!("{name}:")),
            Notation::Python | Notation::PythonOrJson => format!("({}) /: ?/", python_literal(name)),
        }
    }
}

/// This text of Python, in double or single quotes. Every escape of JSON is one of Python.
fn python_literal(text: &str) -> String {
    let double = json!(text).to_string();
    let single = double[1..double.len() - 1].replace("\\\"", "\"").replace('\'', "\\'");
    format!("{} | {}", literal(&double), literal(&format!("'{single}'")))
}

/// A text of Python of this many characters.
fn python_text(count: (u64, Option<u64>)) -> String {
    let of = |quote: char, character: &str| {
        format!("/{quote}{}{}{quote}/", character.replace("ESCAPE", PYTHON_ESCAPE), repeated(count))
    };
    format!("{} | {}", of('"', PYTHON_DOUBLE), of('\'', PYTHON_SINGLE))
}

/// Rules of values in one notation.
pub(crate) struct SchemaRules {
    pub(crate) rules: Rules,
    notation: Notation,
}

impl SchemaRules {
    pub(crate) fn new(notation: Notation) -> SchemaRules {
        SchemaRules { rules: Rules::default(), notation }
    }

    /// The rule of the values that `schema`, a part of `root`, describes.
    pub(crate) fn value(&mut self, schema: &Value, root: &Value, depth: usize) -> String {
        if depth > MAX_DEPTH || self.rules.is_full() {
            return "value".into();
        }
        if let Some(target) = referred(schema, root) {
            return target.map_or("value".into(), |target| self.value(target, root, depth + 1));
        }
        if let Some(constants) = constants(schema) {
            let written: Option<Vec<String>> = constants.iter().map(|value| self.notation.constant(value)).collect();
            return written.map_or("value".into(), |written| self.rules.rule(&written.join(" | ")));
        }
        if let Some(schemas) = alternatives(schema) {
            let kinds: Vec<String> = schemas.iter().map(|schema| self.value(schema, root, depth + 1)).collect();
            return self.rules.rule(&kinds.join(" | "));
        }
        match schema.get("type") {
            Some(Value::Array(kinds)) if !kinds.is_empty() => {
                let of_kind = |rules: &mut Self, kind: &Value| {
                    let mut one = schema.as_object().cloned().unwrap_or_default();
                    one.insert("type".into(), kind.clone());
                    rules.value(&Value::Object(one), root, depth + 1)
                };
                let kinds: Vec<String> = kinds.iter().map(|kind| of_kind(self, kind)).collect();
                self.rules.rule(&kinds.join(" | "))
            }
            Some(Value::String(kind)) => self.of_type(kind, schema, root, depth),
            None if schema.get("properties").is_some() => self.of_type("object", schema, root, depth),
            _ => "value".into(),
        }
    }

    fn of_type(&mut self, kind: &str, schema: &Value, root: &Value, depth: usize) -> String {
        match kind {
            "string" => match (self.notation, counts(schema, "minLength", "maxLength")) {
                (Notation::Python | Notation::PythonOrJson, Some(count)) => self.rules.rule(&python_text(count)),
                _ => "text".into(),
            },
            "integer" | "number" => self.number(kind, schema),
            "boolean" => {
                let words = [true, false].map(|value| self.notation.word(&value.into()));
                self.rules.rule(&words.join(" | "))
            }
            "null" => self.rules.rule(&self.notation.word(&Value::Null)),
            "array" => match schema.get("items") {
                Some(items @ Value::Object(_)) => {
                    let item = self.value(items, root, depth + 1);
                    self.list(&item, schema)
                }
                _ => self.list("value", schema),
            },
            "object" => match properties(schema) {
                Some(properties) => {
                    let notation = self.notation;
                    let members = self.members(properties, schema, (root, depth), &|name| Some(notation.key(name)));
                    self.rules.rule(&format!("\"{{\" {members} \"}}\""))
                }
                None => "object".into(),
            },
            _ => "value".into(),
        }
    }

    fn number(&mut self, kind: &str, schema: &Value) -> String {
        let bounds = BOUNDS.iter().filter_map(|name| Some(((*name).to_owned(), schema.get(name)?.clone())));
        let mut bounded: Map<String, Value> = bounds.filter(|(_, bound)| bound.is_number()).collect();
        if bounded.is_empty() {
            return kind.replace("integer", "INTEGER").replace("number", "NUMBER");
        }
        bounded.insert("type".into(), kind.into());
        self.rules.rule(&format!("%json {}", Value::Object(bounded)))
    }

    fn list(&mut self, item: &str, schema: &Value) -> String {
        let separator = self.notation.separator();
        let body = match counts(schema, "minItems", "maxItems") {
            None => format!("({item} ({separator} {item})*)?"),
            Some((_, Some(0))) => "\"\"".to_owned(),
            Some((least, most)) => {
                let further = repeated((least.saturating_sub(1), most.map(|most| most - 1)));
                let some = format!("{item} ({separator} {item}){further}");
                if least == 0 { format!("({some})?") } else { some }
            }
        };
        self.rules.rule(&format!("\"[\" {body} \"]\""))
    }

    /// The rule of properties, each once at most, of which those that are not required may be left out. `key` is what stands before the
    /// value of a property; `None`: it cannot be written.
    pub(crate) fn members(
        &mut self,
        properties: &Map<String, Value>,
        schema: &Value,
        (root, depth): (&Value, usize),
        key: &dyn Fn(&str) -> Option<String>,
    ) -> String {
        let mut ordered: Vec<(&String, &Value)> = properties.iter().collect();
        if matches!(self.notation, Notation::Gemma(_)) {
            ordered.sort_by_key(|(name, _)| *name);
        }
        let mut pairs = Vec::new();
        for (name, property) in ordered {
            let Some(key) = key(name) else { continue };
            let value = self.value(property, root, depth + 1);
            pairs.push((self.rules.rule(&format!("{key} {value}")), is_required(schema, name)));
        }
        // A value within arguments has its keys in order.
        match (self.notation, depth) {
            (Notation::Python | Notation::PythonOrJson, 0) => self.rules.any_order(pairs, self.notation.separator()),
            (notation, _) => self.rules.sequence(pairs, notation.separator()),
        }
    }
}
