//! Calls in Qwen's tags, in GLM's and as Python writes them: what matches the schemas of the tools is accepted and read back, and nothing else is.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use unicorn_text::{Delta, ReplyFormat, ReplyParser, ToolFormat, admits_text};

use super::Constraint;
use super::tests::{accepts, accepts_with, vocabulary, vocabulary_with};

const FORMATS: [ToolFormat; 3] = [ToolFormat::Tagged, ToolFormat::Glm, ToolFormat::Pythonic];

pub(super) fn tool(name: &str, parameters: &Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn format_of(kind: ToolFormat) -> ReplyFormat {
    let mut format = ReplyFormat::default();
    format.tools = Some(kind);
    format
}

/// Whether a reply of `text` can be written to its end. The prompt may end with the beginning of it: `Some(None)` to the name of a tool,
/// `Some(Some(name))` behind it.
fn is_accepted(tools: &[Value], kind: ToolFormat, begun: Option<Option<&str>>, is_only: bool, text: &str) -> bool {
    let format = format_of(kind);
    let beginning = begun.and_then(|name| format.call_beginning(name)).unwrap_or_default();
    let named = |tool: &&Value| begun.flatten().is_none_or(|name| tool["function"]["name"] == *name);
    let tools: Vec<&Value> = tools.iter().filter(named).collect();
    let constraint = Constraint::of_calls(vocabulary(), &tools, &format, &beginning, is_only).unwrap();
    let rest = text.strip_prefix(&beginning);
    rest.is_some_and(|rest| accepts(constraint, rest, true))
}

/// Names and arguments of the calls in a reply, and its content.
pub(super) fn calls(tools: &[Value], format: &ReplyFormat, text: &str) -> (Vec<(String, Value)>, String) {
    let (mut parser, mut content) = (ReplyParser::of_tools(format, tools), String::new());
    let mut deltas = parser.push(text);
    deltas.extend(parser.finish());
    let mut found: Vec<(String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            Delta::CallBegin { name, .. } => found.push((name, String::new())),
            Delta::CallArguments { json, .. } => found.last_mut().unwrap().1 += &json,
            Delta::Content(text) => content += &text,
            Delta::Reasoning(_) => unreachable!("the format has none"),
        }
    }
    (found.into_iter().map(|(name, json)| (name, serde_json::from_str(&json).unwrap())).collect(), content)
}

/// A value as Python writes it, with single or double quotes around texts.
fn python(value: &Value, quote: char) -> String {
    let joined = |values: Vec<String>| values.join(", ");
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => {
            let escaped = |letter: char| match letter {
                '\n' => "\\n".to_owned(),
                '\\' => "\\\\".to_owned(),
                letter if letter == quote => format!("\\{letter}"),
                letter => letter.to_string(),
            };
            format!("{quote}{}{quote}", text.chars().map(escaped).collect::<String>())
        }
        Value::Array(values) => format!("[{}]", joined(values.iter().map(|value| python(value, quote)).collect())),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| format!("\"{name}\": {}", python(value, quote));
            format!("{{{}}}", joined(fields.iter().map(field).collect()))
        }
    }
}

/// Arguments of a call in their order, written one by one.
fn arguments(kind: ToolFormat, schema: &Value, arguments: &Map<String, Value>) -> Vec<String> {
    let written = |(name, value): (&String, &Value)| match (kind, value) {
        (ToolFormat::Pythonic, Value::String(text)) if !is_constant(schema, name) && text.len() % 2 == 1 => {
            format!("{name}={}", python(value, '\''))
        }
        (ToolFormat::Pythonic, _) => format!("{name}={}", python(value, '"')),
        (ToolFormat::Glm, Value::String(text)) => keyed(name, text),
        (ToolFormat::Glm, _) => keyed(name, &value.to_string()),
        (_, Value::String(text)) => format!("<parameter={name}>\n{text}\n</parameter>\n"),
        _ => format!("<parameter={name}>\n{value}\n</parameter>\n"),
    };
    arguments.iter().map(written).collect()
}

/// An argument as GLM-4.5 writes it.
fn keyed(name: &str, value: &str) -> String {
    format!("<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n")
}

fn is_constant(schema: &Value, name: &str) -> bool {
    schema["properties"][name].get("enum").is_some()
}

