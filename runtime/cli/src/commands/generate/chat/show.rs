//! What `/show` and `/load` print of a conversation.

use unicorn_artifact::account::size;
use unicorn_runtime::Model;
use unicorn_structure::Structure;
use unicorn_terminal::quoted;
use unicorn_text::{Chat, ChatOptions, serde_json};

use super::line::Subject;
use super::settings::Settings;
use super::source::Source;
use crate::report::statistics::LoadStatistics;
use crate::report::text::printable_lines;

/// Ends its last line.
pub fn show(subject: Subject, model: &Model, source: &Source, chat: &Chat, settings: &Settings) -> String {
    let text = match subject {
        Subject::Info => info(model, chat),
        Subject::Template => chat.template().source().to_owned(),
        Subject::Parameters => rows(&settings.parameters(chat.options())),
        Subject::Command => command(source, chat.options(), settings),
        Subject::License => model.license().map_or("the model names no license".to_owned(), ToString::to_string),
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

/// The command that starts a chat with these settings.
fn command(source: &Source, options: &ChatOptions, settings: &Settings) -> String {
    let mut command = format!("unicorn-run {}", quoted(&source.model.to_string_lossy()));
    let mut add = |option: &str, value: &str| command += &format!(" {option} {}", quoted(value));
    if let Some(context_tokens) = source.context_tokens {
        add("-c", &context_tokens.to_string());
    }
    for (name, value) in settings.sampling.given() {
        add(&format!("--{name}"), &value);
    }
    if let Some(max_tokens) = options.max_tokens {
        add("-n", &max_tokens.to_string());
    }
    if let Some(system) = &options.system {
        add("--system", system);
    }
    if !options.template_arguments.is_empty() {
        let json = serde_json::to_string(&options.template_arguments);
        add("--chat-template-kwargs", &json.expect("template arguments are JSON"));
    }
    match &settings.format.structure {
        Some(Structure::Schema(schema)) => add("--json-schema", &schema.to_string()),
        Some(Structure::Lark(grammar)) => add("--grammar", grammar),
        _ => {}
    }
    match options.stop_strings.is_empty() {
        true => command,
        false => format!("{command}\nthen: /set stop {}", options.stop_strings.join(" ")),
    }
}

/// What `/load` answers: what was loaded, and its last turn.
pub fn loaded(name: &str, model: &str, chat: &Chat) -> String {
    let mut text = format!("conversation {name}: {}, answered by {model}", questions(chat));
    let last = chat.history().iter().rposition(|message| message.role == "user").unwrap_or_default();
    for message in &chat.history()[last..] {
        text += &format!("\n{}{}", if message.role == "user" { "> " } else { "" }, message.text());
    }
    text
}

fn questions(chat: &Chat) -> String {
    let count = chat.history().iter().filter(|message| message.role == "user").count();
    format!("{count} question{}", if count == 1 { "" } else { "s" })
}

/// One line for each name and value, in aligned columns.
fn rows(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}
