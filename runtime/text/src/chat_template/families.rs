//! Templates of model families against Jinja itself: `tests/golden/templates.py` renders each of them for each conversation as
//! transformers does. With `UNICORN_TEMPLATES=FOLDER`, those of that folder too: a model's own, after
//! `python3 tests/golden/templates.py FOLDER`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;

/// 2026-01-02 03:04:05 UTC, as in the script.
const NOW: u64 = 1_767_323_045;
/// More than any of the texts needs.
const CONTEXT_TOKENS: u32 = 1 << 10;

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_else(|| panic!("expected a text {name} in {value}")).to_owned()
}

fn message(value: &Value) -> Message {
    let role = text(value, "role");
    let mut result = match value["content"].as_array() {
        Some(parts) => Message::of_parts(&role, parts.iter().map(|part| text(part, "text")).collect()),
        None => Message::new(&role, text(value, "content")),
    };
    let fields = value.as_object().expect("a message is a dictionary");
    let others = fields.iter().filter(|(name, _)| !["role", "content"].contains(&name.as_str()));
    result.fields = others.map(|(name, value)| (name.clone(), value.clone())).collect();
    result
}

/// How the outcome of a conversation differs from the expected one.
fn difference(template: &ChatTemplate, conversation: &Value, expected: &Value) -> Option<String> {
    let messages = conversation["messages"].as_array().expect("a conversation has messages");
    let messages: Vec<Message> = messages.iter().map(message).collect();
    let tools = conversation["tools"].as_array().cloned().unwrap_or_default();
    let arguments = conversation["arguments"].as_object().cloned().unwrap_or_default();
    let around = Surroundings { tools: &tools, arguments: &arguments, begins_reply: true };
    let rendered = template.checked(&messages, &around);
    let is_expected = match &rendered {
        Ok(rendered) => expected["text"] == **rendered,
        Err(TextError::Conversation { detail }) => {
            expected["failed"].is_string()
                || expected["raised"].as_str().is_some_and(|raised| detail.starts_with(raised))
        }
        Err(TextError::DroppedMessage { role, .. }) => expected["dropped"] == **role,
        Err(_) => false,
    };
    (!is_expected).then(|| match (expected["text"].as_str(), rendered) {
        (Some(expected), Ok(found)) => first_difference(expected, &found),
        (_, found) => format!("expected {expected}\nfound    {found:?}"),
    })
}

/// Both texts from shortly before they differ.
fn first_difference(expected: &str, found: &str) -> String {
    let same = expected.chars().zip(found.chars()).take_while(|(expected, found)| expected == found).count();
    let part = |text: &str| text.chars().skip(same.saturating_sub(20)).take(80).collect::<String>();
    format!("from character {same}\nexpected {:?}\nfound    {:?}", part(expected), part(found))
}

fn check(folder: &Path) -> usize {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates");
    let conversations = json(&golden.join("conversations.json"));
    let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut templates: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    templates.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    templates.sort();
    let (mut compared, mut differences) = (0, Vec::new());
    for path in templates {
        let section = TokenizerSection {
            chat_template: Some(std::fs::read_to_string(&path).unwrap()),
            bos_token: Some("<bos>".into()),
            eos_token: Some("<eos>".into()),
            ..TokenizerSection::default()
        };
        let template = ChatTemplate::at(&section, CONTEXT_TOKENS, || NOW)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let expected = json(&path.with_extension("json"));
        for conversation in conversations.as_array().expect("a list of conversations") {
            let name = text(conversation, "name");
            compared += 1;
            if let Some(difference) = difference(&template, conversation, &expected[&name]) {
                differences.push(format!("{}: {name}: {difference}", path.display()));
            }
        }
    }
    assert!(differences.is_empty(), "{} of {compared} texts:\n{}", differences.len(), differences.join("\n"));
    compared
}

#[test]
fn templates_render_as_in_transformers() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates");
    assert!(check(&golden) >= 29 * 25, "29 templates, 25 conversations each");
    if let Some(folder) = std::env::var_os("UNICORN_TEMPLATES") {
        assert!(check(Path::new(&folder)) > 0);
    }
}
