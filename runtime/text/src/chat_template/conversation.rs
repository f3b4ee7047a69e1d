//! How a conversation is passed to a template: first unchanged, and then with its system messages, and messages of one role in a row, where
//! any template accepts them.

use super::message::Message;

/// The conversation as it is, with `developer` as the `system` that it replaces; then with one system message instead of several;
/// then with their text at the beginning of the first user message. Each also in turns. Some may be equal to the one before. Each is made
/// when it is asked for: most templates take the first.
pub(super) fn arrangements(messages: &[Message]) -> impl Iterator<Item = Vec<Message>> {
    let n_system = messages.iter().take_while(|message| is_system(message)).count();
    let places: &[Place] = if n_system == 0 { &[Place::Nowhere] } else { &[Place::First, Place::InQuestion] };
    let ways = places
        .iter()
        .flat_map(|place| [Turns::AsTheyAre, Turns::Joined, Turns::WithinResults].map(|turns| Some((place, turns))));
    std::iter::once(None).chain(ways).map(move |way| {
        let mut all: Vec<Message> = messages.iter().map(with_known_role).collect();
        match way {
            None => all,
            Some((place, turns)) => {
                let rest = all.split_off(n_system);
                arranged(&all, rest, place, &turns)
            }
        }
    })
}

/// The messages of the system at the beginning, and the rest, in a place and in turns.
fn arranged(system: &[Message], rest: Vec<Message>, place: &Place, turns: &Turns) -> Vec<Message> {
    let joined = system.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join(BETWEEN);
    let mut messages = match turns {
        Turns::AsTheyAre => rest,
        Turns::Joined => in_turns(rest, false),
        Turns::WithinResults => in_turns(rest, true),
    };
    match (place, messages.first_mut()) {
        (Place::Nowhere, _) => {}
        (Place::InQuestion, Some(first)) if first.role == USER => {
            *first = first.with_content(format!("{joined}{BETWEEN}{}", first.content));
        }
        (Place::InQuestion, _) => messages.insert(0, Message::new(USER, joined)),
        (Place::First, _) => messages.insert(0, Message::new(SYSTEM, joined)),
    }
    messages
}

/// Where the text of the system messages at the beginning is.
enum Place {
    /// There is none.
    Nowhere,
    /// In a message of its own.
    First,
    /// In the first user message.
    InQuestion,
}

/// What becomes of the other messages.
enum Turns {
    AsTheyAre,
    /// [`in_turns`].
    Joined,
    /// [`in_turns`], with what the user says behind a result within it.
    WithinResults,
}

/// The same where users and assistants take turns, as templates of Gemma and Mistral want them: what the system says between two messages
/// is said by the user, and messages in a row of the user, or of the assistant, become one. Agents send both: Claude Code reminds the model
/// by messages of the system, and Codex describes the environment in a message of its own. `within_results`: what the user says behind a
/// tool's result is a part of that; Mistral's templates count neither calls nor results as turns.
fn in_turns(messages: Vec<Message>, within_results: bool) -> Vec<Message> {
    let mut turns: Vec<Message> = Vec::new();
    for mut message in messages {
        if message.role == SYSTEM {
            message.role = USER.to_owned();
        }
        match turns.last_mut() {
            Some(last) if last.role == message.role && [USER, ASSISTANT].contains(&message.role.as_str()) => {
                last.append(message, BETWEEN);
            }
            Some(last) if within_results && last.role == TOOL && message.role == USER => last.append(message, BETWEEN),
            _ => turns.push(message),
        }
    }
    turns
}

const SYSTEM: &str = "system";
const DEVELOPER: &str = "developer";
const USER: &str = "user";
const ASSISTANT: &str = "assistant";
const TOOL: &str = "tool";
/// Separator of a system message and what follows it in one message, as in Gemma's template.
const BETWEEN: &str = "\n\n";

/// OpenAI's newer models have `developer` instead of `system`.
fn with_known_role(message: &Message) -> Message {
    match message.role.as_str() {
        DEVELOPER => Message::new(SYSTEM, message.content.as_str()),
        _ => message.clone(),
    }
}

fn is_system(message: &Message) -> bool {
    [SYSTEM, DEVELOPER].contains(&message.role.as_str())
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Without those that are equal to the one before.
    fn different(messages: &[Message]) -> Vec<Vec<Message>> {
        let mut all: Vec<Vec<Message>> = arrangements(messages).collect();
        all.dedup();
        all
    }

    fn conversation(turns: &[(&str, &str)]) -> Vec<Message> {
        turns.iter().map(|&(role, content)| Message::new(role, content)).collect()
    }

    #[test]
    fn a_conversation_in_turns_has_the_arrangements_of_its_system_messages_alone() {
        let plain = conversation(&[("user", "a"), ("assistant", "b"), ("user", "c")]);
        assert_eq!(different(&plain), std::slice::from_ref(&plain));
        let with_system = conversation(&[("system", "s"), ("user", "a")]);
        assert_eq!(different(&with_system), [with_system, conversation(&[("user", "s\n\na")])]);
    }

    #[test]
    fn messages_in_a_row_and_later_ones_of_the_system_become_turns() {
        let agent = [("system", "s"), ("user", "a"), ("system", "b"), ("user", "c"), ("assistant", "d")];
        let of_last = |turns: &[(&str, &str)]| arrangements(&conversation(turns)).last().unwrap();
        assert_eq!(of_last(&agent), conversation(&[("user", "s\n\na\n\nb\n\nc"), ("assistant", "d")]));
        assert_eq!(of_last(&agent[1..]), conversation(&[("user", "a\n\nb\n\nc"), ("assistant", "d")]));
        let with_one = conversation(&[("system", "s"), ("user", "a\n\nb\n\nc"), ("assistant", "d")]);
        assert!(arrangements(&conversation(&agent)).any(|arranged| arranged == with_one));
        // Results stay apart.
        let results = conversation(&[("tool", "a"), ("tool", "b"), ("user", "c")]);
        assert_eq!(different(&results), [results.clone(), conversation(&[("tool", "a"), ("tool", "b\n\nc")])]);
    }

    #[test]
    fn one_turn_of_the_assistant_has_all_calls_and_all_reasoning() {
        let turn = |text: &str, id: &str| {
            let mut message = Message::new("assistant", text);
            message.fields.insert("tool_calls".to_owned(), json!([{"id": id}]));
            message.fields.insert("reasoning_content".to_owned(), id.into());
            message
        };
        let turns = in_turns(vec![turn("", "1"), Message::new("assistant", "a"), turn("b", "2")], false);
        assert_eq!((turns.len(), turns[0].content.as_str()), (1, "a\n\nb"));
        let fields = json!({"tool_calls": [{"id": "1"}, {"id": "2"}], "reasoning_content": "1\n\n2"});
        assert_eq!(json!(turns[0].fields), fields);
    }
}
