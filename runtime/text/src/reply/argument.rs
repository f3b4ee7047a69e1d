//! An argument that is written without quotes, as Qwen's tags have it: its tool's schema tells a text `5` from a number.

use serde_json::{Map, Value};

/// Most references and alternatives inside each other; a schema below these may describe any value.
const MAX_DEPTH: usize = 16;

/// JSON types, a bit each. Integers are numbers.
type Types = u8;
const NULL: Types = 1;
const BOOLEAN: Types = 1 << 1;
const NUMBER: Types = 1 << 2;
const TEXT: Types = 1 << 3;
const ARRAY: Types = 1 << 4;
const OBJECT: Types = 1 << 5;
const ALL: Types = (1 << 6) - 1;

/// Whether `schema`, a part of the schema `root`, describes a text among its values. Then an argument without quotes may be any text; of
/// other schemas, it is JSON.
pub fn admits_text(schema: &Value, root: &Value) -> bool {
    types(schema, root, 0) & TEXT != 0
}

/// The value that `text` stands for as the argument `name` of a tool whose arguments `schema` describes: JSON where its type is one that
/// the argument may have, and else the text itself. Python's `True`, `False` and `None`, which chat templates write, count as JSON.
pub(super) fn raw_argument(text: &str, name: &str, schema: &Value) -> Value {
    let any = Value::Bool(true);
    let argument = schema.get("properties").and_then(|properties| properties.get(name)).unwrap_or(&any);
    let is_enumerated =
        argument.get("enum").and_then(Value::as_array).is_some_and(|values| values.contains(&text.into()));
    if is_enumerated {
        return text.into();
    }
    let value = match text.trim() {
        "True" => Some(true.into()),
        "False" => Some(false.into()),
        "None" => Some(Value::Null),
        json => serde_json::from_str(json).ok(),
    };
    let admitted = types(argument, schema, 0) & !TEXT;
    value.filter(|value| type_of(value) & admitted != 0).unwrap_or_else(|| text.into())
}

fn type_of(value: &Value) -> Types {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(_) => NUMBER,
        Value::String(_) => TEXT,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

fn named(name: &Value) -> Types {
    match name.as_str() {
        Some("null") => NULL,
        Some("boolean") => BOOLEAN,
        Some("number" | "integer") => NUMBER,
        Some("string") => TEXT,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => ALL,
    }
}

/// Types that the values of `schema`, a part of `root`, may have.
fn types(schema: &Value, root: &Value, depth: usize) -> Types {
    let Some(fields) = schema.as_object().filter(|_| depth < MAX_DEPTH) else { return ALL };
    fields.keys().fold(ALL, |admitted, keyword| admitted & by_keyword(fields, keyword, root, depth))
}

/// The types that one keyword of a schema leaves.
fn by_keyword(fields: &Map<String, Value>, keyword: &str, root: &Value, depth: usize) -> Types {
    let value = &fields[keyword];
    let list = || value.as_array().into_iter().flatten();
    let of = |schema: &Value| types(schema, root, depth + 1);
    match keyword {
        "type" if value.is_array() => list().fold(0, |admitted, name| admitted | named(name)),
        "type" => named(value),
        "const" => type_of(value),
        "enum" => list().fold(0, |admitted, value| admitted | type_of(value)),
        "anyOf" | "oneOf" => list().fold(0, |admitted, schema| admitted | of(schema)),
        "allOf" => list().fold(ALL, |admitted, schema| admitted & of(schema)),
        "$ref" => {
            let found = value.as_str().and_then(|target| root.pointer(target.strip_prefix('#')?));
            found.map_or(ALL, of)
        }
        "properties" if !fields.contains_key("type") => OBJECT,
        _ => ALL,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_raw_argument_has_the_type_of_its_schema() {
        let schema = json!({"$defs": {"size": {"type": "integer"}}, "properties": {
            "text": {"type": "string"}, "count": {"$ref": "#/$defs/size"}, "on": {"type": "boolean"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "list": {"type": "array"},
            "digit": {"enum": ["1", "2", 3]}, "either": {"type": ["integer", "string"]}, "loop": {"$ref": "#/properties/loop"},
            "both": {"allOf": [{"type": ["string", "null"]}, {"type": ["string", "number"]}]},
        }});
        for (name, text, expected) in [
            ("text", "5", json!("5")),
            ("text", "null", json!("null")),
            ("text", "\"quoted\"", json!("\"quoted\"")),
            ("count", "5", json!(5)),
            ("count", "five", json!("five")),
            ("on", "true", json!(true)),
            ("on", "False", json!(false)),
            ("maybe", "null", json!(null)),
            ("maybe", "None", json!(null)),
            ("maybe", "5", json!("5")),
            ("list", "[1, \"a\"]", json!([1, "a"])),
            ("digit", "1", json!("1")),
            ("digit", "3", json!(3)),
            ("either", "5", json!(5)),
            ("either", "[5]", json!("[5]")),
            ("loop", "5", json!(5)),
            ("both", "5", json!("5")),
            ("unknown", "5", json!(5)),
            ("unknown", "five", json!("five")),
        ] {
            assert_eq!(raw_argument(text, name, &schema), expected, "{name}: {text}");
        }
        assert_eq!(raw_argument("5", "a", &Value::Null), json!(5), "a tool without a schema");
        let texts = ["text", "maybe", "digit", "either", "loop", "both"];
        for (name, argument) in schema["properties"].as_object().unwrap() {
            assert_eq!(admits_text(argument, &schema), texts.contains(&name.as_str()), "{name}");
        }
    }
}