/// A reply that makes these calls.
fn reply(kind: ToolFormat, calls: &[(&str, Vec<String>)]) -> String {
    match kind {
        ToolFormat::Pythonic => {
            let calls: Vec<String> =
                calls.iter().map(|(name, arguments)| format!("{name}({})", arguments.join(", "))).collect();
            format!("[{}]", calls.join(", "))
        }
        ToolFormat::Glm => {
            let call = |(name, arguments): &(&str, Vec<String>)| {
                format!("<tool_call>{name}\n{}</tool_call>", arguments.concat())
            };
            calls.iter().map(call).collect::<Vec<_>>().join("\n")
        }
        _ => {
            let call = |(name, arguments): &(&str, Vec<String>)| {
                format!("<tool_call>\n<function={name}>\n{}</function>\n</tool_call>", arguments.concat())
            };
            calls.iter().map(call).collect::<Vec<_>>().join("\n")
        }
    }
}

/// Texts of the letters that the vocabulary has, and what means something in one of the formats.
fn text() -> impl Strategy<Value = String> {
    let parts = [
        "a",
        "5",
        "null",
        "True",
        " ",
        "\n",
        "\"",
        "'",
        "\\",
        ")]",
        ", f(",
        "<parameter=a>",
        "</function>",
        "</tool_call>",
        "<arg_key>",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..5).prop_map(|parts| parts.concat())
}

/// A schema with a value that it describes.
fn described() -> impl Strategy<Value = (Value, Value)> {
    let texts = text().prop_map(|text| (json!({"type": "string"}), json!(text)));
    let short = "[a-c]{2,4}".prop_map(|text| (json!({"type": "string", "minLength": 2, "maxLength": 4}), json!(text)));
    let choice = prop::sample::select(vec!["red", "dark red", "7", "it's"])
        .prop_map(|one| (json!({"type": "string", "enum": ["red", "dark red", "7", "it's"]}), json!(one)));
    let integer = any::<i32>().prop_map(|number| (json!({"type": "integer"}), json!(number)));
    let bounded = (3..12).prop_map(|number| (json!({"type": "integer", "minimum": 3, "maximum": 11}), json!(number)));
    let number = (-1000..1000).prop_map(|number| (json!({"type": "number"}), json!(f64::from(number) / 8.0)));
    let boolean = any::<bool>().prop_map(|value| (json!({"type": "boolean"}), json!(value)));
    let nothing = Just((json!({"type": "null"}), json!(null)));
    let leaf = prop_oneof![texts, short, choice, integer, bounded, number, boolean, nothing];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let list = (inner.clone(), 0..3_usize).prop_map(|((schema, value), n)| {
            (json!({"type": "array", "items": schema, "maxItems": 2}), json!(vec![value; n]))
        });
        let object = prop::collection::vec((inner, any::<bool>()), 0..3).prop_map(|fields| object(&fields));
        prop_oneof![list, object]
    })
}

/// An object of these fields, of which those that are not required may have been left out.
fn object(fields: &[((Value, Value), bool)]) -> (Value, Value) {
    let (mut properties, mut required, mut values) = (Map::new(), Vec::new(), Map::new());
    for (number, ((schema, value), is_there)) in fields.iter().enumerate() {
        let name = format!("k{}{number}", 9 - number);
        properties.insert(name.clone(), schema.clone());
        if number % 2 == 0 {
            required.push(name.clone());
        }
        if number % 2 == 0 || *is_there {
            values.insert(name, value.clone());
        }
    }
    (
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false}),
        values.into(),
    )
}

