//! The parameters of a request by name, and the errors about them.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ApiError;

/// Characters of a value that an error message quotes.
const MAX_QUOTED_CHARACTERS: usize = 80;

pub(crate) const BOOLEAN: &str = "true or false";
pub(crate) const NUMBER: &str = "a number";

/// The parameters of a request, or of a part of one.
pub(crate) struct Fields(pub(crate) Map<String, Value>);

impl Fields {
    /// A parameter that may be left out or null.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.0.remove(name).filter(|value| !value.is_null()) else { return Ok(None) };
        // Clients without whole numbers write 40.0.
        let read = T::deserialize(&value).ok().or_else(|| T::deserialize(whole(&value)?).ok());
        read.map(Some).ok_or_else(|| unexpected(name, expected, &value))
    }

    pub(crate) fn require<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Result<T, ApiError> {
        let missing = || ApiError::parameter(name, format!("expected {expected}, found nothing"));
        self.take(name, expected)?.ok_or_else(missing)
    }

    /// An error unless the parameter is left out, null, or has the value that has no effect.
    pub(crate) fn accept_only(&mut self, name: &str, no_effect: &Value) -> Result<(), ApiError> {
        let requested = self.0.remove(name).filter(|value| !value.is_null());
        // 0 and 0.0 are one number.
        let has_no_effect =
            |value: &Value| value == no_effect || (value.is_number() && value.as_f64() == no_effect.as_f64());
        match requested.filter(|value| !has_no_effect(value)) {
            None => Ok(()),
            Some(value) => Err(ApiError::parameter(name, format!("not supported here, found {}", quoted(&value)))),
        }
    }
}

/// The whole number that `value` is, written with a fraction of 0.
fn whole(value: &Value) -> Option<Value> {
    /// Above, not every whole number is a double.
    const MAX: f64 = (1u64 << 53) as f64;
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= MAX)?;
    Some((number as i64).into())
}

/// The error of a parameter of another type.
pub(crate) fn unexpected(name: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::parameter(name, format!("expected {expected}, found {}", quoted(found)))
}

/// A value as an error message quotes it.
pub(crate) fn quoted(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_QUOTED_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The body of a request.
///
/// # Errors
/// When it is not JSON, or not an object.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("body: expected JSON, found {error}")))?;
    match body {
        Value::Object(fields) => Ok(fields),
        other => Err(ApiError::bad_request(format!("body: expected an object, found {}", quoted(&other)))),
    }
}
