//! Replies of every format, whole and in pieces of every size, and replies that only resemble one.

use proptest::prelude::*;

use super::*;

/// Reasoning, content, and names and arguments of the calls.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reply {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
}

fn add(reply: &mut Reply, deltas: Vec<Delta>) {
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => reply.reasoning += &text,
            Delta::Content(text) => reply.content += &text,
            Delta::CallBegin { index, name } => {
                assert_eq!(index as usize, reply.calls.len());
                reply.calls.push((name, String::new()));
            }
            Delta::CallArguments { index, json } => reply.calls[index as usize].1 += &json,
        }
    }
}

const TOOLS: [&str; 2] = ["get_weather", "add"];

fn read(format: &ReplyFormat, pieces: impl IntoIterator<Item = impl AsRef<str>>) -> Reply {
    let (mut parser, mut reply) = (ReplyParser::new(format, TOOLS), Reply::default());
    for piece in pieces {
        add(&mut reply, parser.push(piece.as_ref()));
    }
    add(&mut reply, parser.finish());
    reply
}

/// The reply to `text` as a whole, which is the same however it is cut.
fn whole(format: &ReplyFormat, text: &str) -> Reply {
    let reply = read(format, [text]);
    let letters: Vec<String> = text.chars().map(String::from).collect();
    for size in [1, 2, 3, 7] {
        assert_eq!(read(format, letters.chunks(size).map(|letters| letters.concat())), reply, "{text:?} by {size}");
    }
    reply
}

fn tools(format: ToolFormat) -> ReplyFormat {
    ReplyFormat { tools: Some(format), ..ReplyFormat::default() }
}