fn fields() -> impl Strategy<Value = Vec<((Value, Value), bool)>> {
    prop::collection::vec((described(), any::<bool>()), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Calls that match the schemas are accepted, whether the model begins them or the prompt, and are read back as they were.
    #[test]
    fn calls_that_match_are_accepted_and_read_back(first in fields(), second in fields()) {
        let schemas = [object(&first), object(&second)];
        let tools = [tool("f", &schemas[0].0), tool("get-it_2", &schemas[1].0)];
        for kind in FORMATS {
            let [one, other] = [0, 1].map(|number| {
                let (schema, value) = &schemas[number];
                (["f", "get-it_2"][number], arguments(kind, schema, value.as_object().unwrap()))
            });
            let (alone, both) = (reply(kind, std::slice::from_ref(&one)), reply(kind, &[one.clone(), other.clone()]));
            for begun in [None, Some(None), Some(Some("f"))] {
                prop_assert!(is_accepted(&tools, kind, begun, true, &alone), "{begun:?} {alone}");
            }
            for begun in [None, Some(None)] {
                prop_assert!(is_accepted(&tools, kind, begun, false, &both), "{begun:?} {both}");
                prop_assert!(!is_accepted(&tools, kind, begun, true, &both), "one call only: {begun:?} {both}");
            }
            let expected = vec![("f".to_owned(), schemas[0].1.clone()), ("get-it_2".to_owned(), schemas[1].1.clone())];
            prop_assert_eq!(calls(&tools, &format_of(kind), &both), (expected, String::new()), "{}", both);
        }
    }

    /// Calls that lack a required argument, or have one twice, of an unknown name, or of another type, are refused, and so is an unknown tool.
    #[test]
    fn calls_that_do_not_match_are_refused(fields in fields()) {
        let (schema, value) = object(&fields);
        let tools = [tool("f", &schema)];
        for kind in FORMATS {
            let written = arguments(kind, &schema, value.as_object().unwrap());
            let with = |change: &dyn Fn(&mut Vec<String>)| {
                let mut changed = written.clone();
                change(&mut changed);
                reply(kind, &[("f", changed)])
            };
            let unknown = arguments(kind, &schema, &Map::from_iter([("z".to_owned(), json!(1))])).remove(0);
            let mut refused = vec![
                with(&|arguments| drop(arguments.remove(0))),
                with(&|arguments| arguments.insert(0, arguments[0].clone())),
                with(&|arguments| arguments.push(unknown.clone())),
                reply(kind, &[("g", written.clone())]),
            ];
            let argument = &schema["properties"]["k90"];
            if !admits_text(argument, &schema) || argument.get("enum").is_some() {
                let wrong = Map::from_iter([("k90".to_owned(), json!("no such"))]);
                refused.push(with(&|all| all[0] = arguments(kind, &schema, &wrong).remove(0)));
            }
            for text in refused {
                for begun in [Some(None), Some(Some("f"))] {
                    prop_assert!(!is_accepted(&tools, kind, begun, false, &text), "{begun:?} {text}");
                }
                // A list of a tool that does not exist is content, and so is GLM's call of one.
                let is_content = text.starts_with("[g(") || text.starts_with("<tool_call>g\n");
                prop_assert_eq!(is_accepted(&tools, kind, None, false, &text), is_content, "{}", text);
            }
        }
    }
}

fn weather() -> Value {
    tool(
        "f",
        &json!({"type": "object", "required": ["city"], "$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 7}}, "properties": {
            "city": {"type": "string"},
            "unit": {"anyOf": [{"enum": ["C", "F"]}, {"type": "null"}]},
            "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "minItems": 1},
            "note": {"type": ["string", "null"]},
            "not a name": {"type": "string"},
        }}),
    )
}

#[test]
fn tags_hold_texts_as_they_are_and_other_values_as_json() {
    let tools = [weather()];
    let accepted = |text: &str| is_accepted(&tools, ToolFormat::Tagged, None, false, text);
    let call = |values: &str| format!("Sure. <tool_call>\n<function=f>\n{values}</function>\n</tool_call> Done.");
    let city = "<parameter=city>\nRome\n</parameter>\n";
    let city_of = |rest: &str| call(&format!("{city}{rest}"));
    assert!(accepted(&call(city)) && !accepted(&call("")));
    assert!(accepted(&call("<parameter=city>\n{\"a\": </function> \n\n</parameter>\n")));
    for (argument, is_right) in [
        ("<parameter=unit>\nC\n</parameter>\n", true),
        ("<parameter=unit>\nnull\n</parameter>\n", true),
        ("<parameter=unit>\nK\n</parameter>\n", false),
        ("<parameter=days>\n[1, 7]\n</parameter>\n", true),
        ("<parameter=days>\n[8]\n</parameter>\n", false),
        ("<parameter=days>\n[]\n</parameter>\n", false),
        ("<parameter=days>\n[1]\n</parameter>\n<parameter=note>\n5\n</parameter>\n", true),
        ("<parameter=not a name>\nx\n</parameter>\n", true),
        ("<parameter=other>\nx\n</parameter>\n", false),
    ] {
        assert_eq!(accepted(&city_of(argument)), is_right, "{argument}");
    }
    let text = city_of(
        "<parameter=unit>\nnull\n</parameter>\n<parameter=days>\n[1]\n</parameter>\n<parameter=note>\n5\n</parameter>\n",
    );
    let expected = json!({"city": "Rome", "unit": null, "days": [1], "note": "5"});
    assert_eq!(calls(&tools, &format_of(ToolFormat::Tagged), &text).0, [("f".to_owned(), expected)]);
    // A template for JSON's calls, whose model writes tags, and the other way round.
    let json = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    for kind in [ToolFormat::Hermes, ToolFormat::Tagged] {
        assert!(is_accepted(&tools, kind, None, false, &call(city)) && is_accepted(&tools, kind, None, false, json));
        assert!(!is_accepted(&tools, kind, None, false, &call("")));
        assert!(!is_accepted(&tools, kind, None, false, &json.replace("city", "town")));
    }
    assert!(accepted("<tool_call> and </tool_call> are marks, <function=g> is none"));
    assert!(!accepted("<tool_call><function=g>"), "a tool of the request");
}

