//! A request for a message, as one for a chat completion.

use serde_json::{Map, Value, json};

use crate::api::error::ApiError;
use crate::api::fields::{Fields, unexpected};

const BLOCKS: &str = "a text, or a list of blocks of type text, image in base64, tool_use, tool_result or thinking";
const FORMAT: &str = "an object with a type of json_schema, and a schema";
/// Claude Code begins its system prompt with a line that differs in each request; left in, no prompt would go on from the cache.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// The request by OpenAI's names.
///
/// # Errors
/// For blocks that are neither text, calls, results nor thinking, and for what is missing.
pub(crate) fn chat_request(fields: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let mut fields = Fields(fields);
    let mut messages = Vec::new();
    if let Some(system) = fields.take::<Value>("system", BLOCKS)? {
        let texts =
            texts(&system).ok_or_else(|| unexpected("system", "a text or a list of blocks of text", &system))?;
        let texts: Vec<&str> = texts.into_iter().filter(|text| !text.starts_with(BILLING_HEADER)).collect();
        if !texts.is_empty() {
            messages.push(json!({"role": "system", "content": texts.join("\n\n")}));
        }
    }
    let turns: Vec<Value> = fields.require("messages", "a list of messages")?;
    for (index, turn) in turns.iter().enumerate() {
        let name = format!("messages[{index}]");
        add_turn(turn, &mut messages).ok_or_else(|| unexpected(&name, &format!("a role, and {BLOCKS}"), turn))?;
    }
    fields.0.insert("messages".into(), messages.into());

    let tools: Vec<Value> = fields.take("tools", "a list of tools")?.unwrap_or_default();
    // Tools with another type run on Anthropic's servers.
    let is_ours = |tool: &&Value| tool.get("type").is_none_or(|kind| kind.is_null() || kind == "custom");
    let tools: Vec<Value> = tools.iter().filter(is_ours).map(tool).collect();
    fields.0.insert("tools".into(), tools.into());
    if let Some(choice) = fields.take::<Value>("tool_choice", "an object with a type")? {
        if choice["disable_parallel_tool_use"] == true {
            fields.0.insert("parallel_tool_calls".into(), false.into());
        }
        let choice = match choice["type"].as_str() {
            Some("tool") => json!({"type": "function", "function": {"name": choice["name"]}}),
            Some(kind) => kind.into(),
            None => return Err(unexpected("tool_choice", "an object with a type", &choice)),
        };
        fields.0.insert("tool_choice".into(), choice);
    }
    if let Some(stop) = fields.take::<Value>("stop_sequences", "a list of texts")? {
        fields.0.insert("stop".into(), stop);
    }
    let config: Option<Value> = fields.take("output_config", "an object")?;
    let of_config =
        |name: &str| config.as_ref().and_then(|config| config.get(name)).filter(|value| !value.is_null()).cloned();
    // The second name is that of its trial.
    if let Some(format) = of_config("format").or(fields.take("output_format", FORMAT)?) {
        let schema = format.get("schema").filter(|_| format["type"] == "json_schema");
        let schema = schema.ok_or_else(|| unexpected("output_config.format", FORMAT, &format))?;
        let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
        fields.0.insert("response_format".into(), format);
    }
    fields.0.extend(of_config("effort").map(|effort| ("reasoning_effort".to_owned(), effort)));
    if let Some(thinking) = fields.take::<Value>("thinking", "an object with a type")? {
        let thinks = thinking["type"].as_str().map(|kind| kind != "disabled");
        fields.0.extend(thinks.map(|thinks| ("enable_thinking".to_owned(), thinks.into())));
        if let Some(budget) = thinking.get("budget_tokens").filter(|_| thinks == Some(true)) {
            fields.0.insert("thinking_budget_tokens".into(), budget.clone());
        }
    }
    Ok(fields.0)
}

