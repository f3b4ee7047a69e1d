//! What may be written under constraints, letter by letter.

use serde_json::json;
use unicorn_text::unicorn_runtime::{HostSampling, Sampling};
use unicorn_text::{TokenSampler, Tokenizer, TokenizerSection};

use super::*;
use crate::sampler::ReplySampler;

/// The vocabulary with Gemma 4's mark.
pub(super) fn vocabulary() -> Arc<Vocabulary> {
    vocabulary_with(&[MARK])
}

/// A token for each character from the space to the tilde, a line break, a stop token and `marks`.
pub(super) fn vocabulary_with(marks: &[&str]) -> Arc<Vocabulary> {
    let mut tokens: Vec<String> = (b' '..=b'~').map(|byte| char::from(byte).to_string()).collect();
    tokens.push("\n".to_owned());
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let special = (96..).zip(["<end>"].iter().chain(marks));
    let added = special.map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    let json = json!({
        "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "normalizer": null, "post_processor": null, "pre_tokenizer": null,
        "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let section = TokenizerSection { tokenizer_json: json.to_string(), ..TokenizerSection::default() };
    Arc::new(Vocabulary::new(&Tokenizer::new(&section).unwrap(), 97 + marks.len() as u32, &[96]))
}

const MARK: &str = "<|\"|>";
const DEEPSEEK: [&str; 5] = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

fn tokens(mut text: &str, marks: &[&str]) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some(character) = text.chars().next() {
        let mark = marks.iter().position(|mark| text.starts_with(mark));
        text = &text[mark.map_or(character.len_utf8(), |mark| marks[mark].len())..];
        tokens.push(match (mark, character) {
            (Some(mark), _) => 97 + mark as u32,
            (None, '\n') => 95,
            (None, character) => character as u32 - 32,
        });
    }
    tokens
}

/// Whether a text can be written; the stop token ends it where `ends`.
pub(super) fn accepts(constraint: Constraint, text: &str, ends: bool) -> bool {
    accepts_with(&[MARK], constraint, text, ends)
}

/// The same of a constraint whose vocabulary has `marks`.
pub(super) fn accepts_with(marks: &[&str], mut constraint: Constraint, text: &str, ends: bool) -> bool {
    let mut takes = |token: u32| {
        let allowed = constraint.allowed().unwrap().is_none_or(|mask| mask.is_allowed(token));
        allowed && constraint.observe(token).is_ok()
    };
    tokens(text, marks).into_iter().all(&mut takes) && (!ends || takes(96))
}

fn whole(structure: Structure) -> Constraint {
    Constraint::whole(vocabulary(), &structure, Start::at_once()).map_err(|error| error.message).unwrap()
}

#[test]
fn a_reply_matches_a_schema_an_expression_a_choice_or_a_grammar() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let schema = || whole(Structure::Schema(schema.clone()));
    assert!(accepts(schema(), "{\"a\": 12}", true) && !accepts(schema(), "{\"a\": 12", true));
    assert!(!accepts(schema(), "{\"a\": \"", false) && !accepts(schema(), "x", false));
    let regex = || whole(Structure::Regex("[0-9]{3}-x*".into()));
    assert!(accepts(regex(), "123-xx", true) && !accepts(regex(), "12-", false));
    let choice = || whole(Structure::Choice(vec!["yes".into(), "no \"way\"".into()]));
    assert!(accepts(choice(), "yes", true) && accepts(choice(), "no \"way\"", true) && !accepts(choice(), "ye", true));
    let lark = || whole(Structure::Lark("start: \"a\" b\nb: \"(\" b? \")\"".into()));
    assert!(accepts(lark(), "a(())", true) && !accepts(lark(), "a(()", true));
    let gbnf = || whole(Structure::from_grammar("root ::= \"a\" b\nb ::= \"(\" b? \")\"".into()).unwrap());
    assert!(accepts(gbnf(), "a(())", true) && !accepts(gbnf(), "a(()", true) && !accepts(gbnf(), "b", false));
}

