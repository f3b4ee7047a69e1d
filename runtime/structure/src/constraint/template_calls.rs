//! Calls as chat templates write them in a conversation: that is how the models were trained to call, so the text is accepted where its
//! arguments match, and is read back as the same calls.

use std::path::Path;

use serde_json::{Value, json};
use unicorn_text::{ChatTemplate, Message, TemplateArguments, TokenizerSection, ToolFormat};

use super::Constraint;
use super::tests::{accepts, vocabulary};
use super::written_calls::{calls, tool};

/// Template, its format, and what ends a message of the assistant.
const FAMILIES: &[(&str, ToolFormat, &str)] = &[
    ("glm4", ToolFormat::Glm4, ""),
    ("glm45", ToolFormat::Glm, ""),
    ("glm47", ToolFormat::Glm, ""),
    ("granite4", ToolFormat::Hermes, "<|end_of_text|>\n"),
    ("lfm25", ToolFormat::Lfm2, "<|im_end|>\n"),
    ("ministral3", ToolFormat::Mistral, "<eos>"),
    ("olmo3", ToolFormat::Olmo3, "<eos>"),
];

fn template(name: &str) -> ChatTemplate {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates");
    let source = std::fs::read_to_string(golden.join(format!("{name}.jinja"))).unwrap();
    let mut section = TokenizerSection::default();
    (section.chat_template, section.eos_token) = (Some(source), Some("<eos>".into()));
    ChatTemplate::new(&section, 1 << 10).unwrap()
}

fn tools() -> Vec<Value> {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": ["integer", "null"]}, "unit": {"enum": ["C", "F"]},
        "exact": {"type": "boolean"}, "scale": {"type": "number"}, "tags": {"type": "array"}, "at": {"type": "object"},
    });
    let weather = json!({"type": "object", "properties": properties, "required": ["city"]});
    vec![tool("weather", &weather), tool("clock", &json!({"type": "object", "properties": {}}))]
}

/// What the template has as the assistant's answer of `content` and `calls`, behind a question.
fn written(template: &ChatTemplate, end: &str, content: &str, calls: &[(String, Value)]) -> String {
    let question = Message::new("user", "Is it warm?");
    let mut answer = Message::new("assistant", content);
    let call = |(name, arguments): &(String, Value)| json!({"type": "function", "function": {"name": name, "arguments": arguments}});
    answer.fields.insert("tool_calls".into(), calls.iter().map(call).collect());
    let arguments = TemplateArguments::from_iter([("enable_thinking".to_owned(), json!(false))]);
    let prompt = template.render_with_tools(std::slice::from_ref(&question), &tools(), &arguments).unwrap();
    let whole = template.render_history(&[question, answer], &tools(), &arguments).unwrap();
    let reply = whole.strip_prefix(&prompt).and_then(|reply| reply.strip_suffix(end));
    reply.unwrap_or_else(|| panic!("{prompt:?} and {end:?} around the answer in {whole:?}")).to_owned()
}

/// A call whose arguments are in `text`, as JSON.
fn json_of(text: &str, end: &str) -> String {
    let opener = if end == "}" { "" } else { "[TOOL_CALLS][" };
    format!("{opener}{{\"name\": \"weather\", \"arguments\": {}{end}", &text[text.find('{').unwrap()..])
}

fn call(name: &str, arguments: Value) -> (String, Value) {
    (name.to_owned(), arguments)
}

#[test]
fn calls_that_a_template_writes_are_accepted_and_read_back() {
    let tools = tools();
    let full = json!({
        "city": "New Rome", "days": 2, "unit": "C", "exact": true, "scale": 1e-7, "tags": ["a", -3, false],
        "at": {"lat": -2.5, "near": null, "sure": true},
    });
    let both = [call("weather", full), call("clock", json!({}))];
    for (name, kind, end) in FAMILIES {
        let template = template(name);
        let mut format = template.reply_format(true);
        assert_eq!(format.tools, Some(*kind), "{name}");
        format.thinks = None;
        let accepted = |begun: &str, text: &str| {
            let tools: Vec<&Value> = tools.iter().collect();
            accepts(Constraint::of_calls(vocabulary(), &tools, &format, begun, false).unwrap(), text, true)
        };
        for content in ["", "I will look."] {
            let text = written(&template, end, content, &both);
            let (found, before) = calls(&tools, &format, &text);
            assert_eq!((found, before.trim()), (both.to_vec(), content), "{name}: {text}");
            assert!(accepted("", &text), "{name}: {text}");
        }
        for wrong in [json!({"city": "Rome", "days": "many"}), json!({"city": "Rome", "unit": "K"}), json!({"days": 2})]
        {
            let text = written(&template, end, "", &[call("weather", wrong)]);
            assert!(!accepted("", &text), "{name}: {text}");
        }
        // What the prompt begins is how the template goes on.
        let text = written(&template, end, "", &[call("weather", json!({"city": "Rome", "days": null}))]);
        for begun in [None, Some("weather")].map(|tool| format.call_beginning(tool).unwrap()) {
            // JSON may take the place of what the template writes.
            let text = match kind {
                ToolFormat::Glm4 if begun.ends_with("\n{") => text.replace("weather \n", "weather\n"),
                ToolFormat::Glm4 => json_of(&text, "}"),
                ToolFormat::Mistral => json_of(&text, "}]"),
                _ => text.clone(),
            };
            let rest = text.trim_start().strip_prefix(&begun);
            assert!(rest.is_some_and(|rest| accepted(&begun, rest)), "{name}: {begun:?} of {text}");
        }
    }
}
