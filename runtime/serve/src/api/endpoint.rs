//! Which API a request is of: how it is translated, and the form of its errors.

use axum::response::Response;
use serde_json::{Map, Value};
use unicorn_text::Tokenizer;

use super::error::ApiError;
use super::namespaces::Namespaces;
use super::prompt::Prompt;
use super::request::Endpoint;
use crate::llama::infill;
use crate::observer::Operation;
use crate::{anthropic, ollama, openai};

/// An endpoint that generates text, of any API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`.
    Messages,
    /// Ollama's `/api/chat`.
    OllamaChat,
    /// Ollama's `/api/generate`.
    OllamaGenerate,
    /// llama-server's `/completion`.
    Llama,
    /// llama-server's `/infill`.
    Infill,
}

/// A request by OpenAI's names, and its prompt where that is made of several fields.
pub(crate) struct Translated {
    pub(crate) endpoint: Endpoint,
    pub(crate) fields: Map<String, Value>,
    pub(crate) prompt: Option<Prompt>,
    /// Namespaces of its tools.
    pub(crate) namespaces: Namespaces,
}

/// Paths of endpoints that generate text.
pub(crate) const GENERATE: [(&str, Api); 13] = [
    ("/v1/chat/completions", Api::Chat),
    ("/chat/completions", Api::Chat),
    ("/v1/completions", Api::Completions),
    ("/v1/responses", Api::Responses),
    ("/responses", Api::Responses),
    ("/v1/messages", Api::Messages),
    ("/messages", Api::Messages),
    ("/api/chat", Api::OllamaChat),
    ("/api/generate", Api::OllamaGenerate),
    ("/completion", Api::Llama),
    ("/completions", Api::Llama),
    ("/infill", Api::Infill),
    ("/v1/infill", Api::Infill),
];

impl Api {
    /// The API whose errors a path has, whether or not an endpoint is there.
    pub(crate) fn of(path: &str) -> Api {
        let generates = GENERATE.iter().find(|(generates, _)| *generates == path);
        match generates {
            Some(&(_, api)) => api,
            None if path.starts_with("/api/") => Api::OllamaChat,
            None if path.starts_with("/v1/messages/") => Api::Messages,
            None => Api::Chat,
        }
    }

    /// The request by OpenAI's names.
    ///
    /// # Errors
    /// For fields that have no translation.
    pub(crate) fn translate(
        self,
        mut fields: Map<String, Value>,
        tokenizer: &Tokenizer,
    ) -> Result<Translated, ApiError> {
        let of = |endpoint, fields, prompt| Translated { endpoint, fields, prompt, namespaces: Namespaces::default() };
        let chat = |fields| of(Endpoint::ChatCompletions, fields, None);
        let plain = |fields, prompt| of(Endpoint::Completions, fields, prompt);
        Ok(match self {
            Api::Chat => chat(fields),
            Api::Responses => {
                let (fields, namespaces) = openai::responses::chat_request(fields)?;
                Translated { namespaces, ..chat(fields) }
            }
            Api::Messages => chat(anthropic::request::chat_request(fields)?),
            Api::OllamaChat => chat(ollama::request::chat(fields)?),
            Api::OllamaGenerate => match ollama::request::generate(fields)? {
                (true, fields) => chat(fields),
                (false, fields) => with_suffix(fields, tokenizer)?,
            },
            Api::Completions | Api::Llama => with_suffix(fields, tokenizer)?,
            Api::Infill => {
                let prompt = infill::request_prompt(tokenizer, &mut fields)?;
                fields.insert("prompt".into(), "".into());
                plain(fields, Some(prompt))
            }
        })
    }

    /// Whether a request is for no text: Ollama's clients send one so that the model is loaded before a person has typed.
    pub(crate) fn only_loads(self, fields: &Map<String, Value>) -> bool {
        let is_empty = |name: &str| fields.get(name).is_none_or(|text| text.is_null() || text == "");
        match self {
            Api::OllamaGenerate => is_empty("prompt") && is_empty("suffix"),
            Api::OllamaChat => {
                fields.get("messages").is_none_or(|all| all.is_null() || all.as_array().is_some_and(Vec::is_empty))
            }
            _ => false,
        }
    }

    /// What a request of the API asks of the model.
    pub(crate) fn operation(self) -> Operation {
        match self {
            Api::Chat | Api::Responses | Api::Messages | Api::OllamaChat => Operation::Chat,
            Api::Completions | Api::OllamaGenerate | Api::Llama | Api::Infill => Operation::Completion,
        }
    }

    /// An error in the form of the API.
    pub(crate) fn error(self, error: &ApiError) -> Response {
        let body = match self {
            Api::Messages => error.anthropic(),
            Api::OllamaChat | Api::OllamaGenerate => error.ollama(),
            _ => error.json(),
        };
        error.response(&body)
    }
}

