//! What a reply has to match, as a grammar of llguidance.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::gbnf;
use crate::api::error::ApiError;

/// What a reply has to match.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Structure {
    /// JSON that a schema describes.
    Schema(Value),
    /// A regular expression.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// llguidance's, which are like Lark's.
    Lark(String),
}

/// White space between the parts of JSON: a space, or a line break and what indents the next line. Without a bound, a model may write
/// nothing else.
const WHITE_SPACE: &str = r"(\x20|\x0A[\x20\x09]{0,20})";

impl Structure {
    /// llama.cpp's form of a grammar, GBNF.
    ///
    /// # Errors
    /// For what is none; `parameter` has it.
    pub(crate) fn of_gbnf(parameter: &str, text: &str) -> Result<Structure, ApiError> {
        gbnf::to_lark(text).map(Structure::Lark).map_err(|error| ApiError::parameter(parameter, error))
    }

    /// The grammar of whole replies.
    pub(super) fn grammar(&self) -> TopLevelGrammar {
        match self {
            Structure::Schema(schema) => TopLevelGrammar::from_json_schema(bounded(schema)),
            Structure::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Structure::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
            }
            Structure::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        }
    }
}

/// A call `{"name": …, KEY: {…}}` of one of `tools`, each a name and the schema of its arguments.
pub(super) fn call_grammar(tools: &[(&str, &Value)], key: &str) -> TopLevelGrammar {
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

/// The schema with a bound on white space, unless it has its own options.
fn bounded(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("x-guidance").or_insert_with(|| json!({"whitespace_pattern": WHITE_SPACE}));
    }
    schema
}
