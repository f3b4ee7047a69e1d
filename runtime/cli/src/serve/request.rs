//! What clients may ask for, as OpenAI's API has it (<https://platform.openai.com/docs/api-reference>), with llama.cpp's further
//! sampling parameters. A parameter that would change the answer and that we do not have is refused, others are ignored.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use crate::args::SamplingArgs;
use crate::template::Message;
use unicorn_runtime::Sampling;

/// Which of the two ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
}

/// A request whose every parameter is one that we have and in its range.
#[derive(Debug)]
pub struct Request {
    /// One at least.
    pub prompts: Vec<Prompt>,
    /// Choices for each prompt, one at least.
    pub n: u32,
    pub sampling: Sampling,
    pub max_tokens: Option<u32>,
    pub stop_strings: Vec<String>,
    pub stream: bool,
    pub include_usage: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Chat(Vec<Message>),
    Text(String),
    Tokens(Vec<u32>),
}

/// Of all prompts together.
pub const MOST_CHOICES: usize = 128;
/// Of a value that a message repeats.
const MOST_CHARACTERS: usize = 80;

/// Of a request, and bytes of each.
const MOST_STOP_STRINGS: usize = 16;
const MOST_STOP_BYTES: usize = 1 << 10;

/// Parameters that we lack, OpenAI's and those of llama.cpp and vLLM, with the value that asks for nothing.
fn lacking() -> Vec<(&'static str, Value)> {
    vec![
        ("audio", Value::Null),
        ("best_of", json!(1)),
        ("dry_multiplier", json!(0.0)),
        ("echo", json!(false)),
        ("frequency_penalty", json!(0.0)),
        ("function_call", json!("none")),
        ("functions", json!([])),
        ("grammar", json!("")),
        ("guided_choice", Value::Null),
        ("guided_grammar", Value::Null),
        ("guided_json", Value::Null),
        ("guided_regex", Value::Null),
        ("ignore_eos", json!(false)),
        ("json_schema", json!({})),
        ("logit_bias", json!({})),
        ("logprobs", json!(false)),
        ("min_tokens", json!(0)),
        ("mirostat", json!(0)),
        ("modalities", json!(["text"])),
        ("presence_penalty", json!(0.0)),
        ("prompt_logprobs", Value::Null),
        ("response_format", json!({"type": "text"})),
        ("stop_token_ids", json!([])),
        ("structured_outputs", Value::Null),
        ("suffix", json!("")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("typical_p", json!(1.0)),
        ("use_beam_search", json!(false)),
        ("xtc_probability", json!(0.0)),
    ]
}

impl Request {
    /// Reads the body of a request; `defaults` stand for what it does not say of sampling.
    ///
    /// # Errors
    /// For what is not JSON, not in its range, or asks for what we do not have.
    pub fn parse(kind: Kind, body: &[u8], defaults: &SamplingArgs) -> Result<Request, Refusal> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| Refusal::bad_request(format!("body: expected JSON, found {error}")))?;
        let Value::Object(fields) = body else {
            return Err(Refusal::bad_request(format!("body: expected an object, found {}", shown(&body))));
        };
        let mut fields = Fields(fields);
        for (name, nothing) in lacking() {
            fields.refuse_unless(name, &nothing)?;
        }
        // Without tools there is nothing to choose.
        if fields.0.get("tool_choice") != Some(&json!("auto")) {
            fields.refuse_unless("tool_choice", &json!("none"))?;
        }
        let prompts = match kind {
            Kind::Chat => vec![Prompt::Chat(messages(fields.need("messages", "a list of messages")?)?)],
            Kind::Text => prompts(&fields.need("prompt", PROMPT)?)?,
        };
        let n = fields.take("n", "a whole number")?.unwrap_or(1u32);
        if n == 0 || prompts.len().saturating_mul(n as usize) > MOST_CHOICES {
            let expected =
                format!("expected 1 to {MOST_CHOICES} choices in all, found {n} for each of {}", prompts.len());
            return Err(Refusal::parameter("n", expected));
        }
        let stream_options: Option<Map<String, Value>> = fields.take("stream_options", "an object")?;
        let include_usage =
            stream_options.map(|options| Fields(options).take("include_usage", BOOLEAN)).transpose()?.flatten();
        Ok(Request {
            prompts,
            n,
            sampling: sampling(&mut fields, defaults)?,
            max_tokens: max_tokens(&mut fields)?,
            stop_strings: stop_strings(fields.take("stop", STOP)?)?,
            stream: fields.take("stream", BOOLEAN)?.unwrap_or(false),
            include_usage: include_usage.unwrap_or(false),
        })
    }
}