#[test]
fn what_is_no_grammar_is_an_error_of_one_line() {
    for structure in [
        Structure::Regex("(".into()),
        Structure::Lark("start: undefined_rule".into()),
        Structure::Schema(json!({"type": "no such type"})),
    ] {
        let made = Constraint::whole(vocabulary(), &structure, Start::at_once());
        let error = made.err().unwrap_or_else(|| panic!("{structure:?}"));
        assert!(!error.message.is_empty() && !error.message.contains('\n'), "{}", error.message);
    }
}

/// Schemas with more members or alternatives than a grammar may have: an error for this reply, and nothing to another one's.
#[test]
fn a_schema_that_is_too_large_is_an_error_and_the_next_reply_has_its_structure() {
    let vocabulary = vocabulary();
    let made = |structure: &Structure| Constraint::whole(vocabulary.clone(), structure, Start::at_once());
    let members = (0..100_000).map(|number| (format!("p{number}"), json!({"type": "integer"})));
    let alternatives: Vec<Value> = (0..200_000).map(|number| json!({"const": number})).collect();
    for schema in [
        json!({"type": "object", "properties": members.collect::<serde_json::Map<_, _>>()}),
        json!({"anyOf": alternatives}),
    ] {
        let error = made(&Structure::Schema(schema)).err().expect("it is too large");
        assert!(error.message.contains("too large") && !error.message.contains('\n'), "{}", error.message);
        assert!(accepts(made(&Structure::Regex("[0-9]+".into())).ok().unwrap(), "12", true));
    }
}

#[test]
fn reasoning_is_free_and_the_answer_is_not() {
    let format = || {
        let start = Start { texts: vec!["</think>"], optional: None };
        Constraint::whole(vocabulary(), &Structure::Regex("[0-9]+".into()), start).ok().unwrap()
    };
    assert!(accepts(format(), "let me < think</think>12", true));
    assert!(!accepts(format(), "well</think>a", false));
}

#[test]
fn a_reply_that_may_reason_does_so_before_its_answer() {
    let mut format = ReplyFormat::default();
    format.thinks = Some(false);
    let reply = |text: &str, ends| {
        let structure = Structure::Regex("[0-9]+".into());
        let constraint = Constraint::whole(vocabulary(), &structure, Start::of_answer(&format));
        accepts(constraint.map_err(|error| error.message).unwrap(), text, ends)
    };
    assert!(reply("12", true) && reply("<think>why 1 </think>12", true));
    for wrong in ["a", "<a", "<think>why</think>a", "<think>why</think>12<think>", "1<"] {
        assert!(!reply(wrong, false), "{wrong}");
    }
    // Behind a prompt that ends with the reasoning of a request without one.
    let behind = format.clone().behind("<|im_start|>assistant\n<think>\n\n</think>\n\n");
    let structure = Structure::Regex("[0-9]+".into());
    let answer = Constraint::whole(vocabulary(), &structure, Start::of_answer(&behind)).map_err(|error| error.message);
    let answer = answer.unwrap();
    assert!(accepts(answer.clone(), "12", true) && !accepts(answer, "<think>why</think>12", true));
}

fn calls(kind: ToolFormat, beginning: &str) -> Constraint {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let mut format = ReplyFormat::default();
    format.tools = Some(kind);
    Constraint::of_calls(vocabulary(), &[&tool], &format, beginning, false).unwrap()
}

