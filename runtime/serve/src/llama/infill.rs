//! Text between two texts: prompts of models that were trained to fill in the middle.

use serde_json::{Map, Value};
use unicorn_text::Tokenizer;

use crate::api::error::ApiError;
use crate::api::fields::unexpected;
use crate::api::prompt::Prompt;

/// Special tokens of a family: they begin the prefix, the suffix, and the text to be filled in.
const FAMILIES: [[&str; 3]; 6] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    // GLM-4.5's.
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];
/// Special tokens that precede each further file.
const FILE: [&str; 2] = ["<|file_sep|>", "<file_sep>"];

/// The prompt of a text between `prefix` and `suffix`, after further files.
///
/// # Errors
/// For a model whose vocabulary has no tokens for it.
pub(crate) fn prompt(
    tokenizer: &Tokenizer,
    files: &[(String, String)],
    prefix: &str,
    suffix: &str,
) -> Result<Prompt, ApiError> {
    let ids = |family: &[&str; 3]| Some(family.map(|token| tokenizer.token_id(token)));
    let family = FAMILIES.iter().filter_map(ids).find_map(|ids| match ids {
        [Some(prefix), Some(suffix), Some(middle)] => Some([prefix, suffix, middle]),
        _ => None,
    });
    let Some([before, behind, middle]) = family else {
        return Err(ApiError::disabled("infill: the model's vocabulary has no tokens for text in the middle"));
    };
    let file = FILE.iter().find_map(|token| tokenizer.token_id(token));
    // The first text has the token that begins a sequence, if the model expects one.
    let mut parts = vec![Prompt::Text(String::new())];
    for (name, text) in files {
        parts.extend(file.map(|file| Prompt::Tokens(vec![file])));
        parts.push(Prompt::Text(format!("{name}\n{text}\n")));
    }
    for (token, text) in [(before, prefix), (behind, suffix), (middle, "")] {
        parts.push(Prompt::Tokens(vec![token]));
        parts.extend((!text.is_empty()).then(|| Prompt::Text(text.to_owned())));
    }
    Ok(Prompt::Mixed(parts))
}

/// The prompt of a request of `/infill`, whose fields it takes.
///
/// # Errors
/// For fields of other types, and those of [`prompt`].
pub(crate) fn request_prompt(tokenizer: &Tokenizer, fields: &mut Map<String, Value>) -> Result<Prompt, ApiError> {
    let mut text = |name: &str| match fields.remove(name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(unexpected(name, "a text", &other)),
    };
    let (prefix, suffix, begun) = (text("input_prefix")?, text("input_suffix")?, text("prompt")?);
    let extra = fields.remove("input_extra").unwrap_or(Value::Array(Vec::new()));
    let file =
        |file: &Value| Some((file.get("filename")?.as_str()?.to_owned(), file.get("text")?.as_str()?.to_owned()));
    let files = extra.as_array().and_then(|files| files.iter().map(file).collect::<Option<Vec<_>>>());
    let files = files.ok_or_else(|| unexpected("input_extra", "a list of files with filename and text", &extra))?;
    prompt(tokenizer, &files, &(prefix + &begun), &suffix)
}
