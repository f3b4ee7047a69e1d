//! The Jinja environment that transformers renders chat templates in, on minijinja. Known differences: a dictionary that is written
//! in the template has its keys in alphabetical order, and floats in printed lists and dictionaries have no exponent of two digits.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::json::{number, tojson};
use super::strftime::strftime;

/// Instructions of one rendering. A long conversation takes a few hundred per message; this many end within a second. The stack of
/// a rendering is large enough for that many levels of nested values.
const MAX_INSTRUCTIONS: u64 = 1_000_000;

/// An environment with the functions, filters and methods that templates use; `now` gives the seconds since 1970 in UTC.
pub(super) fn environment(now: fn() -> u64) -> Environment<'static> {
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().expect("constant settings are valid");
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Bool => Ok(out.write_str(if value.is_true() { "True" } else { "False" })?),
        ValueKind::None => Ok(out.write_str("None")?),
        ValueKind::Number => Ok(out.write_str(&number(value))?),
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| strftime(format, now()));
    environment.add_filter("string", string);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_iterable);
    environment
}

pub(super) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// As Python's `str`, also of a float with an exponent.
fn string(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => value.clone(),
        ValueKind::Number => Value::from(number(value)),
        _ => Value::from(value.to_string()),
    }
}

/// As in Jinja, an undefined value has the length 0.
fn length(value: &Value) -> Result<usize, Error> {
    match value.is_undefined() {
        true => Ok(0),
        false => minijinja::filters::length(value),
    }
}

/// As in Python, `none` is neither iterable nor a sequence; a text, a dictionary and an undefined value are both.
fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}
