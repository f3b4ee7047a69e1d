//! Tools for GLM-4-0414's chat template: a result has the role `observation`, and a call is a message of its own, with the tool's name as
//! `metadata` and the arguments as content.

use serde_json::Value;

use super::dictionary::from_json;
use super::json::tojson;
use super::message::Message;

/// The same conversation with calls and results as that template has them.
pub(super) fn with_observations(messages: &[Message]) -> Vec<Message> {
    messages.iter().flat_map(observed).collect()
}

fn observed(message: &Message) -> Vec<Message> {
    let mut plain = message.clone();
    if message.role == "tool" {
        plain.role = "observation".to_owned();
    }
    let calls = plain.fields.remove("tool_calls");
    let mut messages: Vec<Message> = calls.iter().filter_map(Value::as_array).flatten().map(call).collect();
    if messages.is_empty() || !message.content.trim().is_empty() {
        messages.insert(0, plain);
    }
    messages
}

fn call(call: &Value) -> Message {
    let function = call.get("function").unwrap_or(call);
    let arguments = &function["arguments"];
    let json = tojson(&from_json(arguments), std::iter::empty::<(&str, minijinja::Value)>().collect())
        .unwrap_or_else(|_| arguments.to_string());
    let mut message = Message::new("assistant", arguments.as_str().map_or(json, str::to_owned));
    message.fields.insert("metadata".to_owned(), function["name"].clone());
    message
}
