//! How a conversation is passed to a template: first unchanged, and then with its system messages where any template accepts them.

use super::message::Message;

/// The conversation as it is, with `developer` as the `system` that it replaces; then with one system message instead of several;
/// then with their text at the beginning of the first user message.
pub(super) fn arrangements(messages: &[Message]) -> Vec<Vec<Message>> {
    let as_is: Vec<Message> = messages.iter().map(with_known_role).collect();
    let n_system = as_is.iter().take_while(|message| message.role == SYSTEM).count();
    if n_system == 0 {
        return vec![as_is];
    }
    let (system, rest) = as_is.split_at(n_system);
    let texts: Vec<&str> = system.iter().map(|message| message.content.as_str()).collect();
    let joined = texts.join(BETWEEN);

    let one_system: Vec<Message> = [Message::new(SYSTEM, joined.as_str())].into_iter().chain(rest.to_vec()).collect();
    let without_system = match rest {
        [first, rest @ ..] if first.role == USER => {
            let first = Message::new(USER, format!("{joined}{BETWEEN}{}", first.content));
            [first].into_iter().chain(rest.to_vec()).collect()
        }
        rest => [Message::new(USER, joined)].into_iter().chain(rest.to_vec()).collect(),
    };
    match n_system {
        1 => vec![as_is, without_system],
        _ => vec![as_is, one_system, without_system],
    }
}

const SYSTEM: &str = "system";
const USER: &str = "user";
/// Separator of a system message and what follows it in one message, as in Gemma's template.
const BETWEEN: &str = "\n\n";

/// OpenAI's newer models have `developer` instead of `system`.
fn with_known_role(message: &Message) -> Message {
    match message.role.as_str() {
        "developer" => Message::new(SYSTEM, message.content.as_str()),
        _ => message.clone(),
    }
}

/// The same messages with a mark for each content.
pub(super) fn marked(messages: &[Message]) -> Vec<Message> {
    let numbered = messages.iter().enumerate();
    numbered.map(|(index, message)| message.with_content(mark(index))).collect()
}

/// Index of the first message that has text and whose mark is not in `text`. In messages with calls of tools, templates leave
/// content out, as the models that they were made for were trained.
pub(super) fn missing_mark(messages: &[Message], text: &str) -> Option<usize> {
    let is_text = |message: &Message| !message.content.trim().is_empty() && message.calls().next().is_none();
    let mut with_content = messages.iter().enumerate().filter(|(_, message)| is_text(message));
    with_content.find(|(index, _)| !text.contains(&mark(*index))).map(|(index, _)| index)
}

/// Letters and digits only, which no filter changes; none is a part of another.
fn mark(index: usize) -> String {
    format!("message{index}content")
}
