//! What a reply has to match, by the names of OpenAI, llama-server and vLLM.

use serde_json::{Map, Value, json};
use unicorn_structure::Structure;

use super::error::ApiError;
use super::fields::{BOOLEAN, Fields, unexpected};

const FORMAT: &str = "a type of text, json_object, or json_schema with a schema";
const SCHEMA: &str = "a JSON schema: an object, true or false, or its text";

/// What the reply has to match, and the parameter that gives it: one at most.
pub(super) fn structure(fields: &mut Fields) -> Result<Option<(&'static str, Structure)>, ApiError> {
    let mut found = Vec::new();
    let nested: Option<Map<String, Value>> = fields.take("structured_outputs", "an object")?;
    let mut nested = Fields(nested.unwrap_or_default());
    nested.accept_only("structural_tag", &Value::Null)?;
    if nested.take("json_object", BOOLEAN)?.unwrap_or(false) {
        found.push(("json_object", Structure::Schema(json!({"type": "object"}))));
    }
    let format = fields.take("response_format", FORMAT)?;
    found.extend(format.map(|format| response_format(&format)).transpose()?.flatten());
    for name in ["json_schema", "guided_json", "json"] {
        let schema: Option<Value> =
            if name == "json" { nested.take(name, SCHEMA)? } else { fields.take(name, SCHEMA)? };
        // llama-server's form of no schema.
        let schema = schema.filter(|schema| name != "json_schema" || *schema != json!({}));
        found.extend(schema.map(|schema| Ok((name, read_schema(name, schema)?))).transpose()?);
    }
    for (name, of) in [("guided_regex", &mut *fields), ("regex", &mut nested)] {
        let regex = of.take(name, "a regular expression")?;
        found.extend(regex.map(|regex| (name, Structure::Regex(regex))));
    }
    for (name, of) in [("guided_choice", &mut *fields), ("choice", &mut nested)] {
        let texts: Option<Vec<String>> = of.take(name, "a list of texts")?;
        if texts.as_ref().is_some_and(Vec::is_empty) {
            return Err(ApiError::parameter(name, "expected at least one text, found none"));
        }
        found.extend(texts.map(|texts| (name, Structure::Choice(texts))));
    }
    for name in ["grammar", "guided_grammar"] {
        let of_request: Option<String> = fields.take(name, "a grammar")?;
        let grammar = of_request.or(nested.take(name, "a grammar")?).filter(|grammar| !grammar.is_empty());
        found.extend(grammar.map(|grammar| Ok((name, read_grammar(name, grammar)?))).transpose()?);
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(ApiError::parameter(found[1].0, format!("expected one of it and {}", found[0].0))),
    }
}

fn response_format(format: &Value) -> Result<Option<(&'static str, Structure)>, ApiError> {
    const NAME: &str = "response_format";
    let schema = || format.pointer("/json_schema/schema").or(format.get("schema")).cloned();
    let schema = match format.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        Some("json_object") => schema().unwrap_or(json!({"type": "object"})),
        Some("json_schema") => schema().ok_or_else(|| unexpected(NAME, FORMAT, format))?,
        _ => return Err(unexpected(NAME, FORMAT, format)),
    };
    Ok(Some((NAME, read_schema(NAME, schema)?)))
}

fn read_schema(name: &str, schema: Value) -> Result<Structure, ApiError> {
    let structure = match &schema {
        Value::String(text) => Structure::from_schema_text(text),
        _ => Structure::from_schema(schema),
    };
    structure.map_err(|error| ApiError::parameter(name, error))
}

fn read_grammar(name: &str, grammar: String) -> Result<Structure, ApiError> {
    Structure::from_grammar(grammar).map_err(|error| ApiError::parameter(name, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Option<(&'static str, Structure)>, String> {
        structure(&mut Fields(body.as_object().unwrap().clone())).map_err(|error| error.message)
    }

    #[test]
    fn structures_have_names_of_three_servers() {
        let schema = json!({"type": "object", "required": ["a"]});
        let of_schema = |name| Ok(Some((name, Structure::Schema(schema.clone()))));
        assert_eq!(read(json!({"response_format": {"type": "text"}, "grammar": "", "json_schema": {}})), Ok(None));
        let object = read(json!({"response_format": {"type": "json_object"}}));
        assert_eq!(object, Ok(Some(("response_format", Structure::Schema(json!({"type": "object"}))))));
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
        assert_eq!(read(json!({"response_format": format})), of_schema("response_format"));
        assert_eq!(read(json!({"json_schema": schema})), of_schema("json_schema"));
        assert_eq!(read(json!({"guided_json": schema.to_string()})), of_schema("guided_json"));
        assert_eq!(read(json!({"structured_outputs": {"json": schema}})), of_schema("json"));
        assert_eq!(read(json!({"structured_outputs": {"json_object": false}})), Ok(None));
        let object = Structure::Schema(json!({"type": "object"}));
        assert_eq!(read(json!({"structured_outputs": {"json_object": true}})), Ok(Some(("json_object", object))));
        assert_eq!(read(json!({"guided_regex": "a+"})), Ok(Some(("guided_regex", Structure::Regex("a+".into())))));
        let choice = Structure::Choice(vec!["a".into(), "b".into()]);
        assert_eq!(read(json!({"structured_outputs": {"choice": ["a", "b"]}})), Ok(Some(("choice", choice))));
        assert_eq!(
            read(json!({"grammar": "root ::= \"a\""})),
            Ok(Some(("grammar", Structure::Lark("T0: /a/\nstart: T0\n".into()))))
        );
        assert!(matches!(read(json!({"guided_grammar": "start: \"a\""})), Ok(Some((_, Structure::Lark(_))))));
    }

    #[test]
    fn two_structures_or_none_of_a_kind_are_refused() {
        for (body, expected) in [
            (json!({"guided_regex": "a", "guided_choice": ["a"]}), "expected one of it and"),
            (json!({"structured_outputs": {"regex": "a", "json_object": true}}), "expected one of it and"),
            (json!({"structured_outputs": {"structural_tag": "{}"}}), "structural_tag: not supported here"),
            (json!({"guided_choice": []}), "at least one text"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format: expected a type"),
            (json!({"response_format": "json"}), "response_format: expected a type"),
            (json!({"grammar": "root ::= ["}), "grammar: line 1: expected a character of a class"),
            (json!({"guided_json": "{"}), "guided_json: expected a JSON schema"),
            (json!({"json_schema": 3}), "json_schema: expected a JSON schema"),
        ] {
            let message = read(body.clone()).unwrap_err();
            assert!(message.contains(expected), "{body}: {message}");
        }
    }
}