const BOOLEAN: &str = "true or false";
const COUNT: &str = "a whole number above 0, or -1 for as many as there is room for";
const NUMBER: &str = "a number";
const PROMPT: &str = "text, a list of texts, token ids, or a list of lists of token ids";
const STOP: &str = "a text or a list of texts";

/// The parameters of a request, or of a part of one.
struct Fields(Map<String, Value>);

impl Fields {
    /// A parameter that may be left out or null.
    fn take<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.0.remove(name).filter(|value| !value.is_null()) else { return Ok(None) };
        match T::deserialize(&value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(unexpected(name, expected, &value)),
        }
    }

    fn need<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Result<T, Refusal> {
        let missing = || Refusal::parameter(name, format!("expected {expected}, found nothing"));
        self.take(name, expected)?.ok_or_else(missing)
    }

    fn refuse_unless(&mut self, name: &str, nothing: &Value) -> Result<(), Refusal> {
        let asked = self.0.remove(name).filter(|value| !value.is_null());
        // 0 and 0.0 are one number.
        let is_nothing = |value: &Value| value == nothing || (value.is_number() && value.as_f64() == nothing.as_f64());
        match asked.filter(|value| !is_nothing(value)) {
            None => Ok(()),
            Some(value) => Err(Refusal::parameter(name, format!("not supported here, found {}", shown(&value)))),
        }
    }
}

fn unexpected(name: &str, expected: &str, found: &Value) -> Refusal {
    Refusal::parameter(name, format!("expected {expected}, found {}", shown(found)))
}

/// A value as it stands in a message.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// By OpenAI's two names and llama.cpp's; `None`: as many as there is room for.
fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, Refusal> {
    let mut most = None;
    for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
        let asked: Option<i64> = fields.take(name, COUNT)?;
        if let Some(found) = asked.filter(|asked| *asked != -1 && *asked <= 0) {
            return Err(Refusal::parameter(name, format!("expected {COUNT}, found {found}")));
        }
        most = most.or(asked);
    }
    // No context is as long as u32 reaches.
    Ok(most.filter(|asked| *asked != -1).map(|asked| asked.min(u32::MAX.into()) as u32))
}

fn sampling(fields: &mut Fields, defaults: &SamplingArgs) -> Result<Sampling, Refusal> {
    let asked = SamplingArgs {
        temp: fields.take("temperature", NUMBER)?.or(defaults.temp),
        // 0 is meant as the least of all, which the most likely token reaches.
        top_p: fields
            .take("top_p", NUMBER)?
            .map(|p: f32| if p == 0.0 { f32::MIN_POSITIVE } else { p })
            .or(defaults.top_p),
        min_p: fields.take("min_p", NUMBER)?.or(defaults.min_p),
        // Others write -1 for all tokens and for a random seed.
        top_k: fields.take("top_k", "a whole number")?.map(|k: i32| k.max(0) as u32).or(defaults.top_k),
        repeat_penalty: fields
            .take("repeat_penalty", NUMBER)?
            .or(fields.take("repetition_penalty", NUMBER)?)
            .or(defaults.repeat_penalty),
        repeat_last_n: fields.take("repeat_last_n", "a whole number")?.or(defaults.repeat_last_n),
        seed: fields
            .take("seed", "a whole number")?
            .filter(|seed: &i128| *seed != -1)
            .map(|seed| seed as u64)
            .or(defaults.seed),
    };
    let sampling = asked.resolve();
    sampling.check().map_err(|error| Refusal::bad_request(error.to_string()))?;
    Ok(sampling)
}

