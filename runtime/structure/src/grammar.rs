//! What a reply has to match, as a grammar of llguidance.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::error::StructureError;
use crate::gbnf;
use crate::schema;

/// What a reply has to match.
#[derive(Clone, Debug, PartialEq)]
pub enum Structure {
    /// JSON that a schema describes.
    Schema(Value),
    /// A regular expression.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// llguidance's form of a grammar, which is like Lark's.
    Lark(String),
}

/// Description of a schema in error messages.
const SCHEMA: &str = "a JSON schema: an object, true or false";

/// White space between the parts of JSON: a space, or a line break and what indents the next line. Without a bound, a model may write
/// nothing else.
const WHITE_SPACE: &str = r"(\x20|\x0A[\x20\x09]{0,20})";

impl Structure {
    /// Any JSON object.
    pub fn any_object() -> Structure {
        Structure::Schema(any_object())
    }

    /// JSON that matches `schema`.
    ///
    /// # Errors
    /// For JSON that cannot be a schema: a number, a string, a list, null.
    pub fn from_schema(schema: Value) -> Result<Structure, StructureError> {
        match schema {
            Value::Object(_) | Value::Bool(_) => Ok(Structure::Schema(schema)),
            other => Err(StructureError::new(format!("expected {SCHEMA}, found {other}"))),
        }
    }

    /// The same, of a schema's text.
    ///
    /// # Errors
    /// When it is not JSON, and those of [`Structure::from_schema`].
    pub fn from_schema_text(text: &str) -> Result<Structure, StructureError> {
        let schema = serde_json::from_str(text);
        Structure::from_schema(schema.map_err(|error| StructureError::new(format!("expected {SCHEMA}: {error}")))?)
    }

    /// What a grammar describes: llama.cpp's GBNF, which defines rules by `::=`, or llguidance's form of Lark, which does not.
    ///
    /// # Errors
    /// For a text with `::=` that is not GBNF. Lark is checked when a [`Constraint`](crate::Constraint) is made.
    pub fn from_grammar(text: String) -> Result<Structure, StructureError> {
        match text.contains("::=") {
            true => gbnf::to_lark(&text).map(Structure::Lark).map_err(StructureError::new),
            false => Ok(Structure::Lark(text)),
        }
    }

    /// # Errors
    /// For a schema that cannot be kept.
    pub(crate) fn check(&self) -> Result<(), StructureError> {
        match self {
            Structure::Schema(schema) => schema::check(schema),
            _ => Ok(()),
        }
    }

    /// The grammar of whole replies.
    pub(crate) fn grammar(&self) -> TopLevelGrammar {
        match self {
            Structure::Schema(schema) => TopLevelGrammar::from_json_schema(bounded(schema)),
            Structure::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Structure::Choice(texts) => {
                // One lexeme, which cannot be empty, since only 2000 of them may be possible at a place.
                let is_optional = texts.iter().any(String::is_empty);
                let filled = texts.iter().filter(|text| !text.is_empty());
                let filled: Vec<String> = filled.map(|text| text.chars().map(gbnf::escaped).collect()).collect();
                TopLevelGrammar::from_lark(match filled.is_empty() {
                    true => "start: \"\"".to_owned(),
                    false => format!("start: TEXT{}\nTEXT: /{}/", if is_optional { "?" } else { "" }, filled.join("|")),
                })
            }
            Structure::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        }
    }
}

/// A call `{"name": …, KEY: {…}}` of one of `tools`, each a name and the schema of its arguments.
pub(crate) fn call_grammar(tools: &[(&str, &Value)], key: &str) -> TopLevelGrammar {
    let numbered = || tools.iter().enumerate();
    let calls: Vec<String> = numbered().map(|(number, _)| format!("call_{number}")).collect();
    let mut lark = format!("start: {}\n", calls.join(" | "));
    for (number, (name, schema)) in numbered() {
        let head = format!("{{\"name\": {}, \"{key}\": ", json!(name));
        lark += &format!("call_{number}: {} arguments_{number} \"}}\"\n", json!(head));
        lark += &format!("arguments_{number}: %json {}\n", bounded(schema));
    }
    TopLevelGrammar::from_lark(lark)
}

/// A structure of JSON, or a call `{"name": …, KEY: {…}}` of one of `tools` in its place, each a name and the schema of its arguments.
///
/// # Errors
/// For a structure that is no JSON, and a schema that refers to itself by its place.
pub(crate) fn with_calls(
    structure: &Structure,
    tools: &[(String, Value)],
    key: &str,
) -> Result<Structure, StructureError> {
    let Structure::Schema(answer) = structure else {
        return Err(StructureError::new(
            "expected a JSON schema beside tools, since calls of this model are JSON without a mark; found another structure",
        ));
    };
    let refers_elsewhere = |schema: &Value| {
        let text = schema.to_string();
        let n_known =
            DEFINITIONS.iter().map(|name| text.matches(&format!("\"$ref\":\"#/{name}/")).count()).sum::<usize>();
        text.matches("\"$ref\":").count() > n_known
    };
    if refers_elsewhere(answer) {
        return Err(StructureError::new(
            "expected each $ref beside tools to be one of #/$defs/ or #/definitions/, since calls of this model are JSON without a mark",
        ));
    }
    let mut answer = answer.clone();
    let mut whole = json!({});
    for name in DEFINITIONS {
        if let Some(definitions) = answer.as_object_mut().and_then(|fields| fields.remove(name)) {
            whole[name] = definitions;
        }
    }
    let call = |(name, schema): &(String, Value)| {
        // Its definitions could have the names of others.
        let schema = if schema.to_string().contains("\"$ref\":") { any_object() } else { schema.clone() };
        json!({
            "type": "object", "properties": {"name": {"const": name}, key: schema}, "required": ["name", key],
            "additionalProperties": false,
        })
    };
    whole["anyOf"] = tools.iter().map(call).chain([answer]).collect();
    Ok(Structure::Schema(whole))
}

/// Where schemas keep what they refer to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The schema of any JSON object.
pub(crate) fn any_object() -> Value {
    json!({"type": "object"})
}

/// The schema as llguidance reads it, with a bound on white space, unless it has its own options.
pub(crate) fn bounded(schema: &Value) -> Value {
    let mut schema = schema::prepared(schema);
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("x-guidance").or_insert_with(|| json!({"whitespace_pattern": WHITE_SPACE}));
    }
    schema
}