/// Models do not always keep to the order in which a tool declares its parameters.
#[test]
fn parameters_come_in_any_order() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let tool = |n: usize| {
        let properties: Map<String, Value> =
            names[..n].iter().map(|name| ((*name).to_owned(), json!({"type": "integer"}))).collect();
        tool("f", &json!({"type": "object", "properties": properties, "required": ["a", "b"]}))
    };
    for (n, order, is_right) in [
        (3, "abc", true),
        (3, "cba", true),
        (3, "ba", true),
        (3, "ca", false),
        (3, "bba", false),
        (7, "abcdefg", true),
        (7, "bagec", true),
        (7, "ba", true),
        (7, "bgc", false),
        (7, "gec", false),
    ] {
        let tools = [tool(n)];
        let tagged: String = order.chars().map(|name| format!("<parameter={name}>\n1\n</parameter>\n")).collect();
        let python: Vec<String> = order.chars().map(|name| format!("{name}=1")).collect();
        let keyed: String = order.chars().map(|name| keyed(&name.to_string(), "1")).collect();
        for (kind, text) in [
            (ToolFormat::Tagged, format!("<tool_call>\n<function=f>\n{tagged}</function>\n</tool_call>")),
            // What opens the first call may be missing.
            (ToolFormat::Tagged, format!("I call it.\n<function=f>\n{tagged}</function>\n</tool_call>")),
            (ToolFormat::Glm, format!("<tool_call>f\n{keyed}</tool_call>")),
            (ToolFormat::Lfm2, format!("<|tool_call_start|>[f({})]<|tool_call_end|>", python.join(", "))),
        ] {
            for is_only in [false, true] {
                assert_eq!(is_accepted(&tools, kind, None, is_only, &text), is_right, "{kind:?} {text}");
            }
        }
    }
}

#[test]
fn glm_s_tags_may_be_tokens_and_stand_without_line_breaks() {
    const MARKS: [&str; 6] = ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];
    let tools = [weather()];
    for marks in [&MARKS[..], &[]] {
        let accepted = |text: &str| {
            let tools: Vec<&Value> = tools.iter().collect();
            let constraint =
                Constraint::of_calls(vocabulary_with(marks), &tools, &format_of(ToolFormat::Glm), "", true);
            accepts_with(marks, constraint.unwrap(), text, true)
        };
        let call = |values: &[(&str, &str)]| {
            let values: String = values.iter().map(|(name, value)| keyed(name, value)).collect();
            format!("Sure.\n<tool_call>f\n{values}</tool_call>")
        };
        let rome = ("city", "Rome <\n>\n");
        for (values, is_right) in [
            (&[rome][..], true),
            (&[("city", "")], true),
            (&[rome, ("unit", "C"), ("days", "[1, 7]"), ("note", "null")], true),
            (&[rome, ("not a name", "x")], true),
            (&[], false),
            (&[rome, rome], false),
            (&[rome, ("unit", "K")], false),
            (&[rome, ("days", "[8]")], false),
            (&[rome, ("days", "[1] ")], false),
            (&[rome, ("town", "Rome")], false),
        ] {
            let lines = call(values);
            let joined = lines.replace("</arg_key>\n", "</arg_key>").replace("</arg_value>\n", "</arg_value>");
            let joined = joined.replace("<tool_call>f\n", "<tool_call>f");
            assert_eq!((accepted(&lines), accepted(&joined)), (is_right, is_right), "{marks:?} {lines} {joined}");
        }
        assert!(!accepted(&(call(&[rome]) + "\n" + &call(&[rome]))), "one call only");
        assert!(accepted("<tool_call>g</tool_call> is none, <tool_call> neither"));
        assert!(accepted("<tool_call>{\"name\": \"f\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>"));
        assert!(!accepted("<tool_call>{\"name\": \"f\", \"arguments\": {\"town\": \"Rome\"}}</tool_call>"));
    }
}

