//! What a request is about: prompts of plain text, and messages of a conversation with calls of tools and their results.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use unicorn_text::Message;

use super::error::ApiError;
use super::fields::unexpected;

/// What a choice continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, for the chat template.
    Chat(Vec<Message>),
    /// Plain text.
    Text(String),
    /// Token ids, not checked yet.
    Tokens(Vec<u32>),
    /// Texts and token ids, one behind the other.
    Mixed(Vec<Prompt>),
}

pub(super) const PROMPT: &str = "text, a list of texts, token ids, or a list of lists of token ids";

/// One prompt or several, as text, token ids, or a list of both.
pub(crate) fn prompts(prompt: &Value) -> Result<Vec<Prompt>, ApiError> {
    let several = |prompt: &Value| prompt.as_array()?.iter().map(whole).collect::<Option<Vec<Prompt>>>();
    let prompts = whole(prompt).map(|one| vec![one]).or_else(|| several(prompt));
    prompts.ok_or_else(|| unexpected("prompt", PROMPT, prompt))
}

fn whole(prompt: &Value) -> Option<Prompt> {
    match prompt {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        // llama-server's forms of a text that could have images, but has none.
        Value::Object(parts) if parts.len() == 1 => match (parts.get("prompt_string"), parts.get("content")) {
            (Some(prompt), None) => Some(Prompt::Text(prompt.as_str()?.to_owned())),
            (None, Some(parts @ Value::Array(_))) => text(parts).map(Prompt::Text),
            _ => None,
        },
        Value::Array(parts) => match Vec::deserialize(prompt) {
            Ok(tokens) => Some(Prompt::Tokens(tokens)),
            // Texts alone are prompts of their own.
            Err(_) if parts.iter().any(Value::is_number) => {
                parts.iter().map(part).collect::<Option<_>>().map(Prompt::Mixed)
            }
            Err(_) => None,
        },
        _ => None,
    }
}

fn part(part: &Value) -> Option<Prompt> {
    match part {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        token => Some(Prompt::Tokens(vec![u32::deserialize(token).ok()?])),
    }
}

/// The messages of a conversation, at least one.
pub(super) fn messages(messages: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::parameter("messages", "expected at least one message, found none"));
    }
    // Name of each call that was made, by its id.
    let mut called = HashMap::new();
    let numbered = messages.into_iter().enumerate();
    numbered
        .map(|(index, value)| {
            message(&value, &mut called).ok_or_else(|| unexpected(&format!("messages[{index}]"), MESSAGE, &value))
        })
        .collect()
}

const MESSAGE: &str =
    "a role and a content that is text or a list of parts of text, or calls of tools with arguments in JSON";

fn message(value: &Value, called: &mut HashMap<String, String>) -> Option<Message> {
    let role = value.get("role")?.as_str()?;
    let calls = match value.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(calls) => calls.as_array()?.iter().map(call).collect::<Option<_>>()?,
    };
    let content = match value.get("content") {
        None if calls.is_empty() => return None,
        None | Some(Value::Null) => String::new(),
        Some(content) => text(content)?,
    };
    let mut message = Message::new(role, content);
    for call in &calls {
        let name = call["function"]["name"].as_str()?.to_owned();
        called.extend(call["id"].as_str().map(|id| (id.to_owned(), name)));
    }
    if !calls.is_empty() {
        message.fields.insert("tool_calls".into(), Value::Array(calls));
    }
    let texts = ["tool_call_id", "name", "reasoning_content", "thinking"];
    let kept = texts
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), value.get(*name).filter(|text| text.is_string())?.clone())));
    message.fields.extend(kept);
    // Some templates write a result with the name of its tool.
    let id = message.fields.get("tool_call_id").and_then(Value::as_str);
    if let Some(name) = id.and_then(|id| called.get(id)).filter(|_| role == "tool") {
        message.fields.entry("name").or_insert(name.as_str().into());
    }
    Some(message)
}

/// A text, or a list of parts of text, one behind the other.
pub(crate) fn text(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        parts => parts.as_array()?.iter().map(text_part).collect(),
    }
}

fn text_part(part: &Value) -> Option<&str> {
    // A refusal of the assistant is a part of its own kind; the responses API names its texts by direction.
    match part.get("type")?.as_str()? {
        "text" | "input_text" | "output_text" => part.get("text")?.as_str(),
        "refusal" => part.get("refusal")?.as_str(),
        _ => None,
    }
}

/// A call whose arguments are an object, as templates expect them.
fn call(value: &Value) -> Option<Value> {
    let function = value.get("function")?;
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(arguments) => arguments.clone(),
    };
    function.get("name")?.as_str()?;
    let mut call = value.clone();
    call["function"]["arguments"] = arguments.is_object().then_some(arguments)?;
    Some(call)
}
