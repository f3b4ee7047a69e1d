//! Dictionaries that keep the order of their keys, as Python's do: `tojson` and loops show it.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object};

/// A JSON object as a dictionary. Its keys keep the order that `serde_json` gives them: that of the text with the feature
/// `preserve_order`.
pub(super) fn dictionary(object: &serde_json::Map<String, serde_json::Value>) -> Value {
    object.iter().map(|(name, value)| (name.as_str(), from_json(value))).collect::<Dictionary>().into()
}

/// A JSON value in the form that templates receive.
pub(super) fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64()),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(object) => dictionary(object),
    }
}

/// A dictionary whose keys are texts.
#[derive(Debug)]
pub(super) struct Dictionary {
    entries: Vec<(Arc<str>, Value)>,
    /// Position of each key.
    positions: BTreeMap<Arc<str>, usize>,
}

impl<'k> FromIterator<(&'k str, Value)> for Dictionary {
    fn from_iter<I: IntoIterator<Item = (&'k str, Value)>>(entries: I) -> Dictionary {
        let entries: Vec<(Arc<str>, Value)> = entries.into_iter().map(|(key, value)| (key.into(), value)).collect();
        let positions = entries.iter().enumerate().map(|(position, (key, _))| (key.clone(), position)).collect();
        Dictionary { entries, positions }
    }
}

impl From<Dictionary> for Value {
    fn from(dictionary: Dictionary) -> Value {
        Value::from_object(dictionary)
    }
}

impl Object for Dictionary {
    fn get_value(self: &Arc<Dictionary>, key: &Value) -> Option<Value> {
        let position = *self.positions.get(key.as_str()?)?;
        Some(self.entries[position].1.clone())
    }

    fn enumerate(self: &Arc<Dictionary>) -> Enumerator {
        Enumerator::Values(self.entries.iter().map(|(key, _)| Value::from(key.clone())).collect())
    }
}
