//! Requests of Ollama's API by OpenAI's names.

use serde_json::{Map, Value, json};

use crate::api::error::ApiError;
use crate::api::fields::{Fields, unexpected};

/// Names of options, and OpenAI's or llama-server's.
const RENAMED: [(&str, &str); 1] = [("num_predict", "max_tokens")];

/// The request for a chat completion.
///
/// # Errors
/// For fields of another type.
pub(crate) fn chat(fields: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let mut fields = Fields(fields);
    let messages: Vec<Value> = fields.require("messages", "a list of messages")?;
    let messages: Vec<Value> = messages.into_iter().map(message).collect();
    fields.0.insert("messages".into(), messages.into());
    common(fields)
}

/// The request for the reply to a prompt: a chat of one message, or with `raw`, a completion.
///
/// # Errors
/// For fields of another type.
pub(crate) fn generate(fields: Map<String, Value>) -> Result<(bool, Map<String, Value>), ApiError> {
    let mut fields = Fields(fields);
    let is_raw = fields.take("raw", "true or false")?.unwrap_or(false);
    if !is_raw && fields.0.get("suffix").is_none_or(|suffix| suffix == "") {
        let prompt: String = fields.require("prompt", "a text")?;
        let system: Option<String> = fields.take("system", "a text")?.filter(|system: &String| !system.is_empty());
        let system = system.map(|system| json!({"role": "system", "content": system}));
        let images: Option<Value> = fields.take("images", "a list of images in base64")?;
        let content = images.map_or(prompt.as_str().into(), |images| images_before(&images, &prompt.as_str().into()));
        let messages: Vec<Value> = system.into_iter().chain([json!({"role": "user", "content": content})]).collect();
        fields.0.insert("messages".into(), messages.into());
        return Ok((true, common(fields)?));
    }
    Ok((false, common(fields)?))
}

/// Calls have no ids, results have the name of their tool, images and reasoning a field of their own, and roles capitals.
fn message(mut message: Value) -> Value {
    let Some(fields) = message.as_object_mut() else { return message };
    if let Some(role) = fields.get_mut("role").filter(|role| role.is_string()) {
        *role = role.as_str().unwrap_or_default().to_lowercase().into();
    }
    if let Some(thinking) = fields.remove("thinking").filter(|thinking| *thinking != "") {
        fields.insert("reasoning_content".into(), thinking);
    }
    if let Some(name) = fields.remove("tool_name") {
        fields.insert("name".into(), name);
    }
    if let Some(images) = fields.remove("images").filter(|images| images.as_array().is_some_and(|all| !all.is_empty()))
    {
        let said = fields.remove("content").unwrap_or_default();
        let parts = images_before(&images, &said);
        fields.insert("content".into(), parts);
    }
    message
}

/// Images, which are files in base64, and the text behind them.
fn images_before(images: &Value, text: &Value) -> Value {
    let image = |data: &Value| {
        // What is no text is refused as an image.
        let address = data.as_str().map(|data| format!("data:image/png;base64,{data}"));
        json!({"type": "image_url", "image_url": {"url": address}})
    };
    let text = json!({"type": "text", "text": text});
    images.as_array().into_iter().flatten().map(image).chain([text]).collect()
}

fn common(mut fields: Fields) -> Result<Map<String, Value>, ApiError> {
    let options: Map<String, Value> = fields.take("options", "an object")?.unwrap_or_default();
    for (name, value) in options {
        let known = RENAMED.iter().find(|(ollama, _)| *ollama == name).map_or(name.as_str(), |(_, openai)| openai);
        // -2 fills the context, as no limit does.
        let value = if known == "max_tokens" && value == -2 { json!(-1) } else { value };
        fields.0.entry(known).or_insert(value);
    }
    match fields.take::<Value>("think", "true, false or a text")? {
        None => {}
        Some(Value::Bool(thinks)) => drop(fields.0.insert("enable_thinking".into(), thinks.into())),
        Some(Value::String(effort)) => drop(fields.0.insert("reasoning_effort".into(), effort.into())),
        Some(other) => return Err(unexpected("think", "true, false or a text", &other)),
    }
    match fields.take::<Value>("format", "json or a schema")? {
        None => {}
        Some(Value::String(format)) if format.is_empty() => {}
        Some(Value::String(format)) if format == "json" => {
            drop(fields.0.insert("response_format".into(), json!({"type": "json_object"})))
        }
        Some(text @ Value::String(_)) => return Err(unexpected("format", "\"json\" or a schema", &text)),
        Some(schema) => {
            let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
            fields.0.insert("response_format".into(), format);
        }
    }
    // Here it is for `logprobs` alone.
    if fields.0.get("logprobs") != Some(&true.into()) {
        fields.0.remove("top_logprobs");
    }
    // A response is a stream unless the request has `stream: false`.
    fields.0.entry("stream").or_insert(true.into());
    Ok(fields.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: Value) -> Map<String, Value> {
        body.as_object().unwrap().clone()
    }

    #[test]
    fn options_are_parameters() {
        let read = chat(fields(json!({
            "model": "m", "messages": [{"role": "tool", "tool_name": "f", "content": "b"}], "think": "low", "format": "json",
            "options": {"num_predict": -2, "temperature": 0, "num_ctx": 4096},
        })))
        .unwrap();
        assert_eq!(read["messages"], json!([{"role": "tool", "content": "b", "name": "f"}]));
        assert_eq!((&read["max_tokens"], &read["temperature"], &read["stream"]), (&json!(-1), &json!(0), &json!(true)));
        assert_eq!(
            (&read["reasoning_effort"], &read["response_format"]),
            (&json!("low"), &json!({"type": "json_object"}))
        );
        assert!(chat(fields(json!({"messages": 1}))).is_err());
        assert!(chat(fields(json!({"messages": [], "format": "xml"}))).is_err());
        let read = chat(fields(json!({
            "messages": [{"role": "User", "content": "a"}, {"role": "assistant", "content": "b", "thinking": "Hm."}], "top_logprobs": 2,
        })));
        let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "Hm."}]);
        let read = read.unwrap();
        assert_eq!((&read["messages"], read.get("top_logprobs")), (&messages, None));
    }

    #[test]
    fn a_prompt_is_a_chat_unless_it_is_raw() {
        let (is_chat, read) = generate(fields(json!({"prompt": "a", "system": "b", "stream": false}))).unwrap();
        assert!(is_chat && read["stream"] == false);
        assert_eq!(read["messages"], json!([{"role": "system", "content": "b"}, {"role": "user", "content": "a"}]));
        let (is_chat, read) = generate(fields(json!({"prompt": "a", "raw": true}))).unwrap();
        assert!(!is_chat && read["prompt"] == "a");
    }
}
