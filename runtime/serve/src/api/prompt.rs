//! What a request is about: prompts of plain text, and messages of a conversation with calls of tools and their results.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use unicorn_text::{IMAGE_MARK, Message, without_marks};

use super::error::ApiError;
use super::fields::unexpected;

/// What a choice continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, for the chat template.
    Chat {
        /// Its messages, with [`IMAGE_MARK`] in the place of each picture.
        messages: Vec<Message>,
        /// Files of pictures, in the order of their marks; not decoded yet.
        pictures: Vec<Vec<u8>>,
    },
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

/// The messages of a conversation, at least one, and files of the pictures in it.
pub(super) fn messages(messages: Vec<Value>) -> Result<(Vec<Message>, Vec<Vec<u8>>), ApiError> {
    if messages.is_empty() {
        return Err(ApiError::parameter("messages", "expected at least one message, found none"));
    }
    // Name of each call that was made, by its id.
    let mut called = HashMap::new();
    let mut pictures = Vec::new();
    let numbered = messages.into_iter().enumerate();
    let messages = numbered.map(|(index, value)| {
        let name = format!("messages[{index}]");
        let value = with_marks(value, &name, &mut pictures)?;
        message(&value, &mut called).ok_or_else(|| unexpected(&name, MESSAGE, &value))
    });
    Ok((messages.collect::<Result<_, _>>()?, pictures))
}

const MESSAGE: &str =
    "a role and a content that is text or a list of parts of text and images, or calls of tools with arguments in JSON";

/// A message with marks in the places of images, whose files are added to `pictures`; nobody else writes marks.
fn with_marks(mut message: Value, name: &str, pictures: &mut Vec<Vec<u8>>) -> Result<Value, ApiError> {
    match message.get_mut("content") {
        Some(Value::String(text)) if text.contains(IMAGE_MARK) => *text = without_marks(text),
        Some(Value::Array(parts)) => {
            for part in parts {
                if let Some(text) = part.get("text").and_then(Value::as_str).filter(|text| text.contains(IMAGE_MARK)) {
                    part["text"] = without_marks(text).into();
                }
                if let Some(picture) = picture(part) {
                    let file = picture.map_err(|what| ApiError::parameter(name, what))?;
                    pictures.push(file);
                    *part = json!({"type": "text", "text": IMAGE_MARK.to_string()});
                }
            }
        }
        _ => {}
    }
    Ok(message)
}

/// The file in a part of a message that is an image, by the names of OpenAI's chat and responses; `None`: it is another part.
fn picture(part: &Value) -> Option<Result<Vec<u8>, &'static str>> {
    if !["image_url", "input_image"].contains(&part.get("type")?.as_str()?) {
        return None;
    }
    let address = part.get("image_url").map_or(&Value::Null, |address| address.get("url").unwrap_or(address));
    let data = address.as_str().and_then(|address| address.strip_prefix("data:")).and_then(|data| data.split_once(','));
    Some(match data {
        Some((kind, data)) if kind.ends_with(";base64") => {
            STANDARD.decode(data.trim()).map_err(|_| "expected an image in base64, found other characters")
        }
        _ => Err(
            "expected an image_url that begins with data:image/png;base64, or another type; pictures are not fetched from \
                  the network",
        ),
    })
}

fn message(value: &Value, called: &mut HashMap<String, String>) -> Option<Message> {
    let role = value.get("role")?.as_str()?;
    let calls = match value.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(calls) => calls.as_array()?.iter().map(call).collect::<Option<_>>()?,
    };
    let mut message = match value.get("content") {
        None if calls.is_empty() => return None,
        None | Some(Value::Null) => Message::new(role, ""),
        Some(Value::String(text)) => Message::new(role, text.as_str()),
        Some(content) => {
            let texts = content.as_array()?.iter().map(|part| text_part(part).map(str::to_owned));
            Message::of_parts(role, texts.collect::<Option<_>>()?)
        }
    };
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
    // vLLM's and OpenRouter's name.
    if let Some(reasoning) = value.get("reasoning").filter(|text| text.is_string()) {
        message.fields.entry("reasoning_content").or_insert(reasoning.clone());
    }
    // gpt-oss' template has another name for reasoning between calls, and no place for content beside it.
    if let Some(reasoning) = message.fields.get("reasoning_content").cloned()
        && message.fields.contains_key("tool_calls")
        && message.content.is_empty()
    {
        message.fields.entry("thinking").or_insert(reasoning);
    }
    // Some templates write a result with the name of its tool.
    let id = message.fields.get("tool_call_id").and_then(Value::as_str);
    if let Some(name) = id.and_then(|id| called.get(id)).filter(|_| role == "tool") {
        message.fields.entry("name").or_insert(name.as_str().into());
    }
    Some(message)
}

/// Whether it is a text, or a list of parts of text and images.
pub(crate) fn is_content(content: &Value) -> bool {
    let is_part = |part: &Value| text_part(part).is_some() || picture(part).is_some();
    content.is_string() || content.as_array().is_some_and(|parts| parts.iter().all(is_part))
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