#[test]
fn the_arguments_of_a_call_match_its_schema_and_other_text_is_free() {
    let hermes = || calls(ToolFormat::Hermes, "");
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    assert!(accepts(hermes(), &format!("Sure. {call}{call} {{\"x\": 1}}"), true));
    assert!(!accepts(hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"town\"", false));
    assert!(accepts(hermes(), "<tool_call>{\"name\": \"g\", \"arguments\": {\"town\": 1}}", false));
    assert!(!accepts(hermes(), "<tool_call>{\"name\":\"f\",\"arguments\":{\"city\": 1", false));
    let llama = || calls(ToolFormat::Llama, "");
    assert!(accepts(llama(), "{\"name\": \"f\", \"parameters\": {\"city\": \"Rome\"}}", true));
    assert!(!accepts(llama(), "{\"name\": \"f\", \"parameters\": {\"city\": \"Rome\", ", false));
    let list = "[{\"name\": \"f\", \"arguments\": {\"city\": \"a\"}}, {\"name\": \"f\", \"arguments\": {";
    for (kind, opener) in [
        (ToolFormat::Mistral, "[TOOL_CALLS]"),
        (ToolFormat::Granite, "<|tool_call|>"),
        (ToolFormat::Granite, "Sure. <tool_call> "),
    ] {
        assert!(accepts(calls(kind, ""), &format!("{opener}{list}\"city\": \"\"}}}}]"), true));
        assert!(!accepts(calls(kind, ""), &format!("{opener}{list}\"a"), false));
    }
}

