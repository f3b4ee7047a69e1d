//! Tools for a template that has no place for them: the system message describes them and how they are called, calls are text of the
//! assistant, and results are text of the user.

use serde_json::{Value, json};

use super::message::Message;

const INSTRUCTIONS: &str = "You can call these functions. To call one, reply with nothing but a JSON object of its name and its \
    arguments: {\"name\": \"...\", \"arguments\": {...}}. The result follows in the next message. Functions:";
/// Separator of two texts in one message.
const BETWEEN: &str = "\n\n";

/// The same conversation without tools.
pub(super) fn without_tools(messages: &[Message], tools: &[Value]) -> Vec<Message> {
    let mut plain: Vec<Message> = Vec::new();
    if !tools.is_empty() {
        let described: Vec<String> =
            tools.iter().map(|tool| tool.get("function").unwrap_or(tool).to_string()).collect();
        plain.push(Message::new("system", format!("{INSTRUCTIONS}\n{}", described.join("\n"))));
    }
    for message in messages.iter().map(plain_message) {
        match plain.last_mut() {
            // Templates without tools expect that user and assistant take turns.
            Some(last) if last.role == message.role && last.role != "assistant" => {
                last.content = [last.content.as_str(), message.content.as_str()].join(BETWEEN);
            }
            _ => plain.push(message),
        }
    }
    plain
}

fn plain_message(message: &Message) -> Message {
    if message.role == "tool" {
        let name =
            message.fields.get("name").and_then(Value::as_str).map(|name| format!(" of {name}")).unwrap_or_default();
        return Message::new("user", format!("Result{name}: {}", message.content));
    }
    let calls = message.calls().map(|call| {
        let function = call.get("function").unwrap_or(call);
        json!({"name": function["name"], "arguments": function["arguments"]}).to_string()
    });
    let texts: Vec<String> =
        Some(message.content.clone()).filter(|text| !text.is_empty()).into_iter().chain(calls).collect();
    Message::new(&message.role, texts.join("\n"))
}
