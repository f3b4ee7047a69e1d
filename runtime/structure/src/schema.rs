//! JSON schemas as llguidance reads them rightly: what it would misread is written in another way, or refused.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value, json};

use crate::error::StructureError;

/// Keywords whose values are data, or names.
const DATA: [&str; 7] = ["const", "enum", "default", "example", "examples", "required", "dependentRequired"];
/// Keywords whose values are schemas by names.
const MAPS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords of numbers that cannot be rounded.
const NUMBERS: [&str; 3] = ["const", "enum", "multipleOf"];
/// Formats of texts that JSON Schema defines (2020-12, validation, 7.3).
const FORMATS: [&str; 19] = [
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "idn-email",
    "hostname",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uri-reference",
    "iri",
    "iri-reference",
    "uuid",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
    "regex",
];

/// The same schema as llguidance reads it rightly.
pub(crate) fn prepared(schema: &Value) -> Value {
    let mut schema = schema.clone();
    each_schema(&mut schema, &mut prepare);
    schema
}

/// # Errors
/// For a number that llguidance, which reads doubles, would round.
pub(crate) fn check(schema: &Value) -> Result<(), StructureError> {
    let mut found = None;
    each_schema(&mut schema.clone(), &mut |fields| {
        let rounded = |name: &str| Some((name.to_owned(), rounded_number(fields.get(name)?)?.clone()));
        found = found.take().or_else(|| NUMBERS.into_iter().find_map(rounded));
    });
    match found {
        None => Ok(()),
        Some((name, number)) => Err(StructureError::new(format!(
            "{name}: expected numbers that a double holds exactly, as those up to 9007199254740992, found {number}"
        ))),
    }
}

/// Calls `change` with the fields of a schema and of those within it.
fn each_schema(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match schema {
        Value::Object(fields) => {
            change(fields);
            for (name, value) in fields.iter_mut().filter(|(name, _)| !DATA.contains(&name.as_str())) {
                match value {
                    Value::Object(schemas) if MAPS.contains(&name.as_str()) => {
                        schemas.values_mut().for_each(|schema| each_schema(schema, change));
                    }
                    // A reference may lead into a keyword that JSON Schema does not have.
                    value => each_schema(value, change),
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(|schema| each_schema(schema, change)),
        _ => {}
    }
}

fn prepare(fields: &mut Map<String, Value>) {
    if let Some(Value::String(pattern)) = fields.get_mut("pattern") {
        *pattern = without_nul(pattern);
    }
    if let Some(Value::Object(schemas)) = fields.get_mut("patternProperties") {
        *schemas = std::mem::take(schemas).into_iter().map(|(name, schema)| (without_nul(&name), schema)).collect();
    }
    if let Some(Value::String(reference)) = fields.get_mut("$ref") {
        *reference = unescaped(reference);
    }
    for (name, is_lower) in
        [("minimum", true), ("exclusiveMinimum", true), ("maximum", false), ("exclusiveMaximum", false)]
    {
        let bound = fields.get(name).and_then(rounded_number).and_then(Value::as_number);
        if let Some(bound) = bound.and_then(Number::as_i128) {
            fields[name] = json!(double_inside(bound, is_lower));
        }
    }
    // What JSON Schema does not define is a note, which it permits.
    let is_note = |format: &Value| format.as_str().is_some_and(|format| !FORMATS.contains(&format));
    if fields.get("format").is_some_and(is_note) {
        fields.shift_remove("format");
    }
    let permits_all = |value: &Value| *value == json!(true) || *value == json!({});
    for (name, has_no_effect) in [
        ("uniqueItems", &(|value: &Value| *value == json!(false)) as &dyn Fn(&Value) -> bool),
        ("propertyNames", &|value| permits_all(value) || *value == json!({"type": "string"})),
        ("unevaluatedItems", &permits_all),
        ("unevaluatedProperties", &permits_all),
    ] {
        if fields.get(name).is_some_and(has_no_effect) {
            fields.shift_remove(name);
        }
    }
}

/// A pattern whose negated classes exclude NUL, too. derivre 0.3, which llguidance uses, permits escaped quotes and backslashes in a class
/// that has every control character, even where the class excludes them.
fn without_nul(pattern: &str) -> String {
    let mut written = String::new();
    let mut characters = pattern.chars().peekable();
    while let Some(character) = characters.next() {
        written.push(character);
        match character {
            '\\' => written.extend(characters.next()),
            '[' if characters.next_if_eq(&'^').is_some() => {
                written += "^\\x00";
                // As the first character, this one does not end the class.
                if characters.next_if_eq(&']').is_some() {
                    written += "\\]";
                }
            }
            _ => {}
        }
    }
    written
}

/// A reference whose names are written as they are: llguidance does not read escapes. Names with a slash stay escaped.
fn unescaped(reference: &str) -> String {
    let Some(pointer) = reference.strip_prefix("#/") else { return reference.to_owned() };
    let name = |escaped: &str| {
        let name = percent_decoded(escaped)?.replace("~1", "/").replace("~0", "~");
        (!name.contains('/')).then_some(name)
    };
    let names: Vec<String> =
        pointer.split('/').map(|escaped| name(escaped).unwrap_or_else(|| escaped.to_owned())).collect();
    format!("#/{}", names.join("/"))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// The double next to a bound on the side of what it permits.
fn double_inside(bound: i128, is_lower: bool) -> f64 {
    let double = bound as f64;
    match (double as i128).cmp(&bound) {
        Ordering::Less if is_lower => double.next_up(),
        Ordering::Greater if !is_lower => double.next_down(),
        _ => double,
    }
}

/// A number of `value` that is not the same as a double.
fn rounded_number(value: &Value) -> Option<&Value> {
    let is_rounded = |number: i128| number as f64 as i128 != number;
    match value {
        Value::Number(number) => number.as_i128().is_some_and(is_rounded).then_some(value),
        Value::Array(values) => values.iter().find_map(rounded_number),
        Value::Object(fields) => fields.values().find_map(rounded_number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negated_classes_exclude_nul() {
        for (pattern, expected) in [
            (r#"^[^"]*$"#, r#"^[^\x00"]*$"#),
            (r"[^]a]", r"[^\x00\]a]"),
            (r"\[^a[b^]", r"\[^a[b^]"),
            (r"[a[^b]]\\[^c]", r"[a[^\x00b]]\\[^\x00c]"),
        ] {
            assert_eq!(without_nul(pattern), expected);
        }
    }

    #[test]
    fn references_are_written_as_the_names_are() {
        for (reference, expected) in [
            ("#/$defs/a", "#/$defs/a"),
            ("#/definitions/Map%3Cstring%2Cb%3E/x~0y", "#/definitions/Map<string,b>/x~y"),
            ("#/$defs/a~1b%zz", "#/$defs/a~1b%zz"),
            ("#/$defs/a%2Fb", "#/$defs/a%2Fb"),
            ("other.json#/a%20b", "other.json#/a%20b"),
        ] {
            assert_eq!(unescaped(reference), expected);
        }
    }

    #[test]
    fn the_order_of_keywords_stays() {
        let schema = json!({"title": "a", "uniqueItems": false, "items": {"format": "path", "type": "string"},
            "maxItems": 1, "const": {"uniqueItems": false}});
        let expected = r#"{"title":"a","items":{"type":"string"},"maxItems":1,"const":{"uniqueItems":false}}"#;
        assert_eq!(prepared(&schema).to_string(), expected);
    }
}