#[test]
fn a_call_that_reasoning_mentions_is_free() {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let reply = |kind: ToolFormat, thinks: bool, text: &str| {
        let mut format = ReplyFormat::default();
        (format.tools, format.thinks) = (Some(kind), Some(thinks));
        accepts(Constraint::of_calls(vocabulary(), &[&tool], &format, "", true).unwrap(), text, true)
    };
    let mistral = |value: &str| format!("[TOOL_CALLS]f[CALL_ID]1[ARGS]{{\"a\": {value}}}");
    let lfm2 = |value: &str| format!("<|tool_call_start|>[f(a={value})]<|tool_call_end|>");
    let json = |value: &str| format!("{{\"name\": \"f\", \"arguments\": {{\"a\": {value}}}}}");
    for (kind, call) in [
        (ToolFormat::Mistral, &mistral as &dyn Fn(&str) -> String),
        (ToolFormat::Lfm2, &lfm2),
        (ToolFormat::Json, &json),
    ] {
        for (thinks, opener) in [(false, "<think>"), (true, "")] {
            let thought = format!("{opener}I could write {} or {}.</think>", call("x"), call("1"));
            assert!(reply(kind, thinks, &format!("{thought}{}", call("1"))), "{kind:?}");
            assert!(!reply(kind, thinks, &format!("{thought}{}", call("x"))), "{kind:?}");
        }
        assert!(reply(kind, false, &call("1")) && !reply(kind, false, &call("x")), "{kind:?}");
    }
    let deepseek = |value: &str| {
        let call = format!(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{{\"a\": {value}}}\n```<｜tool▁call▁end｜>"
        );
        format!("<｜tool▁calls▁begin｜>{call}\n{call}<｜tool▁calls▁end｜>")
    };
    let is_written = |value: &str| {
        let mut format = ReplyFormat::default();
        format.tools = Some(ToolFormat::DeepSeek);
        let constraint = Constraint::of_calls(vocabulary_with(&DEEPSEEK), &[&tool], &format, "", false).unwrap();
        accepts_with(&DEEPSEEK, constraint, &deepseek(value), true)
    };
    assert!(is_written("1") && !is_written("x"));
    let tagged = |value: &str| {
        format!("Hm.\n<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>")
    };
    assert!(reply(ToolFormat::Tagged, true, &tagged("1")) && !reply(ToolFormat::Tagged, true, &tagged("x")));
}

#[test]
fn gemma_s_calls_are_written_in_their_own_syntax() {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "inner": {"type": "object", "properties": {"on": {"type": ["boolean", "null"]}}},
        "unit": {"enum": ["C", "F", 1]},
    }, "required": ["city"]});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let gemma = |beginning: &str| {
        let mut format = ReplyFormat::default();
        format.tools = Some(ToolFormat::Gemma4);
        Constraint::of_calls(vocabulary(), &[&tool], &format, beginning, false).unwrap()
    };
    let whole =
        r#"<|tool_call>call:f{city:<|"|>Rome, {x<|"|>,days:[1,-20],inner:{on:null},unit:<|"|>C<|"|>}<tool_call|>"#;
    let least = r#"<|tool_call>call:f{city:<|"|><|"|>}<tool_call|>"#;
    assert!(accepts(gemma(""), &format!("Sure. {whole}{least} done"), true));
    let mut format = ReplyFormat::default();
    format.tools = Some(ToolFormat::Gemma4);
    let only =
        |text: &str| accepts(Constraint::of_calls(vocabulary(), &[&tool], &format, "", true).unwrap(), text, true);
    assert!(only(least) && only(&format!("{whole}<|tool_response>")) && !only(&format!("{least}{least}")));
    for wrong in [
        "call:f{days",
        "call:f{town",
        "call:f{city:1",
        r#"call:f{city:<|"|>a<|"|>,unit:<|"|>K"#,
        r#"call:f{city:<|"|>a<|"|>,days:[1.5"#,
        r#"call:f{city:<|"|>a<|"|>,inner:{on:1"#,
        r#"call:f{city:<|"|>a<|"|>,unit:1,days"#,
    ] {
        assert!(!accepts(gemma(""), &format!("<|tool_call>{wrong}"), false), "{wrong}");
    }
    // Unknown tools are free; those that have to be called are not.
    assert!(accepts(gemma(""), "<|tool_call>call:g{town:1}", false));
    assert!(accepts(gemma("<|tool_call>call:f{"), r#"city:<|"|>a<|"|>}<tool_call|>"#, false));
    assert!(!accepts(gemma("<|tool_call>call:f{"), "town", false));
    assert!(
        accepts(gemma("<|tool_call>call:"), r#"f{city:<|"|>a<|"|>}"#, false)
            && !accepts(gemma("<|tool_call>call:"), "g", false)
    );
}

#[test]
fn a_schema_that_refers_to_itself_or_has_no_types_leaves_any_value() {
    for parameters in [
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
        json!({"type": "object", "properties": {"a": {"type": "odd"}, "b": {"$ref": "#/nowhere"}, "c": {"enum": [[1]]}}}),
        json!({"type": "object"}),
        json!(true),
    ] {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        let mut format = ReplyFormat::default();
        format.tools = Some(ToolFormat::Gemma);
        let constraint = Constraint::of_calls(vocabulary(), &[&tool], &format, "", false).unwrap();
        let text = "<start_function_call>call:f{a:{a:{}}}<end_function_call>";
        assert!(accepts(constraint, text, true), "{parameters}");
        let constraint = Constraint::of_calls(vocabulary(), &[&tool], &format, "", false).unwrap();
        let text = "<start_function_call>call:f{a:{a:<escape>x, < }<escape>}}<end_function_call>";
        assert_eq!(accepts(constraint, text, true), !parameters.to_string().contains("\"#\""), "{parameters}");
    }
}

#[test]
fn a_call_that_has_to_be_made_goes_on_from_the_prompt() {
    let named = || calls(ToolFormat::Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {");
    assert!(accepts(named(), "\"city\": \"Rome\"}}\n</tool_call>", true) && !accepts(named(), "\"x", false));
    let open = || calls(ToolFormat::Hermes, "<tool_call>\n{\"name\": \"");
    assert!(accepts(open(), "f\", \"arguments\": {\"city\": \"\"}}", false) && !accepts(open(), "g", false));
}

#[test]
fn a_reply_is_an_answer_that_matches_or_a_call() {
    let arguments = json!({"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": arguments}});
    let schema = json!({
        "$defs": {"city": {"type": "string"}}, "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}},
        "required": ["city"], "additionalProperties": false,
    });
    let made = |structure: &Structure, kind: ToolFormat, thinks: Option<bool>| {
        let mut format = ReplyFormat::default();
        (format.tools, format.thinks) = (Some(kind), thinks);
        Constraint::whole_or_calls(vocabulary(), structure, &[&tool], &format, false).map_err(|error| error.message)
    };
    let answer = Structure::Schema(schema.clone());
    let hermes = |thinks| made(&answer, ToolFormat::Hermes, thinks).unwrap();
    for thought in ["", "{\"x <tool_call> </think>"] {
        let accepts = |text: &str, ends| {
            accepts(hermes((!thought.is_empty()).then_some(true)), &format!("{thought}{text}"), ends)
        };
        assert!(accepts("{\"city\": \"Oslo\"}", true) && !accepts("{\"city\": \"Oslo\"", true));
        assert!(accepts("<tool_call>\n{\"name\": \"look\", \"arguments\": {\"days\": 3}}\n</tool_call>", true));
        assert!(accepts(
            "<tool_call><function=look>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            true
        ));
        assert!(!accepts("Hello", false) && !accepts("<tool_bell", false) && !accepts("{\"days\": 3}", false));
        assert!(!accepts("<tool_call>\n{\"name\": \"look\", \"arguments\": {\"days\": \"", false));
    }
    let bare = |text: &str, ends| accepts(made(&answer, ToolFormat::Json, None).unwrap(), text, ends);
    assert!(bare("{\"city\": \"Oslo\"}", true) && bare("{\"name\": \"look\", \"arguments\": {\"days\": 3}}", true));
    assert!(!bare("{\"name\": \"other", false) && !bare("{\"name\": \"look\", \"arguments\": {\"days\": \"", false));

    let refused = |structure: &Structure| made(structure, ToolFormat::Llama, None).err().unwrap();
    assert!(refused(&Structure::Regex("a+".into())).starts_with("expected a JSON schema beside tools"));
    let recursive = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
    assert!(refused(&Structure::Schema(recursive)).starts_with("expected each $ref beside tools"));
    assert!(made(&Structure::Regex("a+".into()), ToolFormat::Hermes, None).is_ok());
}

#[test]
fn a_channel_decides_between_an_answer_and_a_call() {
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}});
    let mut format = ReplyFormat::default();
    (format.tools, format.harmony) = (Some(ToolFormat::Json), true);
    let reply = |text: &str| {
        let answer = Structure::Regex("[0-9]+".into());
        let constraint = Constraint::whole_or_calls(vocabulary(), &answer, &[&tool], &format, false);
        accepts(constraint.map_err(|error| error.message).unwrap(), text, false)
    };
    let analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    assert!(reply(&format!("{analysis}<|channel|>final<|message|>12")));
    assert!(!reply(&format!("{analysis}<|channel|>final<|message|>a")));
    let call = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>";
    assert!(reply(&format!("{analysis}{call}{{\"a\": 1}}")) && !reply(&format!("{analysis}{call}{{\"a\": \"")));
}

