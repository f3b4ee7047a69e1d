//! Conversations on a real device: `Chat` as a library, and `unicorn-run` on a terminal, as a person types.

mod library;
mod typed;

use std::sync::LazyLock;

use tests::compiled::{Compiled, options};
use tests::models::models;
use unicorn_spirv::target::Target;

/// A small model with a chat template.
static MODEL: LazyLock<Compiled> =
    LazyLock::new(|| Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets(), vec![])));

/// A small JSON object.
const SCHEMA: &str =
    r#"{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}"#;

fn device() -> String {
    std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into())
}

fn targets() -> Vec<Target> {
    ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect()
}
