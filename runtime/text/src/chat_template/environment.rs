//! The Jinja environment that transformers renders chat templates in, on minijinja.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::json::tojson;
use super::strftime::strftime;

/// Instructions of one rendering. A long conversation takes some hundred per message; these end within seconds.
const MAX_INSTRUCTIONS: u64 = 20_000_000;

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
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| strftime(format, now()));
    environment.add_filter("tojson", tojson);
    environment
}

pub(super) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Transformers marks the assistant's text with `{% generation %}` for training. Jinja has no such block, so it becomes
/// `if true`.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let (before, tag) = (&rest[..start], &rest[start..start + len]);
        result += before;
        result += &match tag.trim_matches(|letter: char| "{%-+ \n".contains(letter)) {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        };
        rest = &rest[start + len..];
    }
    result + rest
}