#[test]
fn the_device_gets_the_tokens_among_which_the_host_would_sample() {
    let constraint = || Some(whole(Structure::Regex("[a-c]{2}".into())));
    let greedy = Sampling::default();
    let sampler = || ReplySampler::new(&greedy, HostSampling::default(), constraint(), None).unwrap();
    let (a, d) = (u32::from(b'a' - b' '), u32::from(b'd' - b' '));
    let mut masked = sampler();
    assert!(masked.applies() && masked.is_masked() && !masked.needs_logits());
    let mut allowed = [0; 4];
    masked.mask(&mut allowed).unwrap();
    let is_allowed = |token: u32| allowed[token as usize / 32] >> (token % 32) & 1 == 1;
    assert_eq!((0..97).filter(|&token| is_allowed(token)).collect::<Vec<_>>(), [a, a + 1, a + 2]);
    // A device that does not keep to it is noticed.
    assert!(masked.observe(d).unwrap_err().contains("no token may follow"));
    let mut logits = vec![0.0; 97];
    (logits[d as usize], logits[a as usize + 1]) = (9.0, 1.0);
    assert_eq!(sampler().sample(&[], &mut logits).unwrap(), a + 1);
    // What the device's sampler lacks stays on the host.
    let further = HostSampling::default().with(|further| further.frequency_penalty = 1.0);
    let on_host = ReplySampler::new(&greedy, further, constraint(), None).unwrap();
    assert!(on_host.applies() && !on_host.is_masked() && on_host.needs_logits());
}