fn tool(tool: &Value) -> Value {
    let function =
        json!({"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]});
    json!({"type": "function", "function": function})
}

/// The texts of a content that is a text or blocks of text.
fn texts(content: &Value) -> Option<Vec<&str>> {
    match content {
        Value::String(text) => Some(vec![text]),
        blocks => blocks.as_array()?.iter().map(|block| block.get("text")?.as_str()).collect(),
    }
}

/// Adds the messages that a turn is: results are messages of their own, before the user's text.
fn add_turn(turn: &Value, messages: &mut Vec<Value>) -> Option<()> {
    let role = turn.get("role")?.as_str()?;
    let content = turn.get("content")?;
    if content.is_string() {
        messages.push(json!({"role": role, "content": content}));
        return Some(());
    }
    let (mut said, mut images, mut reasoning, mut calls) = (Vec::new(), Vec::new(), String::new(), Vec::new());
    for block in content.as_array()? {
        match block.get("type")?.as_str()? {
            "text" => said.push(block.get("text")?.as_str()?),
            "image" => images.push(image(block.get("source")?)?),
            "thinking" => reasoning += block.get("thinking")?.as_str()?,
            // Its vendor alone reads the first, and ran the tools of the others, whose answer follows as text.
            "redacted_thinking" | "server_tool_use" | "web_search_tool_result" => {}
            "tool_use" => {
                let function = json!({"name": block.get("name")?, "arguments": block.get("input")?});
                calls.push(json!({"id": block.get("id")?, "type": "function", "function": function}));
            }
            "tool_result" => {
                let output = block.get("content").filter(|content| !content.is_null());
                let output = output.map_or(Some("".into()), result)?;
                messages.push(json!({"role": "tool", "tool_call_id": block.get("tool_use_id")?, "content": output}));
            }
            _ => return None,
        }
    }
    if said.is_empty()
        && images.is_empty()
        && calls.is_empty()
        && messages.last().is_some_and(|last| last["role"] == "tool")
    {
        return Some(());
    }
    let text = said.join("\n\n");
    let content: Value = match images.is_empty() {
        true => text.into(),
        false => images.into_iter().chain([json!({"type": "text", "text": text})]).collect(),
    };
    let mut message = json!({"role": role, "content": content});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    messages.push(message);
    Some(())
}

/// The content of a tool's result: texts on lines of their own, and images.
fn result(content: &Value) -> Option<Value> {
    if let Some(texts) = texts(content) {
        return Some(texts.join("\n").into());
    }
    let part = |block: &Value| match block.get("type")?.as_str()? {
        "text" => Some(json!({"type": "text", "text": format!("{}\n", block.get("text")?.as_str()?)})),
        "image" => image(block.get("source")?),
        _ => None,
    };
    content.as_array()?.iter().map(part).collect()
}

/// The image of a source in base64, by OpenAI's names.
fn image(source: &Value) -> Option<Value> {
    let (kind, data) = (source.get("media_type")?.as_str()?, source.get("data")?.as_str()?);
    let is_inside = source.get("type").is_some_and(|kind| kind == "base64");
    is_inside.then(|| json!({"type": "image_url", "image_url": {"url": format!("data:{kind};base64,{data}")}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: Value) -> Result<Value, String> {
        let Value::Object(fields) = body else { panic!("an object") };
        chat_request(fields).map(Value::Object).map_err(|error| error.message)
    }

    #[test]
    fn calls_and_results_become_messages() {
        let tool_use = json!({"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}});
        let result = json!({"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "b"}]});
        let searched = json!({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}});
        let found = json!({"type": "web_search_tool_result", "tool_use_id": "s1", "content": []});
        let read = chat(json!({
            "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1"}, {"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [searched, found, {"type": "thinking", "thinking": "Hm.", "signature": ""}, tool_use]},
                {"role": "user", "content": [result, {"type": "text", "text": "c"}]},
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web_search"}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }))
        .unwrap();
        let call = json!({"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        assert_eq!(
            read["messages"],
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "Hm."},
                {"role": "tool", "tool_call_id": "t1", "content": "b"},
                {"role": "user", "content": "c"},
            ])
        );
        assert_eq!(read["tools"].as_array().unwrap().len(), 1);
        assert_eq!((&read["tool_choice"], &read["parallel_tool_calls"]), (&json!("any"), &json!(false)));
        assert_eq!((&read["enable_thinking"], &read["thinking_budget_tokens"]), (&json!(true), &json!(1024)));
    }

    #[test]
    fn images_come_before_the_text() {
        let source = json!({"type": "base64", "media_type": "image/png", "data": "QUI="});
        let content = json!([{"type": "text", "text": "a"}, {"type": "image", "source": source}]);
        let read = chat(json!({"messages": [{"role": "user", "content": content}]})).unwrap();
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUI="}});
        assert_eq!(read["messages"][0]["content"], json!([image, {"type": "text", "text": "a"}]));
    }

    #[test]
    fn a_result_has_texts_and_images() {
        let source = json!({"type": "base64", "media_type": "image/png", "data": "QUI="});
        let text = json!({"type": "text", "text": "a"});
        let result = |content: Value| {
            let result = json!({"type": "tool_result", "tool_use_id": "1", "content": content});
            chat(json!({"messages": [{"role": "user", "content": [result]}]})).map(|read| read["messages"][0].clone())
        };
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUI="}});
        let read = result(json!([text, {"type": "image", "source": source}])).unwrap();
        assert_eq!(read["content"], json!([{"type": "text", "text": "a\n"}, image]));
        assert_eq!(result(json!([text, text])).unwrap()["content"], "a\na");
        assert!(result(json!([{"type": "image", "source": {"type": "url"}}])).is_err());
        assert_eq!(result(Value::Null).unwrap()["content"], "");
    }

    #[test]
    fn the_output_has_a_schema_and_an_effort() {
        let schema = json!({"type": "object"});
        let read = |body: Value| {
            let mut body = body;
            body["messages"] = json!([{"role": "user", "content": "a"}]);
            chat(body)
        };
        let format = json!({"type": "json_schema", "schema": schema});
        let expected = json!({"type": "json_schema", "json_schema": {"schema": schema}});
        let both = read(json!({"output_config": {"format": format, "effort": "low"}})).unwrap();
        assert_eq!((&both["response_format"], &both["reasoning_effort"]), (&expected, &json!("low")));
        assert_eq!(read(json!({"output_format": format})).unwrap()["response_format"], expected);
        assert!(read(json!({"output_config": {"effort": "low"}})).unwrap().get("response_format").is_none());
        for wrong in [json!({"type": "json"}), json!({"type": "json_schema"}), json!(1)] {
            let refused = read(json!({"output_format": wrong})).unwrap_err();
            assert!(refused.starts_with("output_config.format: expected an object with a type"), "{refused}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert!(chat(json!({})).unwrap_err().starts_with("messages: expected"));
        let image = json!([{"type": "image", "source": {"type": "url", "url": "http://a"}}]);
        for turn in
            [json!("a"), json!({"role": "user"}), json!({"role": "user", "content": image}), json!({"content": "a"})]
        {
            let message = chat(json!({"messages": [turn]})).unwrap_err();
            assert!(message.starts_with("messages[0]: expected a role"), "{message}");
        }
    }
}