/// A completion; with a suffix, of a text in the middle.
fn with_suffix(mut fields: Map<String, Value>, tokenizer: &Tokenizer) -> Result<Translated, ApiError> {
    let suffix = fields.remove("suffix");
    let suffix = suffix.as_ref().and_then(Value::as_str).filter(|suffix| !suffix.is_empty());
    let prompt = match (suffix, fields.get("prompt")) {
        (Some(suffix), Some(Value::String(prefix))) => Some(infill::prompt(tokenizer, &[], prefix, suffix)?),
        (Some(_), _) => return Err(ApiError::parameter("suffix", "expected a prompt that is one text beside it")),
        (None, _) => None,
    };
    Ok(Translated { endpoint: Endpoint::Completions, fields, prompt, namespaces: Namespaces::default() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use unicorn_text::{TokenizerSection, default_sampling};

    use super::*;
    use crate::api::request::Request;

    fn tokenizer() -> Tokenizer {
        let json = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null, "decoder": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0,
            "<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3, "<file_sep>": 4}}}"#;
        Tokenizer::new(&TokenizerSection { tokenizer_json: json.into(), ..TokenizerSection::default() }).unwrap()
    }

    /// The sound request of each API.
    fn sound() -> [(Api, Value); 8] {
        let messages = json!([{"role": "user", "content": "a"}]);
        let tool_use = json!({"type": "tool_use", "id": "1", "name": "f", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "1", "content": "b"});
        let turns =
            json!([messages[0], {"role": "assistant", "content": [tool_use]}, {"role": "user", "content": [result]}]);
        let items = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "b"},
        ]);
        let options = json!({"num_predict": 1, "temperature": 0});
        [
            (Api::Chat, json!({"messages": messages})),
            (Api::Completions, json!({"prompt": "a", "suffix": "b"})),
            (
                Api::Responses,
                json!({"input": items, "instructions": "c", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}}),
            ),
            (
                Api::Messages,
                json!({
                    "messages": turns, "system": [{"type": "text", "text": "c"}], "tools": [{"name": "f", "input_schema": {}}],
                    "tool_choice": {"type": "any"}, "stop_sequences": ["d"], "thinking": {"type": "enabled"},
                }),
            ),
            (Api::OllamaChat, json!({"messages": messages, "options": options, "think": true, "format": ""})),
            (
                Api::OllamaGenerate,
                json!({"prompt": "a", "system": "b", "raw": false, "suffix": "", "options": options}),
            ),
            (Api::Llama, json!({"prompt": [1, "a"], "n_predict": 1})),
            (
                Api::Infill,
                json!({"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": [{"filename": "f", "text": "t"}]}),
            ),
        ]
    }

    fn read(api: Api, body: &Value, tokenizer: &Tokenizer) -> Result<Request, ApiError> {
        let fields = body.as_object().expect("an object").clone();
        let translated = api.translate(fields, tokenizer)?;
        Request::from_fields(translated.endpoint, translated.fields, &default_sampling())
    }

    #[test]
    fn any_value_in_any_place_of_any_api_is_read_or_refused() {
        let deep = (0..300).fold(json!([]), |inner, _| json!([inner]));
        let values = [
            Value::Null,
            json!(true),
            json!(0),
            json!(-1),
            json!(1e308),
            json!(u64::MAX),
            json!(""),
            json!("\u{0}\u{ffff}"),
            json!([]),
            json!([[]]),
            json!([1, "a"]),
            json!({}),
            json!([{}]),
            json!({"type": 1}),
            json!([{"type": "text"}]),
            json!([{"role": "user"}]),
            json!([{"role": "user", "content": [{"type": "tool_result"}]}]),
            json!([{"type": "function_call"}]),
            deep,
        ];
        let tokenizer = tokenizer();
        for (api, sound) in sound() {
            read(api, &sound, &tokenizer).unwrap_or_else(|error| panic!("{api:?}: {error:?}"));
            for name in sound.as_object().unwrap().keys() {
                for value in &values {
                    let mut request = sound.clone();
                    request[name] = value.clone();
                    if let Err(error) = read(api, &request, &tokenizer) {
                        assert!(error.status.is_client_error() && error.message.contains(": "), "{error:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_request_without_text_loads_the_model() {
        let loads = |api: Api, body: Value| api.only_loads(body.as_object().unwrap());
        assert!(loads(Api::OllamaGenerate, json!({"model": "m"})));
        assert!(loads(Api::OllamaGenerate, json!({"model": "m", "prompt": "", "suffix": ""})));
        assert!(loads(Api::OllamaChat, json!({"messages": []})) && loads(Api::OllamaChat, json!({"model": "m"})));
        assert!(
            !loads(Api::OllamaGenerate, json!({"prompt": "a"})) && !loads(Api::OllamaGenerate, json!({"suffix": "a"}))
        );
        assert!(!loads(Api::OllamaChat, json!({"messages": 1})) && !loads(Api::Completions, json!({"prompt": ""})));
    }

    #[test]
    fn text_in_the_middle_stands_between_the_model_s_tokens() {
        let tokenizer = tokenizer();
        let prompt = |api: Api, body: Value| {
            api.translate(body.as_object().unwrap().clone(), &tokenizer).map(|read| read.prompt)
        };
        let token = |id: u32| Prompt::Tokens(vec![id]);
        let text = |text: &str| Prompt::Text(text.to_owned());
        let middle = vec![token(1), text("a"), token(2), text("b"), token(3)];
        assert_eq!(
            prompt(Api::Completions, json!({"prompt": "a", "suffix": "b"})),
            Ok(Some(Prompt::Mixed([vec![text("")], middle.clone()].concat())))
        );
        let file = json!([{"filename": "f", "text": "t"}]);
        let with_file = [vec![text(""), token(4), text("f\nt\n")], middle].concat();
        let body = json!({"input_prefix": "a", "input_suffix": "b", "input_extra": file});
        assert_eq!(prompt(Api::Infill, body), Ok(Some(Prompt::Mixed(with_file))));
        assert!(prompt(Api::Infill, json!({"input_extra": [{"filename": 1}]})).is_err());
    }
}
