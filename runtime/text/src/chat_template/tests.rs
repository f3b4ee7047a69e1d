//! Conversations through templates, and templates with errors. `families` compares real templates with transformers.

use serde_json::json;

use super::*;

const GEMMA: &str = "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}\
    {% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
    {{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

const CHATML: &str = "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + \
    messages[0].content + '<|im_end|>\\n' }}\n{%- endif %}\n{%- for message in messages %}\n    \
    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or \
    message.role.startswith('assist') %}\n        {{- '<|im_start|>' + message.role + '\\n' + message.content + \
    '<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n";

const LLAMA3: &str = "{{- bos_token }}\n{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n\
    {%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n    \
    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n\
    {{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n{%- if tools is not none %}\n    \
    {{- \"Environment: ipython\\n\" }}\n{%- endif %}\n{{- system_message }}\n{{- \"<|eot_id|>\" }}\n\
    {%- for message in messages %}\n    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ \
    message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n";

fn template(source: &str) -> Result<ChatTemplate, TextError> {
    let section = TokenizerSection {
        chat_template: Some(source.into()),
        bos_token: Some("<bos>".into()),
        eos_token: Some("<eos>".into()),
        ..TokenizerSection::default()
    };
    ChatTemplate::new(&section, 4)
}

fn render(source: &str, turns: &[(&'static str, &str)]) -> String {
    let messages: Vec<Message> = turns.iter().map(|&(role, content)| Message::new(role, content)).collect();
    template(source).unwrap().render(&messages, &TemplateArguments::new()).unwrap()
}

#[test]
fn gemma() {
    assert_eq!(
        render(GEMMA, &[("user", " Hi <b> "), ("assistant", "Hello"), ("user", "Bye")]),
        "<bos><start_of_turn>user\nHi <b><end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n\
         <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    );
}

#[test]
fn chatml() {
    assert_eq!(
        render(CHATML, &[("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("user", "1 & 2")]),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n\
         <|im_start|>user\n1 & 2<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn llama3() {
    assert_eq!(
        render(LLAMA3, &[("system", " Be brief. "), ("user", "Hi")]),
        "<bos><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\
         \n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

#[test]
fn blocks_leave_no_line_of_their_own() {
    let source = "{% for message in messages %}\n  {% if true %}\n{{ message.content }}\n  {% endif %}\n{% endfor %}\n";
    assert_eq!(render(source, &[("user", "a"), ("user", "b")]), "a\nb\n");
}

#[test]
fn functions_and_blocks_of_transformers_are_supported() {
    assert_eq!(
        render("{{ messages[0] | tojson }}", &[("user", r"<a>\u003cé")]),
        r#"{"role": "user", "content": "<a>\\u003cé"}"#
    );
    assert_eq!(render("{{ [1, 2] | tojson(indent=1, ensure_ascii=false) }}", &[]), "[\n 1,\n 2\n]");
    assert_eq!(render("{{ strftime_now('%Y') | length }}", &[]), "4");
    assert_eq!(render("a{%- generation -%} b {%- endgeneration %}c", &[]), "abc");
    assert_eq!(render("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", &[]), "1");
}

#[test]
fn a_template_s_own_error_is_quoted_with_its_line() {
    let error = template("{{ raise_exception('roles must alternate') }}")
        .unwrap()
        .render(&[], &TemplateArguments::new())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "chat template does not accept this conversation: roles must alternate (line 1 of the template)"
    );
    assert!(template("{% for %}").is_err());
}

#[test]
fn a_history_ends_with_its_last_message() {
    let messages = [Message::new("user", "Hi"), Message::new("assistant", "Ho")];
    let history = template(GEMMA).unwrap().render_history(&messages, &[], &TemplateArguments::new()).unwrap();
    assert_eq!(history, "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHo<end_of_turn>\n");
}

/// What llama-server 0.7.0's `/apply-template` gave for these turns with each `--chat-template`.
#[test]
fn templates_by_name_are_llama_servers() {
    let turns = [("system", "Be brief."), ("user", " Hi "), ("assistant", "Ho"), ("user", "Bye")];
    let turn = "<|START_OF_TURN_TOKEN|><|";
    let command_r = [
        &format!("{turn}SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>{turn}USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"),
        &*format!("{turn}CHATBOT_TOKEN|>Ho<|END_OF_TURN_TOKEN|>{turn}USER_TOKEN|>Bye<|END_OF_TURN_TOKEN|>"),
        &format!("{turn}CHATBOT_TOKEN|>"),
    ]
    .concat();
    let llama3 = ["system", "user", "assistant", "user"].iter().zip(["Be brief.", "Hi", "Ho", "Bye"]);
    let llama3: String =
        llama3.map(|(role, text)| format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>")).collect();
    let expected = [
        (
            "chatml",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n\
             <|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        ("command-r", &*command_r),
        (
            "gemma",
            "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHo<end_of_turn>\n\
             <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
        ("llama3", &*format!("{llama3}<|start_header_id|>assistant<|end_header_id|>\n\n")),
        (
            "phi3",
            "<|system|>\nBe brief.<|end|>\n<|user|>\n Hi <|end|>\n<|assistant|>\nHo<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n",
        ),
        (
            "zephyr",
            "<|system|>\nBe brief.<|endoftext|>\n<|user|>\n Hi <|endoftext|>\n<|assistant|>\nHo<|endoftext|>\n\
             <|user|>\nBye<|endoftext|>\n<|assistant|>\n",
        ),
    ];
    assert_eq!(ChatTemplate::names().collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for (name, text) in expected {
        assert_eq!(render(ChatTemplate::named(name).unwrap(), &turns), text, "{name}");
    }
}

fn render_all(source: &str, turns: &[(&str, &str)], arguments: serde_json::Value) -> Result<String, String> {
    let messages: Vec<Message> = turns.iter().map(|&(role, content)| Message::new(role, content)).collect();
    let arguments = arguments.as_object().unwrap();
    template(source).unwrap().render(&messages, arguments).map_err(|error| error.to_string())
}

/// Renders every message as `[role:content]`, but refuses a system message as Gemma 2's template does.
const WITHOUT_SYSTEM: &str = "{% for message in messages %}{% if message.role == 'system' %}\
    {{ raise_exception('System role not supported') }}{% endif %}[{{ message.role }}:{{ message.content }}]{% endfor %}";

/// Renders messages of user and assistant, and the first if it is of the system; the others are left out.
const SILENT: &str = "{% for message in messages %}{% if message.role in ['user', 'assistant'] or \
    (loop.first and message.role == 'system') %}[{{ message.role }}:{{ message.content | trim }}]{% endif %}{% endfor %}";

#[test]
fn a_developer_is_the_system() {
    let rendered = render_all(SILENT, &[("developer", "Be brief."), ("user", "Hi")], json!({}));
    assert_eq!(rendered.unwrap(), "[system:Be brief.][user:Hi]");
}

#[test]
fn a_system_message_that_is_refused_begins_the_first_question() {
    let turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("user", "Bye")];
    let rendered = render_all(WITHOUT_SYSTEM, &turns, json!({}));
    assert_eq!(rendered.unwrap(), "[user:Be brief.\n\nHi][assistant:Ho][user:Bye]");
    let rendered = render_all(WITHOUT_SYSTEM, &[("system", "Be brief.")], json!({}));
    assert_eq!(rendered.unwrap(), "[user:Be brief.]");
}

#[test]
fn a_system_message_that_is_left_out_begins_the_first_question() {
    let dropping = "{% for message in messages if message.role != 'system' %}[{{ message.content }}]{% endfor %}";
    assert_eq!(
        render_all(dropping, &[("system", "Be brief."), ("user", "Hi")], json!({})).unwrap(),
        "[Be brief.\n\nHi]"
    );
}

#[test]
fn several_system_messages_become_one_where_one_is_taken() {
    let turns = [("system", "Be brief."), ("developer", "Be kind."), ("user", "Hi")];
    assert_eq!(render_all(SILENT, &turns, json!({})).unwrap(), "[system:Be brief.\n\nBe kind.][user:Hi]");
}

#[test]
fn a_later_system_message_without_a_place_is_the_user_s() {
    let late = [("user", "Hi"), ("assistant", "Ho"), ("system", "Be brief."), ("user", "Well?")];
    assert_eq!(render_all(SILENT, &late, json!({})).unwrap(), "[user:Hi][assistant:Ho][user:Be brief.\n\nWell?]");
    let alternating = "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('Roles must alternate') }}{% endif %}[{{ message.role }}:{{ message.content }}]{% endfor %}";
    // The environment in a message of its own, as Codex sends it.
    let codex = [("developer", "Be brief."), ("user", "It is Monday."), ("user", "Hi"), ("assistant", "Ho")];
    assert_eq!(
        render_all(alternating, &codex, json!({})).unwrap(),
        "[user:Be brief.\n\nIt is Monday.\n\nHi][assistant:Ho]"
    );
}

#[test]
fn a_message_that_would_be_missing_is_an_error() {
    let turns = [("user", "Hi"), ("tool", "42"), ("user", "Well?")];
    let expected = "chat template has no place for role \"tool\": message 2 would be missing from the prompt; expected roles that \
                    the template has, such as system, user and assistant";
    assert_eq!(render_all(SILENT, &turns, json!({})).unwrap_err(), expected);
    // The same words elsewhere in the text do not hide it.
    let twice = [("user", "42"), ("tool", "42")];
    assert!(render_all(SILENT, &twice, json!({})).unwrap_err().contains("message 2"));
    // Nothing is missing with an empty message.
    assert!(render_all(SILENT, &[("user", "Hi"), ("tool", " ")], json!({})).is_ok());
}

#[test]
fn reasoning_that_is_cut_from_an_answer_is_no_missing_message() {
    let source = "{% for message in messages %}[{{ message.content.split('</think>')[-1].strip() }}]{% endfor %}";
    let turns = [("user", "Hi"), ("assistant", "<think>Hm.</think> Ho"), ("user", "Bye")];
    assert_eq!(render_all(source, &turns, json!({})).unwrap(), "[Hi][Ho][Bye]");
}

#[test]
fn arguments_are_variables_of_the_template() {
    let source = "{% if enable_thinking is defined and not enable_thinking %}quick{% else %}slow{% endif %} \
        {{- reasoning_effort | default('medium') }} {{ bos_token }} {{ enable_thinking }} {{ list | default([]) | tojson }}";
    assert_eq!(render_all(source, &[], json!({"list": []})).unwrap(), "slowmedium <bos>  []");
    let arguments = json!({"enable_thinking": false, "reasoning_effort": "low", "bos_token": "<s>",
        "list": [1, -2, 0.5, 1e30, null, true, {"z": "é", "a": 1}]});
    assert_eq!(
        render_all(source, &[], arguments).unwrap(),
        r#"quicklow <s> False [1, -2, 0.5, 1e+30, null, true, {"z": "é", "a": 1}]"#
    );
    assert_eq!(
        render_all(source, &[], json!({"messages": []})).unwrap_err(),
        "chat template argument \"messages\" is set by each request: expected another name"
    );
    let qwen = template(source).unwrap();
    assert!(qwen.reads("enable_thinking") && !qwen.reads("thinking"));
    let granite = template("{{ thinking }}").unwrap();
    assert_eq!([&qwen, &granite].map(ChatTemplate::reasoning_switch), [Some("enable_thinking"), Some("thinking")]);
    assert_eq!(template(CHATML).unwrap().reasoning_switch(), None);
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let endless = "\n{% for a in range(9999) %}{% for b in range(9999) %}{% set c = a + b %}{% endfor %}{% endfor %}";
    assert_eq!(
        render_all(endless, &[], json!({})).unwrap_err(),
        "chat template does not end: it was stopped after its limit of steps (line 2 of the template)"
    );
}

#[test]
fn a_text_longer_than_the_context_is_stopped() {
    // The context of these tests is four tokens.
    let long = "{% for a in range(9999) %}{{ messages[0].content }}{% endfor %}";
    let expected = "chat template writes more than 4096 bytes, the longest text that fits the context";
    assert_eq!(render_all(long, &[("user", "Hi")], json!({})).unwrap_err(), expected);
}

/// Written and dropped by recursion: a thread's usual stack overflows at some ten thousand levels, which ends the process.
#[test]
fn values_that_are_nested_as_deep_as_the_steps_allow_end_no_process() {
    let nested = "{% set ns = namespace(l=[]) %}{% for j in range(4) %}{% for i in range(10000) %}\
                  {% set ns.l = [[[[[[[[[[ns.l]]]]]]]]]] %}{% endfor %}{% endfor %}";
    let section = |end: &str| TokenizerSection {
        chat_template: Some(format!("{nested}{{{{ messages[0].content }}}}{end}")),
        ..TokenizerSection::default()
    };
    let render = |end| {
        let template = ChatTemplate::new(&section(end), 4096).unwrap();
        template.render(&[Message::new("user", "Hi")], &TemplateArguments::new())
    };
    assert_eq!(render("").unwrap(), "Hi");
    assert_eq!(render("{{ ns.l }}").unwrap().len(), "Hi".len() + 2 * 400_001);
    let text = render("{{ ns.l | tojson }}").unwrap_err().to_string();
    assert!(text.contains("tojson: expected at most 1000 levels"), "{text}");
}

#[test]
fn json_is_bounded() {
    for (source, expected) in [
        ("{{ 1 | tojson(indent=1000000000000000) }}", "indent of tojson: expected at most 100 bytes"),
        (
            "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}",
            "tojson: expected at most",
        ),
    ] {
        let error = template(source).unwrap().render(&[], &TemplateArguments::new()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

const WITH_TOOLS: &str = "{%- if tools %}<tools>{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}</tools>\n{%- endif %}\n\
    {%- for message in messages %}\n<{{ message.role }}>{{ message.content }}\n{%- if message.tool_calls %}{% for call in \
    message.tool_calls %}{{ call.function.name }}:{{ call.function.arguments | tojson }}{% endfor %}{% endif %}\n\
    {%- endfor %}\n{%- if add_generation_prompt %}\n<assistant>{% endif %}";

fn conversation_with_tools() -> (Vec<Message>, Vec<serde_json::Value>) {
    let call = json!({"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"b": 1, "a": 2}}});
    let mut assistant = Message::new("assistant", "");
    assistant.fields.insert("tool_calls".into(), json!([call]));
    let mut result = Message::new("tool", "3");
    result.fields.insert("tool_call_id".into(), json!("c1"));
    let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
    (vec![Message::new("user", "2 + 1?"), assistant, result], vec![tool])
}

#[test]
fn tools_calls_and_results_reach_the_template() {
    let (messages, tools) = conversation_with_tools();
    let rendered =
        template(WITH_TOOLS).unwrap().render_with_tools(&messages, &tools, &TemplateArguments::new()).unwrap();
    assert_eq!(
        rendered,
        "<tools>{\"name\": \"add\", \"parameters\": {\"type\": \"object\"}}</tools><user>2 + 1?<assistant>add:{\"b\": 1, \"a\": 2}\
         <tool>3<assistant>"
    );
}

#[test]
fn a_template_without_tools_gets_them_as_text() {
    let (messages, tools) = conversation_with_tools();
    let rendered = template(CHATML).unwrap().render_with_tools(&messages, &tools, &TemplateArguments::new()).unwrap();
    let (system, rest) = rendered.split_once("<|im_end|>\n").unwrap();
    assert!(
        system.starts_with("<|im_start|>system\n")
            && system.ends_with("{\"name\":\"add\",\"parameters\":{\"type\":\"object\"}}")
    );
    assert_eq!(
        rest,
        "<|im_start|>user\n2 + 1?<|im_end|>\n<|im_start|>assistant\n{\"name\":\"add\",\"arguments\":{\"b\":1,\"a\":2}}<|im_end|>\n\
         <|im_start|>user\nResult: 3<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn results_are_observations_where_the_template_has_that_role() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates/glm4.jinja");
    let template = template(&std::fs::read_to_string(golden).unwrap()).unwrap();
    let (messages, tools) = conversation_with_tools();
    let rendered = template.render_with_tools(&messages, &tools, &TemplateArguments::new()).unwrap();
    let conversation = "<|user|>\n2 + 1?<|assistant|>add \n{\"b\": 1, \"a\": 2}<|observation|>\n3<|assistant|>";
    assert!(rendered.contains("## add") && rendered.ends_with(conversation), "{rendered}");
    assert_eq!(template.reply_format(true).tools, Some(ToolFormat::Glm4));
}

/// Mistral's templates raise an error for an id of any other length, such as those that servers give.
#[test]
fn mistral_s_template_gets_ids_of_nine_letters() {
    const MISTRAL: &str = "{% macro short(id) %}{% if id | length != 9 %}{{ raise_exception('expected nine letters') }}{% endif %}\
        {{ id }}{% endmacro %}{{ tools | length }} {% for message in messages %}{% if message.role == 'tool' %}\
        [TOOL_RESULTS]{{ short(message.tool_call_id) }} {{ message.content }}{% elif message.tool_calls %}\
        [TOOL_CALLS]{{ short(message.tool_calls[0].id) }}{% else %}[INST]{{ message.content }}[/INST]{% endif %}{% endfor %}";
    let (messages, tools) = conversation_with_tools();
    let rendered = template(MISTRAL).unwrap().render_with_tools(&messages, &tools, &TemplateArguments::new());
    assert_eq!(rendered.unwrap(), "1 [INST]2 + 1?[/INST][TOOL_CALLS]000000001[TOOL_RESULTS]000000001 3");
}

/// Where text stands beside a call, the template writes it behind the result, as the end of a turn.
#[test]
fn gemma_4_s_prompt_ends_with_the_beginning_of_a_reply() {
    const GEMMA4: &str = "{# <|tool_call> #}{{ tools and '' }}{% for message in messages %}{% if message.role == 'user' %}\
        <|turn>user\n{{ message.content }}<turn|>\n{% elif message.role == 'assistant' %}<|turn>model\n\
        {{ messages[loop.index].content }}{{ message.content }}<turn|>\n{% endif %}{% endfor %}";
    let template = template(GEMMA4).unwrap();
    let (mut messages, tools) = conversation_with_tools();
    messages[1].content = "I add.".to_owned();
    let arguments = TemplateArguments::new();
    let rendered = template.render_with_tools(&messages, &tools, &arguments).unwrap();
    assert!(rendered.ends_with("3I add.<turn|>\n<|turn>model\n"), "{rendered}");
    let history = template.render_history(&messages, &tools, &arguments).unwrap();
    assert!(history.ends_with("I add.<turn|>\n"), "{history}");
}

#[test]
fn ministral_s_reasoning_is_a_part_of_its_content() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates/ministral3.jinja");
    let template = template(&std::fs::read_to_string(golden).unwrap()).unwrap();
    let (mut messages, tools) = conversation_with_tools();
    messages[1].fields.insert("reasoning_content".into(), json!("2 and 1."));
    let arguments = TemplateArguments::new();
    for (content, expected) in [("", "[THINK]2 and 1.[/THINK][TOOL_CALLS]"), ("I add.", "[/THINK]I add.[TOOL_CALLS]")] {
        messages[1].content = content.to_owned();
        let rendered = template.render_with_tools(&messages, &tools, &arguments).unwrap();
        assert!(rendered.contains(expected), "{rendered}");
    }
}

#[test]
fn the_format_of_replies_follows_from_the_template() {
    let format = |source: &str, has_tools: bool| template(source).unwrap().reply_format(has_tools);
    assert_eq!(format(CHATML, false), ReplyFormat::default());
    assert_eq!(format(CHATML, true).tools, Some(ToolFormat::Json));
    assert_eq!(format(LLAMA3, true).tools, Some(ToolFormat::Llama));
    assert_eq!(format("{{ tools }}<tool_call></think>", true).tools, Some(ToolFormat::Hermes));
    assert_eq!(format("{{ tools }}</think>", false).thinks, Some(false));
    let always = format("<|im_start|>assistant\n<think>", false);
    assert_eq!(
        (always.thinks, always.clone().behind("<|im_start|>assistant\n<think>").thinks),
        (Some(false), Some(true))
    );
    assert_eq!(format("{{ tools }}<tool_call>\n<function=f>", true).tools, Some(ToolFormat::Tagged));
    let pythonic = format("{{ tools }} ipython: use exact format: [func_name1(param1=value1)]", true);
    assert_eq!(pythonic.tools, Some(ToolFormat::Pythonic));
    assert_eq!(format("{{ tools }}[TOOL_CALLS]", true).tools, Some(ToolFormat::Mistral));
    assert_eq!(format("List of tools: [{{ tools }}]</think>", true).tools, Some(ToolFormat::Lfm2));
    for source in ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "{{ tools }}<｜tool▁call▁begin｜>"]
    {
        assert_eq!(format(source, true).tools, Some(ToolFormat::DeepSeek));
    }
    let gemma = format("{{ tools }}<|tool_call><channel|>", true);
    assert_eq!(
        (gemma.tools, gemma.thinks, gemma.marks),
        (Some(ToolFormat::Gemma4), Some(false), ReasoningMarks::ThoughtChannel)
    );
    let granite = format("{{ tools }}<|tool_call|><tool_call><think></think><response>", true);
    assert_eq!((granite.tools, granite.marks), (Some(ToolFormat::Granite), ReasoningMarks::ThinkAndResponse));
    let ministral = format("{{ tools }}[TOOL_CALLS][THINK]first[/THINK]", true);
    assert_eq!((ministral.thinks, ministral.marks), (Some(false), ReasoningMarks::Brackets));
    assert!(format("<|channel|>", false).harmony);
}