fn stop_strings(stop: Option<Value>) -> Result<Vec<String>, Refusal> {
    let several = stop.map(|stop| if stop.is_string() { json!([stop]) } else { stop });
    match several {
        None => Ok(Vec::new()),
        Some(several) => {
            let texts: Vec<String> = Vec::deserialize(&several).map_err(|_| unexpected("stop", STOP, &several))?;
            // Each is looked for behind every token.
            if texts.len() > MOST_STOP_STRINGS || texts.iter().any(|text| text.len() > MOST_STOP_BYTES) {
                let expected = format!("{MOST_STOP_STRINGS} texts of {MOST_STOP_BYTES} bytes each, at most");
                return Err(unexpected("stop", &expected, &several));
            }
            Ok(texts)
        }
    }
}

fn prompts(prompt: &Value) -> Result<Vec<Prompt>, Refusal> {
    let one = |prompt: &Value| match prompt {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        tokens => Vec::deserialize(tokens).ok().map(Prompt::Tokens),
    };
    let several = |prompt: &Value| prompt.as_array()?.iter().map(one).collect::<Option<Vec<Prompt>>>();
    let prompts = one(prompt).map(|one| vec![one]).or_else(|| several(prompt));
    prompts.ok_or_else(|| unexpected("prompt", PROMPT, prompt))
}

fn messages(messages: Vec<Value>) -> Result<Vec<Message>, Refusal> {
    if messages.is_empty() {
        return Err(Refusal::parameter("messages", "expected one message at least, found none"));
    }
    let numbered = messages.into_iter().enumerate();
    numbered
        .map(|(index, value)| message(&value).ok_or_else(|| unexpected(&format!("messages[{index}]"), MESSAGE, &value)))
        .collect()
}

const MESSAGE: &str = "a role and a content that is text or a list of parts of text, without calls of tools";

fn message(value: &Value) -> Option<Message> {
    let role = value.get("role")?.as_str()?.to_owned();
    // A conversation without its calls of tools is another one.
    let calls = value.get("tool_calls").filter(|calls| !calls.is_null());
    if calls.is_some_and(|calls| calls.as_array().is_none_or(|calls| !calls.is_empty())) {
        return None;
    }
    let content = match value.get("content")? {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        parts => parts.as_array()?.iter().map(text_part).collect::<Option<String>>()?,
    };
    Some(Message { role, content })
}