#[test]
fn lists_of_python_s_calls_hold_python_s_literals() {
    let tools = [weather()];
    for kind in [ToolFormat::Pythonic, ToolFormat::Llama] {
        let accepted = |text: &str| is_accepted(&tools, kind, None, false, text);
        for (text, is_right) in [
            (r#"[f(city="Rome")]"#, true),
            (r#"<|python_start|>[f(city='Ro\'me\x41\u00e9'), f(city="")]<|python_end|>"#, true),
            (r#"[f(city="Rome", unit=None, days=[1, 7], note="5")]"#, true),
            (r#"[f(city="Rome",unit="C",days=[1,7])]"#, true),
            (r#"[f(city="Rome", unit="K")]"#, false),
            (r#"[f(city="Rome", days=[8])]"#, false),
            (r#"[f(city="Rome", days=[])]"#, false),
            (r#"[f(city="Rome", note=null)]"#, false),
            ("[f(city=\"Ro\nme\")]", false),
            (r#"[f(city=5)]"#, false),
            ("[f()]", false),
            (r#"[f(city="Rome"), g()]"#, false),
            ("[f] is a footnote, [x](y)", true),
            ("[g(city=5)]", true),
            (r#"{"name": "f", "parameters": {"city": "Rome"}}"#, true),
            (r#"{"name": "f", "parameters": {"town": "Rome"}}"#, false),
        ] {
            assert_eq!(accepted(text), is_right, "{kind:?} {text}");
        }
    }
}

#[test]
fn the_names_in_python_s_dictionaries_have_either_quotes() {
    let address = json!({"type": "object", "required": ["city"], "additionalProperties": false, "properties": {
        "city": {"type": "string"}, "it's": {"type": "boolean"},
    }});
    let tools = [tool("f", &json!({"type": "object", "properties": {"at": address}}))];
    for (kind, opener, closer) in [
        (ToolFormat::Pythonic, "[", "]"),
        (ToolFormat::Lfm2, "<|tool_call_start|>[", "]<|tool_call_end|>"),
        (ToolFormat::Olmo3, "<function_calls>", "</function_calls>"),
    ] {
        for (dictionary, is_right) in [
            ("{'city': 'Rome', 'it\\'s': True}", true),
            ("{\"city\": 'Rome', \"it's\": False}", true),
            ("{'city\": 'Rome'}", false),
            ("{'town': 'Rome'}", false),
        ] {
            let text = format!("{opener}f(at={dictionary}){closer}");
            assert_eq!(is_accepted(&tools, kind, None, false, &text), is_right, "{text}");
            if is_right {
                assert_eq!(calls(&tools, &format_of(kind), &text).0[0].1["at"]["city"], "Rome", "{text}");
            }
        }
    }
}

#[test]
fn tools_without_schemas_and_with_odd_ones_leave_any_arguments() {
    for parameters in [
        json!({"type": "object"}),
        json!(true),
        json!({"properties": {"a": {"$ref": "#/nowhere"}, "b": {"$ref": "#"}}}),
    ] {
        let tools = [tool("f", &parameters)];
        for (kind, text) in [
            (
                ToolFormat::Tagged,
                "<tool_call>\n<function=f>\n<parameter=a>\n{\"x\": [1]}\n</parameter>\n</function>\n</tool_call>",
            ),
            (ToolFormat::Glm, "<tool_call>f<arg_key>a</arg_key><arg_value>{\"x\": [1]}</arg_value></tool_call>"),
            (ToolFormat::Pythonic, "[f(a={\"x\": [1]})]"),
        ] {
            for begun in [None, Some(None), Some(Some("f"))] {
                assert!(is_accepted(&tools, kind, begun, true, text), "{begun:?} {parameters} {text}");
            }
            assert_eq!(
                calls(&tools, &format_of(kind), text).0,
                [("f".to_owned(), json!({"a": {"x": [1]}}))],
                "{parameters}"
            );
        }
    }
}

#[test]
fn a_schema_that_is_not_supported_leaves_those_of_other_tools() {
    let of = |schema: &Value| json!({"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": false});
    let tools = [tool("f", &of(&json!({"not": {"type": "null"}}))), tool("g", &of(&json!({"type": "integer"})))];
    for (name, value, is_permitted) in [("f", "\"x\"", true), ("g", "5", true), ("g", "\"x\"", false)] {
        let call = format!("{{\"name\": \"{name}\", \"arguments\": {{\"a\": {value}}}}}");
        for (kind, text) in [
            (ToolFormat::Json, call.clone()),
            (ToolFormat::Hermes, format!("<tool_call>\n{call}")),
            (
                ToolFormat::Tagged,
                format!(
                    "<tool_call>\n<function={name}>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>",
                    value.replace('"', "")
                ),
            ),
        ] {
            assert_eq!(is_accepted(&tools, kind, Some(None), true, &text), is_permitted, "{kind:?} {text}");
        }
    }
}
