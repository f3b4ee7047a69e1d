//! What `/show` and `/load` print of a conversation.

use unicorn_artifact::account::size;
use unicorn_runtime::Model;
use unicorn_text::{Chat, Message};

use super::line::Subject;
use super::settings::Settings;
use crate::report::statistics::LoadStatistics;
use crate::report::text::printable_lines;

/// Ends its last line.
pub fn show(subject: Subject, model: &Model, chat: &Chat, settings: &Settings) -> String {
    let text = match subject {
        Subject::Info => info(model, chat),
        Subject::Template => chat.template().source().to_owned(),
        Subject::Parameters => rows(&settings.parameters(chat.options())),
        Subject::System => chat.options().system.clone().unwrap_or("no system message".to_owned()),
    };
    printable_lines(text.trim_end()) + "\n"
}

fn info(model: &Model, chat: &Chat) -> String {
    let (meta, load) = (&model.meta().model, LoadStatistics::new(model));
    let memory = load.memory_bytes.iter().map(|(tier, memory)| format!("{} of {tier}", size(memory.total())));
    let left_out = match chat.turns_left_out() {
        0 => String::new(),
        turns => format!(", the oldest {turns} left out"),
    };
    let architecture = format!(
        "{}, {:.1} million parameters, {} layers",
        meta.architecture,
        meta.parameters as f64 / 1e6,
        meta.n_layers
    );
    rows(&[
        ("model", meta.name.clone()),
        ("architecture", architecture),
        ("weights", size(load.load_weight_bytes)),
        ("context", format!("{} of the model's {} tokens", model.context_tokens(), meta.max_positions)),
        ("device", format!("{}, target {}", load.device, load.target)),
        ("memory", memory.collect::<Vec<_>>().join(", ")),
        ("conversation", questions(chat) + &left_out),
    ])
}

/// What `/load` answers: what was loaded, and its last turn.
pub fn loaded(name: &str, model: &str, chat: &Chat) -> String {
    let mut text = format!("conversation {name}: {}, answered by {model}", questions(chat));
    let last = chat.history().iter().rposition(|message| message.role == "user").unwrap_or_default();
    for Message { role, content, .. } in &chat.history()[last..] {
        text += &format!("\n{}{content}", if role == "user" { "> " } else { "" });
    }
    text
}

fn questions(chat: &Chat) -> String {
    let count = chat.history().iter().filter(|message| message.role == "user").count();
    format!("{count} question{}", if count == 1 { "" } else { "s" })
}

/// A line each: a name and its value, which line up.
fn rows(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}