fn text_part(part: &Value) -> Option<&str> {
    // An assistant that has refused is told so in another kind of part.
    let kind = part.get("type")?.as_str().filter(|kind| ["text", "refusal"].contains(kind))?;
    part.get(kind)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: Kind, body: Value) -> Result<Request, String> {
        let defaults = SamplingArgs { top_k: Some(5), seed: Some(1), ..SamplingArgs::default() };
        Request::parse(kind, body.to_string().as_bytes(), &defaults).map_err(|refusal| refusal.message)
    }

    fn text(body: Value) -> Result<Request, String> {
        let mut whole = json!({"prompt": "Hello"});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        parse(Kind::Text, whole)
    }

    #[test]
    fn a_prompt_is_text_or_tokens_or_several_of_them() {
        let prompts = |prompt: Value| parse(Kind::Text, json!({"prompt": prompt})).map(|request| request.prompts);
        let (hello, bye) = (Prompt::Text("Hello".into()), Prompt::Text("Bye".into()));
        assert_eq!(prompts(json!("Hello")), Ok(vec![hello.clone()]));
        assert_eq!(prompts(json!(["Hello", "Bye"])), Ok(vec![hello, bye]));
        assert_eq!(prompts(json!([1, 2])), Ok(vec![Prompt::Tokens(vec![1, 2])]));
        assert_eq!(prompts(json!([[1], [2]])), Ok(vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])]));
        assert!(prompts(json!([1, "Hello"])).unwrap_err().ends_with("found [1,\"Hello\"]"));
    }

    #[test]
    fn a_message_is_text_or_parts_of_text() {
        let messages =
            |message: Value| parse(Kind::Chat, json!({"messages": [message]})).map(|request| request.prompts);
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(
            messages(json!({"role": "user", "content": parts})),
            Ok(vec![Prompt::Chat(vec![Message::new("user", "ab")])])
        );
        assert_eq!(
            messages(json!({"role": "assistant", "content": null, "tool_calls": []})),
            Ok(vec![Prompt::Chat(vec![Message::new("assistant", "")])])
        );
        let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
        for refused in [
            json!({"role": "user", "content": image}),
            json!({"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}),
            json!({"content": "a"}),
            json!("a"),
        ] {
            assert!(messages(refused).unwrap_err().starts_with("messages[0]: expected a role"));
        }
    }

    #[test]
    fn what_a_request_does_not_say_is_the_server_s() {
        let sampling = text(json!({"temperature": 0.5, "top_p": null})).unwrap().sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed), (0.5, 5, 0.95, 1));
        let sampling = text(json!({"top_k": -1, "seed": -7, "repetition_penalty": 1.5})).unwrap().sampling;
        assert_eq!((sampling.top_k, sampling.seed, sampling.repeat_penalty), (0, -7i64 as u64, 1.5));
        let request = text(json!({"max_tokens": 3, "stop": "END", "stream_options": {}})).unwrap();
        assert_eq!((request.max_tokens, request.stop_strings, request.n), (Some(3), vec!["END".to_owned()], 1));
        assert!(!request.stream && !request.include_usage);
    }

    #[test]
    fn other_servers_ways_to_ask_for_the_same_are_understood() {
        let most = |body: Value| text(body).map(|request| request.max_tokens);
        assert_eq!(most(json!({"n_predict": 4})), Ok(Some(4)));
        assert_eq!(most(json!({"max_tokens": -1, "n_predict": 4})), Ok(None));
        assert_eq!(most(json!({"max_completion_tokens": 10_000_000_000u64})), Ok(Some(u32::MAX)));
        assert!(most(json!({"max_tokens": -2})).unwrap_err().starts_with("max_tokens: expected a whole number"));
        let sampling = |body: Value| text(body).unwrap().sampling;
        assert_eq!(sampling(json!({"seed": u64::MAX})).seed, u64::MAX);
        assert!(sampling(json!({"top_p": 0})).top_p > 0.0);
        assert!(text(json!({"tool_choice": "auto"})).is_ok() && text(json!({"tool_choice": "required"})).is_err());
    }

    #[test]
    fn what_we_lack_is_refused_unless_it_asks_for_nothing() {
        let asks_nothing = json!({"logprobs": null, "frequency_penalty": 0, "tools": [], "response_format": {"type": "text"}, "user": "me"});
        assert!(text(asks_nothing).is_ok());
        for (name, value) in [("frequency_penalty", json!(0.5)), ("echo", json!(true)), ("logit_bias", json!({"1": 2}))]
        {
            let message = text(json!({name: value})).unwrap_err();
            assert!(message.starts_with(&format!("{name}: not supported here, found ")), "{message}");
        }
    }

    #[test]
    fn a_message_repeats_no_more_than_a_line_of_what_it_found() {
        let message = text(json!({"temperature": "é".repeat(1000)})).unwrap_err();
        assert!(message.starts_with("temperature: expected a number, found \"éé") && message.len() < 300, "{message}");
        assert!(text(json!({"n": 129})).unwrap_err().starts_with("n: expected 1 to 128 choices"));
        assert!(text(json!({"max_tokens": 0})).is_err() && text(json!({"top_p": 1.5})).is_err());
        let many = vec!["a"; 17];
        assert!(text(json!({"stop": many})).unwrap_err().starts_with("stop: expected 16 texts"));
    }
}