fn reply(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Reply {
    let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect();
    Reply { reasoning: reasoning.to_owned(), content: content.to_owned(), calls }
}

const WEATHER: (&str, &str) = ("get_weather", r#"{"city": "Paris"}"#);

#[test]
fn hermes_calls_stand_between_tags() {
    let format = tools(ToolFormat::Hermes);
    let one = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    assert_eq!(whole(&format, one), reply("", "", &[WEATHER]));
    assert_eq!(whole(&format, &format!("I look.\n\n{one}\n{one}\n")), reply("", "I look.", &[WEATHER, WEATHER]));
    assert_eq!(whole(&format, &format!("{one}\n Done.")), reply("", "Done.", &[WEATHER]));
    let tagged = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(whole(&format, tagged), reply("", "", &[("add", r#"{"a":1,"b":"two\nlines"}"#)]));
}

#[test]
fn llama_calls_are_the_whole_reply() {
    let format = tools(ToolFormat::Llama);
    let json = r#"{"name": "get_weather", "parameters": {"city": "Paris"}}"#;
    for text in [json.to_owned(), format!("<|python_tag|>{json}"), format!("<|python_tag|>{json}<|eom_id|>")] {
        assert_eq!(whole(&format, &text), reply("", "", &[WEATHER]), "{text}");
    }
    assert_eq!(whole(&format, &format!("{json}; {json}")), reply("", "", &[WEATHER, WEATHER]));
    let pythonic = r#"[get_weather(city="Paris", days=[1, 2.5], deep={'a': None}), add()]"#;
    let calls = [("get_weather", r#"{"city":"Paris","days":[1,2.5],"deep":{"a":null}}"#), ("add", "{}")];
    assert_eq!(whole(&format, pythonic), reply("", "", &calls));
}

#[test]
fn a_coder_may_leave_out_what_opens_its_calls() {
    let format = tools(ToolFormat::Tagged);
    let call = |name: &str, a: &str| format!("<function={name}>\n<parameter=a>\n{a}\n</parameter>\n</function>");
    let both = format!("I add.\n{}\n</tool_call>\n<tool_call>\n{}\n</tool_call>", call("add", "1"), call("add", "x"));
    let calls = [("add", r#"{"a":1}"#), ("add", r#"{"a":"x"}"#)];
    assert_eq!(whole(&format, &both), reply("", "I add.", &calls));
    assert_eq!(whole(&format, &format!("{} Done.", call("add", "1"))), reply("", "Done.", &calls[..1]));
    for text in [call("unknown", "1"), "#include <functional>, <function=add and <function".to_owned()] {
        assert_eq!(whole(&format, &text), reply("", &text, &[]));
    }
    // A function that is no tool is not held back.
    let mut parser = ReplyParser::new(&format, TOOLS);
    let pushed = parser.push("<tool_call><function=unknown> ask");
    assert_eq!(pushed, ["<tool_call><", "function=unknown> ask"].map(|text| Delta::Content(text.into())));
}

#[test]
fn a_call_in_qwen_s_tags_ends_reasoning() {
    let format = ReplyFormat { thinks: Some(true), ..tools(ToolFormat::Tagged) };
    let call = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
    let calls = [("add", r#"{"a":1}"#)];
    assert_eq!(whole(&format, &format!("I add.\n{call}")), reply("I add.\n", "", &calls));
    assert_eq!(whole(&format, call), reply("", "", &calls));
    assert_eq!(whole(&format, &format!("Hm.{}", call.replace('\n', ""))), reply("Hm.", "", &calls));
    let mention = "A <tool_call> or <tool_call>\n<function=unknown> or <function=add>, or <tool_call>";
    assert_eq!(whole(&format, &format!("{mention}</think>\n\n{call}")), reply(mention, "", &calls));
    // JSON's calls are written behind the reasoning.
    let hermes = ReplyFormat { thinks: Some(true), ..tools(ToolFormat::Hermes) };
    assert_eq!(whole(&hermes, call), reply(call, "", &[]));
}

#[test]
fn values_between_tags_have_the_types_of_their_schema() {
    let parameters = serde_json::json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "note": {"type": ["string", "null"]},
    }});
    let tool = serde_json::json!({"type": "function", "function": {"name": "add", "parameters": parameters}});
    let read = |text: &str| {
        let (mut parser, mut reply) =
            (ReplyParser::of_tools(&tools(ToolFormat::Tagged), std::slice::from_ref(&tool)), Reply::default());
        text.split_inclusive(' ').for_each(|piece| add(&mut reply, parser.push(piece)));
        add(&mut reply, parser.finish());
        reply
    };
    let call = |values: &[(&str, &str)]| {
        let values: Vec<String> =
            values.iter().map(|(name, value)| format!("<parameter={name}>\n{value}\n</parameter>\n")).collect();
        format!("<tool_call>\n<function=add>\n{}</function>\n</tool_call>", values.concat())
    };
    let first = call(&[("city", "5"), ("days", "5"), ("note", "None")]);
    // What ends a call elsewhere is a part of the value here.
    let second = call(&[("city", "\n</function>\n</tool_call> <parameter=days>1 ")]);
    let expected = [
        ("add", r#"{"city":"5","days":5,"note":null}"#),
        ("add", r#"{"city":"\n</function>\n</tool_call> <parameter=days>1 "}"#),
    ];
    assert_eq!(read(&format!("Sure. {first}\n{second}")), reply("", "Sure.", &expected));
    // A model that leaves out a closer is read all the same.
    let cut = "<tool_call><function=add><parameter=city>a\n<parameter=days>2</function></tool_call>";
    assert_eq!(read(cut), reply("", "", &[("add", r#"{"city":"a","days":2}"#)]));
}

#[test]
fn glm_s_calls_have_a_tag_for_each_key_and_value() {
    let format = tools(ToolFormat::Glm);
    let keyed = |name: &str, values: &[(&str, &str)], line: &str| {
        let values: Vec<String> = values
            .iter()
            .map(|(key, value)| format!("<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}"))
            .collect();
        format!("<tool_call>{name}{line}{}</tool_call>", values.concat())
    };
    for line in ["\n", ""] {
        let weather = keyed("get_weather", &[("city", "Paris"), ("days", "[1, null]"), ("exact", "true")], line);
        let odd = keyed("add", &[("a", " </tool_call>\n<arg_key>x"), ("b", "")], line);
        let none = keyed("add", &[], line);
        let calls = [
            ("get_weather", r#"{"city":"Paris","days":[1,null],"exact":true}"#),
            ("add", r#"{"a":" </tool_call>\n<arg_key>x","b":""}"#),
            ("add", "{}"),
        ];
        let text = format!("I look.\n{weather}\n{odd}{none}");
        assert_eq!(whole(&format, &text), reply("", "I look.", &calls));
    }
    let json = format!("<tool_call>{{\"name\": \"get_weather\", \"arguments\": {}}}</tool_call>", WEATHER.1);
    assert_eq!(whole(&format, &json), reply("", "", &[WEATHER]));
    let cut = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1<arg_key>b</arg_key>\n<arg_value>2</tool_call>";
    assert_eq!(whole(&format, cut), reply("", "", &[("add", r#"{"a":1,"b":2}"#)]));
    // A name that is none is not held back.
    let mut parser = ReplyParser::new(&format, TOOLS);
    assert_eq!(parser.push("<tool_call> ask"), ["<tool_call>", " ask"].map(|text| Delta::Content(text.into())));
}

#[test]
fn python_s_texts_have_python_s_escapes() {
    for format in [ToolFormat::Pythonic, ToolFormat::Llama].map(tools) {
        let call =
            r#"[add(a="x)]'\"\n\d\x41\u00e9\U0001F600\ud83d\ude00\ud83d", b='it\'s "', c=(1, [True, None, -2.5e3]))]"#;
        let arguments = r#"{"a":"x)]'\"\n\\dAé😀😀�","b":"it's \"","c":[1,[true,null,-2500.0]]}"#;
        for text in [call.to_owned(), format!("<|python_start|>{call}<|python_end|>")] {
            assert_eq!(whole(&format, &text), reply("", "", &[("add", arguments)]));
        }
        // A list that does not call a tool is no call, and is not held back until its end.
        assert_eq!(read(&format, ["[add"]), reply("", "[add", &[]));
        let mut parser = ReplyParser::new(&format, TOOLS);
        assert_eq!(parser.push("[add it's"), [Delta::Content("[add it's".into())]);
    }
}

#[test]
fn lfm2_calls_are_python_s_between_two_tokens() {
    let format = tools(ToolFormat::Lfm2);
    let list =
        "<|tool_call_start|>[get_weather(city='Paris ]', days=[1, None]), add(at={\"near\": null})]<|tool_call_end|>";
    let calls = [("get_weather", r#"{"city":"Paris ]","days":[1,null]}"#), ("add", r#"{"at":{"near":null}}"#)];
    assert_eq!(whole(&format, list), reply("", "", &calls));
    assert_eq!(whole(&format, &format!("I look. {list}\n{list} Done.")).calls.len(), 4);
    assert_eq!(whole(&format, &format!("I look.\n{list}Done.")), reply("", "I look.\nDone.", &calls));
    let json = r#"<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|tool_call_end|>"#;
    assert_eq!(whole(&format, json), reply("", "", &[WEATHER]));
    assert_eq!(whole(&format, "<|tool_call_start|>[add()"), reply("", "<|tool_call_start|>[add()", &[]));
    // Without its token, a list is text.
    assert_eq!(whole(&format, "[add(a=1)]"), reply("", "[add(a=1)]", &[]));
    assert_eq!(format.call_beginning(Some("add")).as_deref(), Some("<|tool_call_start|>[add("));
}

#[test]
fn olmo_3_calls_are_python_s_on_lines() {
    let format = tools(ToolFormat::Olmo3);
    let text = "I look. <function_calls>get_weather(city=\"Paris )\\n</function_calls>\", days=[1, null, -1e-07])\nadd()\n</function_calls>";
    let calls = [("get_weather", r#"{"city":"Paris )\n</function_calls>","days":[1,null,-1e-7]}"#), ("add", "{}")];
    assert_eq!(whole(&format, text), reply("", "I look.", &calls));
    let python = "<function_calls>\nadd(a={'x': True}, b=None)</function_calls>\n<function_calls>add(a=1)</function_calls> Done.";
    let calls = [("add", r#"{"a":{"x":true},"b":null}"#), ("add", r#"{"a":1}"#)];
    assert_eq!(whole(&format, python), reply("", "Done.", &calls));
    assert_eq!(whole(&format, "<function_calls>add(a=1"), reply("", "<function_calls>add(a=1", &[]));
}

#[test]
fn glm_4_calls_are_a_name_and_json_on_the_next_line() {
    let format = tools(ToolFormat::Glm4);
    for name in ["get_weather", "\nget_weather", "get_weather "] {
        let call = format!("{name}\n{}", WEATHER.1);
        assert_eq!(whole(&format, &call), reply("", "", &[WEATHER]));
        let both = format!("{call}<|assistant|>add\n{{}}");
        assert_eq!(whole(&format, &both), reply("", "", &[WEATHER, ("add", "{}")]));
        let behind = format!("I look.\n<|assistant|>{call}");
        assert_eq!(whole(&format, &behind), reply("", "I look.", &[WEATHER]));
    }
    let json = r#"{"name": "get_weather", "arguments": {"city": "Paris"}}"#;
    assert_eq!(whole(&format, json), reply("", "", &[WEATHER]));
    for text in ["add", "add\n", "add up\n{}", "adding\n{}", "add\nup {}", "get_weather {}"] {
        assert_eq!(whole(&format, text).content.trim_end(), text.trim_end());
    }
    assert_eq!(format.call_beginning(Some("add")).as_deref(), Some("add\n{"));
}

#[test]
fn mistral_calls_follow_their_marker() {
    let format = tools(ToolFormat::Mistral);
    let list =
        r#"[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "add", "arguments": {}}]"#;
    assert_eq!(whole(&format, list), reply("", "", &[WEATHER, ("add", "{}")]));
    let named = r#"[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]add{"a": 1}"#;
    assert_eq!(whole(&format, named), reply("", "", &[WEATHER, ("add", r#"{"a": 1}"#)]));
    let with_ids =
        r#"Sure.[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}[TOOL_CALLS]add[CALL_ID]2[ARGS]{}"#;
    assert_eq!(whole(&format, with_ids), reply("", "Sure.", &[WEATHER, ("add", "{}")]));
    // Text behind a call is not held back.
    let mut parser = ReplyParser::new(&format, TOOLS);
    parser.push("[TOOL_CALLS]add[ARGS]{}");
    assert_eq!(parser.push(" It is"), [Delta::Content("It is".into())]);
}

#[test]
fn deepseek_s_calls_have_a_name_before_json() {
    let format = ReplyFormat { thinks: Some(true), ..tools(ToolFormat::DeepSeek) };
    let v31 = |name: &str, json: &str| format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}<｜tool▁call▁end｜>");
    let r1 = |name: &str, json: &str| v31("function", &format!("{name}\n```json\n{json}\n```"));
    for call in [&v31 as &dyn Fn(&str, &str) -> String, &r1] {
        let calls = format!("{}\n{}", call(WEATHER.0, WEATHER.1), call("add", "{}"));
        let text = format!("Hm.</think>I look.<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>");
        assert_eq!(whole(&format, &text), reply("Hm.", "I look.", &[WEATHER, ("add", "{}")]));
        let unknown = format!("<｜tool▁calls▁begin｜>{}", call("unknown", "{}"));
        assert_eq!(whole(&format, &format!("</think>{unknown}")), reply("", &unknown, &[]));
    }
    // Where the template describes no tools, the system message requests JSON.
    let json = r#"{"name": "get_weather", "arguments": {"city": "Paris"}}"#;
    assert_eq!(whole(&format, &format!("Hm.</think>\n\n{json}")), reply("Hm.", "", &[WEATHER]));
}

#[test]
fn gemma_calls_have_a_syntax_of_their_own() {
    let format = tools(ToolFormat::Gemma);
    let text =
        "<start_function_call>call:add{a:<escape>x, {y<escape>,b:[1,<escape>z<escape>],c:true}<end_function_call>";
    assert_eq!(whole(&format, text), reply("", "", &[("add", r#"{"a":"x, {y","b":[1,"z"],"c":true}"#)]));
}

#[test]
fn gemma_4_thinks_on_a_channel_and_marks_texts_with_a_token() {
    let format =
        ReplyFormat { thinks: Some(false), marks: ReasoningMarks::ThoughtChannel, ..tools(ToolFormat::Gemma4) };
    let call = r#"<|tool_call>call:add{a:<|"|>x, {y<|"|>,b:{c:[1,<|"|>z<|"|>,{}],d:null}}<tool_call|>"#;
    let arguments = r#"{"a":"x, {y","b":{"c":[1,"z",{}],"d":null}}"#;
    let text = format!("<|channel>thought\nHm.<channel|>{call}{call}<|tool_response>");
    assert_eq!(whole(&format, &text), reply("Hm.", "", &[("add", arguments), ("add", arguments)]));
    assert_eq!(whole(&format, "<|channel>thought\n<channel|>Yes."), reply("", "Yes.", &[]));
    // A channel of another name, or without one, is reasoning, too.
    assert_eq!(whole(&format, "<|channel>Why?<channel|>Yes."), reply("Why?", "Yes.", &[]));
    assert_eq!(whole(&format, "<|channel>thousands"), reply("thousands", "", &[]));
    // The word before a call's name may be missing.
    let short = call.replace("call:", ":");
    assert_eq!(whole(&format, &format!("A: b {short}")), reply("", "A: b", &[("add", arguments)]));
    // Marks of reasoning without a meaning, and reasoning between two parts of the answer.
    let empty = "<|channel>thought<channel|>";
    let channels =
        format!("<|channel>{empty}Yes.<channel|>{empty} And <|channel>thought\nWhy?<channel|>no.{empty}<channel|>");
    for format in [ReplyFormat { tools: None, ..format.clone() }, format.clone()] {
        assert_eq!(whole(&format, &channels), reply("Why?", "Yes. And no.", &[]));
        assert_eq!(whole(&format, "Yes.<|channel>"), reply("", "Yes.<|channel>", &[]));
    }
    assert_eq!(
        whole(&format, r#"<|tool_call>call:get_weather{}<tool_call|>"#),
        reply("", "", &[("get_weather", "{}")])
    );
    assert_eq!(format.clone().behind("<|turn>model\n<|channel>thought\n").thinks, Some(true));
    assert_eq!(format.call_beginning(Some("add")).as_deref(), Some("<|tool_call>call:add{"));
}

#[test]
fn harmony_s_channels_are_reasoning_calls_and_content() {
    let format = ReplyFormat { harmony: true, ..ReplyFormat::default() };
    let thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    let answer = format!("{thought}<|channel|>final<|message|>Yes.<|return|>");
    assert_eq!(whole(&format, &answer), reply("Hm.", "Yes.", &[]));
    let call = format!(
        "{thought}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{}<|call|>",
        WEATHER.1
    );
    assert_eq!(whole(&format, &call), reply("Hm.", "", &[WEATHER]));
    assert_eq!(whole(&format, "Plain text."), reply("", "Plain text.", &[]));
    // A tool may be named without its namespace, those of vendors and others are none.
    let short =
        |name: &str| format!("{thought} to={name}<|channel|>commentary <|constrain|>json<|message|>{}", WEATHER.1);
    assert_eq!(whole(&format, &short("get_weather")), reply("Hm.", "", &[WEATHER]));
    assert_eq!(whole(&format, &short("browser")), reply("Hm.", WEATHER.1, &[]));
    // What the model announces is a line of its own.
    let announced = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
    assert_eq!(whole(&format, announced), reply("", "I look.\nYes.", &[]));
    // The mark between channel and answer is missing.
    for (end, answer) in
        [(" {\"a\": 1}<|return|>", "{\"a\": 1}"), (" Yes.", "Yes."), (" <|constrain|>js", ""), ("", "")]
    {
        assert_eq!(whole(&format, &format!("{thought}<|channel|>final{end}")), reply("Hm.", answer, &[]), "{end}");
    }
}

#[test]
fn content_on_both_sides_of_a_call_is_two_lines() {
    let hermes = "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>";
    let harmony = "<|start|>assistant<|channel|>commentary to=functions.add<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>";
    for (before, after) in [("", ""), (" ", "\n\n"), ("\n", "")] {
        let text = format!("I add.{before}{hermes}{after}{hermes}{after}Done.");
        assert_eq!(
            whole(&tools(ToolFormat::Hermes), &text),
            reply("", "I add.\nDone.", &[("add", "{}"), ("add", "{}")])
        );
    }
    let format = ReplyFormat { harmony: true, ..tools(ToolFormat::Json) };
    let text = format!("<|channel|>commentary<|message|>I add.<|end|>{harmony}Done.");
    assert_eq!(whole(&format, &text), reply("", "I add.\nDone.", &[("add", "{}")]));
}

#[test]
fn reasoning_stands_between_tags_or_ends_with_one() {
    let thinks = |open| ReplyFormat { thinks: Some(open), ..ReplyFormat::default() };
    assert_eq!(whole(&thinks(false), "<think>\nHm.</think>\n\nYes. </think>"), reply("\nHm.", "Yes. </think>", &[]));
    assert_eq!(whole(&thinks(true), "Hm.</think>\n\nYes."), reply("Hm.", "Yes.", &[]));
    assert_eq!(whole(&thinks(false), " No <think> here"), reply("", " No <think> here", &[]));
    assert_eq!(whole(&thinks(true), "Cut o"), reply("Cut o", "", &[]));
    // The prompt ends with the opener, and the reply repeats it.
    assert_eq!(whole(&thinks(true), "\n<think>Hm.<think></think>\nYes."), reply("Hm.<think>", "Yes.", &[]));
    assert_eq!(whole(&thinks(true), " <thin"), reply(" <thin", "", &[]));
    let both = ReplyFormat { thinks: Some(false), ..tools(ToolFormat::Hermes) };
    let text = "<think>Hm.</think>\n<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
    assert_eq!(whole(&both, text), reply("Hm.", "", &[("add", "{}")]));
}

#[test]
fn ministral_thinks_between_brackets() {
    let format = ReplyFormat { thinks: Some(false), marks: ReasoningMarks::Brackets, ..tools(ToolFormat::Mistral) };
    let call = r#"[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}"#;
    for between in ["", "\n\n"] {
        let text = format!("[THINK]Hm. [x] [/THIN{between}[/THINK]{between}");
        let thought = format!("Hm. [x] [/THIN{between}");
        assert_eq!(whole(&format, &format!("{text}{call}")), reply(&thought, "", &[WEATHER]));
        assert_eq!(whole(&format, &format!("{text}Yes. [THINK]")), reply(&thought, "Yes. [THINK]", &[]));
    }
    assert_eq!(whole(&format, "[THIN"), reply("", "[THIN", &[]));
    assert_eq!(format.clone().behind("[/INST][THINK]").thinks, Some(true));
}

#[test]
fn granite_marks_its_calls_and_its_answer() {
    let format =
        ReplyFormat { thinks: Some(false), marks: ReasoningMarks::ThinkAndResponse, ..tools(ToolFormat::Granite) };
    let list = r#"[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"arguments": {}, "name": "add"}]"#;
    let calls = [WEATHER, ("add", "{}")];
    for mark in ["<|tool_call|>", "<|tool_call|> ", "<tool_call>", "<tool_call>\n"] {
        assert_eq!(whole(&format, &format!("{mark}{list}")), reply("", "", &calls));
        assert_eq!(whole(&format, &format!("I look.\n{mark}{list}")), reply("", "I look.", &calls));
    }
    let no_call = r#"<|tool_call|>[{"name": "unknown", "arguments": {}}]"#;
    assert_eq!(whole(&format, no_call), reply("", no_call, &[]));
    for format in [ReplyFormat { tools: None, ..format.clone() }, format] {
        let thought = "<think>Hm.</think>";
        assert_eq!(whole(&format, &format!("{thought}\n<response>Yes. < no </response>")).content.trim(), "Yes. < no");
        assert_eq!(whole(&format, &format!("{thought}<response>\nYes.</respon")), reply("Hm.", "Yes.</respon", &[]));
        assert_eq!(whole(&format, &format!("{thought}Yes. </response>")), reply("Hm.", "Yes. </response>", &[]));
        assert_eq!(whole(&format, "<response>Yes.</response>"), reply("", "Yes.", &[]));
    }
}

#[test]
fn what_only_looks_like_a_call_is_content() {
    for (format, text) in [
        (ToolFormat::Json, r#"{"name": "unknown", "arguments": {}}"#),
        (ToolFormat::Json, r#"[{"answer": [1, 2]}, 3]"#),
        (ToolFormat::Json, r#"{"answer": "cut o"#),
        (ToolFormat::Llama, "[1, 2]"),
        (ToolFormat::Llama, "[add(a=), 2]"),
        (ToolFormat::Llama, "[unknown(a=1)]"),
        (ToolFormat::Pythonic, r#"[add(a="\xZZ")]"#),
        (ToolFormat::Pythonic, "[add(a=1), unknown(b=2)]"),
        (ToolFormat::Glm, "<tool_call>unknown\n</tool_call>"),
        (ToolFormat::Glm, "<tool_call>add\n<arg_key>a</tool_call>"),
        (ToolFormat::Olmo3, "<function_calls>unknown(a=1)</function_calls>"),
        (ToolFormat::Lfm2, "<|tool_call_start|>[unknown(a=1)]"),
        (ToolFormat::Tagged, "<tool_call>\n<function=unknown>\n</function>"),
        (ToolFormat::Hermes, "a < b, <tool_cal and <tool> are text"),
        (ToolFormat::Hermes, "<tool_call>\nnothing"),
        (ToolFormat::Hermes, r#"<tool_call>{"name": 1}"#),
        (ToolFormat::Mistral, "[TOOL_CALLS]unknown[ARGS]{}"),
        (ToolFormat::Gemma, "<start_function_call>call:add{a"),
        (ToolFormat::Gemma4, r#"<|tool_call>call:add{a:<|"|>open}"#),
        (ToolFormat::Gemma4, "<|tool_call>call:add{a:1 b:2}x"),
        (ToolFormat::Gemma4, "<|tool_call>call:unknown{}"),
    ] {
        assert_eq!(whole(&tools(format), text), reply("", text, &[]));
    }
}

#[test]
fn arguments_are_passed_on_before_they_are_whole() {
    let mut parser = ReplyParser::new(&tools(ToolFormat::Hermes), TOOLS);
    let begun = parser.push(r#"<tool_call>{"name": "add", "arguments": {"a": "#);
    let begin = Delta::CallBegin { index: 0, name: "add".into() };
    assert_eq!(begun, [begin, Delta::CallArguments { index: 0, json: r#"{"a": "#.into() }]);
    assert_eq!(parser.push("1}"), [Delta::CallArguments { index: 0, json: "1}".into() }]);
    assert_eq!((parser.push("}</tool_call>"), parser.finish()), (vec![], vec![]));
    // The other order, and arguments that are a text, are read when they are whole.
    let late = r#"{"arguments": "{\"a\": 1}", "name": "add"}"#;
    assert_eq!(whole(&tools(ToolFormat::Json), late), reply("", "", &[("add", r#"{"a": 1}"#)]));
}

/// Parts of replies, in any order.
fn part() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"add\"",
        ", \"arguments\": ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        "add(",
        "'",
        "a=1",
        ")",
        "<function=add>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "add",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "```json",
        "<|channel>",
        "thought",
        "<start_function_call>",
        "call:add{",
        "<escape>",
        "<end_function_call>",
        "<|tool_call>",
        "<tool_call|>",
        "<|\"|>",
        "<|channel>thought\n",
        "<channel|>",
        "[THINK]",
        "[/THINK]",
        "<response>",
        "</response>",
        "<|tool_call|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "analysis",
        " to=functions.add",
        "<|python_tag|>",
        "<|assistant|>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "<function_calls>",
        "</function_calls>",
        " ",
        "\n",
        "é",
        ",",
        ";",
        ":",
        "<",
        "text",
    ])
}

proptest! {
    /// Any text is read to its end, in any format, with the same result however it is cut.
    #[test]
    fn hostile_replies_are_read_to_their_end(
        parts in prop::collection::vec(part(), 0..24),
        thinks in prop::sample::select(vec![None, Some(false), Some(true)]),
        tools in prop::sample::select(vec![None, Some(ToolFormat::Hermes), Some(ToolFormat::Tagged), Some(ToolFormat::Llama),
            Some(ToolFormat::Glm), Some(ToolFormat::Glm4), Some(ToolFormat::Pythonic), Some(ToolFormat::Lfm2), Some(ToolFormat::Olmo3),
            Some(ToolFormat::Mistral), Some(ToolFormat::Granite), Some(ToolFormat::Gemma), Some(ToolFormat::Gemma4), Some(ToolFormat::DeepSeek),
            Some(ToolFormat::Json)]),
        marks in prop::sample::select(vec![ReasoningMarks::Think, ReasoningMarks::ThoughtChannel, ReasoningMarks::Brackets,
            ReasoningMarks::ThinkAndResponse]),
        harmony in any::<bool>(),
    ) {
        let format = ReplyFormat { thinks, has_thought: false, marks, tools, harmony };
        whole(&format, &parts.concat());
    }
}

/// A megabyte in single letters: a parser that reads all of it again for each would take hours.
#[test]
fn a_long_reply_takes_time_in_proportion() {
    let letters = |text: &str| text.repeat((1 << 18) / text.len());
    for (format, text) in [
        (tools(ToolFormat::Json), format!("{{\"arguments\": \"{}", letters("x"))),
        (tools(ToolFormat::Hermes), format!("<tool_call><function=add>{}", letters("<"))),
        (tools(ToolFormat::Llama), format!("[add(a=\"{}", letters(")"))),
        (tools(ToolFormat::Tagged), format!("<tool_call><function=add>{}", letters("<parameter=a></parameter"))),
        (tools(ToolFormat::Tagged), format!("<tool_call><function=add>{}", letters("<parameter=a></parameter>"))),
        (tools(ToolFormat::Glm), format!("<tool_call>add\n{}", letters("<arg_value></arg_value>"))),
        (ReplyFormat { thinks: Some(true), ..ReplyFormat::default() }, letters("</thin")),
        (tools(ToolFormat::Gemma4), format!("<|tool_call>call:add{{a:{}", letters("["))),
    ] {
        let letters = text.as_bytes().iter().map(|letter| char::from(*letter).to_string());
        read(&format, letters);
    }
}
