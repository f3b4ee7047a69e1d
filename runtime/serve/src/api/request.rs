//! Requests of OpenAI's API (<https://platform.openai.com/docs/api-reference>) with llama.cpp's further sampling parameters.
//! A parameter that would change the answer and is not implemented is an error; other unknown parameters are ignored.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use unicorn_structure::Structure;
use unicorn_text::unicorn_runtime::{HostSampling, Sampling};
use unicorn_text::{Message, TemplateArguments};

use super::error::ApiError;
use super::fields::{BOOLEAN, Fields, object, unexpected};
use super::namespaces::Namespaces;
use super::prompt::{PROMPT, Prompt, messages, prompts};
use super::sampling::{BIAS, BiasedText, chosen_samplers, further_sampling, logit_bias, sampling, seed};
use super::structure::structure;
use super::tools::{ToolChoice, tools};

/// An endpoint that generates text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`: a conversation, put into the model's chat template.
    ChatCompletions,
    /// `/v1/completions`: a prompt, continued as it is.
    Completions,
}

/// A request whose parameters are all implemented and in their ranges.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Prompts, at least one; times `best_of`, at most [`MAX_CHOICES`].
    pub prompts: Vec<Prompt>,
    /// Choices for each prompt, at least one.
    pub n: u32,
    /// Choices that are generated for each prompt, of which the `n` most likely are in the response.
    pub best_of: u32,
    /// Sampling parameters, checked; `seed` is that of the server's defaults.
    pub sampling: Sampling,
    /// The request's own seed.
    pub seed: Option<u64>,
    /// Most tokens of a choice, never 0; `None`: no limit.
    pub max_tokens: Option<u32>,
    /// Strings that end a choice.
    pub stop_strings: Vec<String>,
    /// Whether the string that ends a choice is part of it.
    pub keeps_stop_string: bool,
    /// Token ids that end a choice, in addition to the model's own.
    pub stop_tokens: Vec<u32>,
    /// Whether the model's own stop tokens do not end a choice.
    pub ignore_eos: bool,
    /// Tokens before which no stop token ends a choice.
    pub min_tokens: u32,
    /// Place in the queue: lower numbers come first. Usually 0, as in vLLM.
    pub priority: i32,
    /// Characters of white space that lines behind the first begin with: a line with fewer ends the choice.
    pub min_indent: u32,
    /// Time since the first token after which a choice of several lines ends; `None`: no limit.
    pub max_decode: Option<Duration>,
    /// Whether a choice of plain text begins with its prompt.
    pub echo: bool,
    /// Whether special tokens are part of the text.
    pub special_tokens: bool,
    /// Whether the response lists token ids.
    pub return_tokens: bool,
    /// Whether it lists those of the prompt as well.
    pub return_prompt_tokens: bool,
    /// Sampling that the device does not do; without [`HostSampling::logit_bias`], for which the vocabulary is needed.
    pub further_sampling: HostSampling,
    /// Added to logits: negative infinity bans a token.
    pub logit_bias: Vec<(BiasedText, f32)>,
    /// What the reply has to match, and the name of the parameter that gives it.
    pub(crate) structure: Option<(&'static str, Structure)>,
    /// Tools that the model may call, in OpenAI's form. None with [`ToolChoice::None`].
    pub tools: Vec<Value>,
    /// Which of them it has to call.
    pub tool_choice: ToolChoice,
    /// Namespaces that the responses API has tools in.
    pub(crate) namespaces: Namespaces,
    /// Whether calls behind the first are left out.
    pub one_call: bool,
    /// Whether a chat completion has the reasoning.
    pub include_reasoning: bool,
    /// Whether reasoning is separated from the answer; `None`: the server's default.
    pub splits_reasoning: Option<bool>,
    /// Most tokens of reasoning; `None`: the server's default.
    pub reasoning_budget: Option<u32>,
    /// Text that ends reasoning which has as many; `None`: the server's default.
    pub reasoning_budget_message: Option<String>,
    /// Whether the last message is the beginning of the reply.
    pub continues: bool,
    /// Whether the prompt ends with the beginning of a reply, where no message is one.
    pub begins_reply: bool,
    /// Further variables of the chat template.
    pub template_arguments: TemplateArguments,
    /// Whether the response is a stream of server-sent events.
    pub stream: bool,
    /// Whether a stream ends with token counts.
    pub include_usage: bool,
    /// Whether the response has the text of the prompt, as llama-server's `__verbose`; `None`: the server's default.
    pub verbose: Option<bool>,
    /// Whether each part of a stream has llama-server's `timings`.
    pub timings_per_token: bool,
    /// Whether a stream reports how much of the prompt is in the cache, as llama-server's `prompt_progress`.
    pub return_progress: bool,
}

/// Most choices of a request, of all prompts together.
pub const MAX_CHOICES: usize = 128;
/// Stop strings of a request, and bytes of each.
const MAX_STOP_STRINGS: usize = 16;
const MAX_STOP_BYTES: usize = 1 << 10;

/// Parameters of OpenAI, llama.cpp and vLLM that are not implemented, with the value that has no effect.
fn not_implemented() -> Vec<(&'static str, Value)> {
    vec![
        ("adaptive_target", json!(-1.0)),
        ("allowed_token_ids", Value::Null),
        ("audio", Value::Null),
        ("bad_words", json!([])),
        ("chat_template", Value::Null),
        ("dry_multiplier", json!(0.0)),
        ("dynatemp_range", json!(0.0)),
        ("function_call", json!("none")),
        ("functions", json!([])),
        ("logprob_token_ids", Value::Null),
        ("lora", json!([])),
        ("mirostat", json!(0)),
        ("modalities", json!(["text"])),
        ("prompt_embeds", Value::Null),
        ("prompt_logprobs", Value::Null),
        ("truncate_prompt_tokens", Value::Null),
        ("use_beam_search", json!(false)),
        ("xtc_probability", json!(0.0)),
    ]
}

impl Request {
    /// Parses the body of a request; `defaults` are the sampling parameters that it leaves out.
    ///
    /// # Errors
    /// For a body that is not JSON, a parameter outside its range, and one that is not implemented.
    pub fn parse(endpoint: Endpoint, body: &[u8], defaults: &Sampling) -> Result<Request, ApiError> {
        Request::from_fields(endpoint, object(body)?, defaults)
    }

    /// The same from parameters that other APIs' requests were translated to.
    pub(crate) fn from_fields(
        endpoint: Endpoint,
        fields: Map<String, Value>,
        defaults: &Sampling,
    ) -> Result<Request, ApiError> {
        let mut fields = Fields(fields);
        let mut template_arguments = template_arguments(&mut fields)?;
        let reasoning_budget = reasoning_budget(&mut fields)?;
        if reasoning_budget == Some(0) {
            template_arguments.entry("enable_thinking").or_insert(false.into());
        }
        for (name, no_effect) in not_implemented() {
            fields.accept_only(name, &no_effect)?;
        }
        let continues = continues(&mut fields)?;
        let asks_for_history = continues == Some(true);
        let (prompts, continues) = match endpoint {
            Endpoint::ChatCompletions => {
                let (messages, pictures) = messages(fields.require("messages", "a list of messages")?)?;
                let is_reply = |message: &Message| message.role == "assistant" && message.fields.is_empty();
                let continues = continues.unwrap_or(true) && messages.last().is_some_and(is_reply);
                // Only one of them can continue.
                if continues && messages.iter().rev().nth(1).is_some_and(is_reply) {
                    let expected =
                        "expected one message of the assistant at the end, which the reply continues, found two";
                    return Err(ApiError::parameter("messages", expected));
                }
                (vec![Prompt::Chat { messages, pictures }], continues)
            }
            Endpoint::Completions => (prompts(&fields.require("prompt", PROMPT)?)?, false),
        };
        let echo = match endpoint {
            Endpoint::ChatCompletions => fields.accept_only("echo", &json!(false)).map(|()| false)?,
            Endpoint::Completions => fields.take("echo", BOOLEAN)?.unwrap_or(false),
        };
        let stream = fields.take("stream", BOOLEAN)?.unwrap_or(false);
        let (n, best_of) = choices(&mut fields, prompts.len(), stream)?;
        let mut sampling = sampling(&mut fields, defaults)?;
        let mut further_sampling = further_sampling(&mut fields, endpoint == Endpoint::Completions)?;
        chosen_samplers(&mut fields, &mut sampling, &mut further_sampling)?;
        if echo && stream && further_sampling.n_top.is_some() {
            return Err(ApiError::parameter(
                "echo",
                "expected false beside logprobs in a stream: those of prompts come with a whole response",
            ));
        }
        let stream_options: Option<Map<String, Value>> = fields.take("stream_options", "an object")?;
        let include_usage =
            stream_options.map(|options| Fields(options).take("include_usage", BOOLEAN)).transpose()?.flatten();
        let reasoning_format: Option<String> = fields.take("reasoning_format", "a text")?;
        let return_prompt_tokens = fields.take("return_token_ids", BOOLEAN)?.unwrap_or(false);
        let mut tools = tools(&mut fields)?;
        let tool_choice = ToolChoice::of(&mut fields, &mut tools)?;
        // A call that has to be made leaves no place for an answer.
        let has_answer = matches!(tool_choice, ToolChoice::Auto | ToolChoice::None);
        let structure = structure(&mut fields)?.filter(|_| has_answer);
        Ok(Request {
            prompts,
            n,
            best_of,
            sampling,
            seed: seed(&mut fields)?,
            max_tokens: max_tokens(&mut fields)?,
            stop_strings: stop_strings(fields.take("stop", STOP)?)?,
            keeps_stop_string: fields.take("include_stop_str_in_output", BOOLEAN)?.unwrap_or(false),
            stop_tokens: fields.take("stop_token_ids", "a list of token ids")?.unwrap_or_default(),
            ignore_eos: fields.take("ignore_eos", BOOLEAN)?.unwrap_or(false),
            min_tokens: fields.take("min_tokens", "a whole number")?.unwrap_or(0),
            priority: fields.take("priority", "a whole number")?.unwrap_or(0),
            min_indent: fields.take("n_indent", "a whole number")?.unwrap_or(0),
            max_decode: max_decode(&mut fields)?,
            echo,
            special_tokens: !fields.take("skip_special_tokens", BOOLEAN)?.unwrap_or(true),
            return_tokens: fields.take("return_tokens", BOOLEAN)?.unwrap_or(false) || return_prompt_tokens,
            return_prompt_tokens,
            further_sampling,
            logit_bias: logit_bias(fields.take("logit_bias", BIAS)?)?,
            structure,
            tools: if tool_choice == ToolChoice::None { Vec::new() } else { tools },
            tool_choice,
            namespaces: Namespaces::default(),
            one_call: !fields.take("parallel_tool_calls", BOOLEAN)?.unwrap_or(true),
            include_reasoning: fields.take("include_reasoning", BOOLEAN)?.unwrap_or(true),
            splits_reasoning: reasoning_format.map(|format| format != "none"),
            reasoning_budget,
            reasoning_budget_message: fields.take("reasoning_budget_message", "a text")?,
            continues,
            begins_reply: continues || !asks_for_history,
            template_arguments,
            stream,
            include_usage: include_usage.unwrap_or(false),
            verbose: fields.take("verbose", BOOLEAN)?,
            timings_per_token: fields.take("timings_per_token", BOOLEAN)?.unwrap_or(false),
            return_progress: fields.take("return_progress", BOOLEAN)?.unwrap_or(false),
        })
    }
}

const COUNT: &str = "a whole number above 0, or -1 for no limit";
const STOP: &str = "a text or a list of texts";

/// Choices of each of `prompts` prompts: in the response, and in all.
fn choices(fields: &mut Fields, prompts: usize, is_stream: bool) -> Result<(u32, u32), ApiError> {
    let n = fields.take("n", "a whole number")?.unwrap_or(1u32);
    let best_of: Option<u32> = fields.take("best_of", "a whole number")?;
    for (name, count) in [("n", n), ("best_of", best_of.unwrap_or(n))] {
        if count == 0 || prompts.saturating_mul(count as usize) > MAX_CHOICES {
            let expected = format!("expected 1 to {MAX_CHOICES} choices in all, found {count} for each of {prompts}");
            return Err(ApiError::parameter(name, expected));
        }
    }
    let best_of = best_of.unwrap_or(n);
    if best_of < n || (best_of > n && is_stream) {
        let expected = if is_stream { "expected no more than n in a stream" } else { "expected n at least" };
        return Err(ApiError::parameter("best_of", format!("{expected}, which is {n}, found {best_of}")));
    }
    Ok((n, best_of))
}

/// Whether the reply continues the last message: by transformers' two names for it. `None`: where that is the assistant's.
fn continues(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    let begins_new: Option<bool> = fields.take("add_generation_prompt", BOOLEAN)?;
    let continues: Option<bool> = fields.take("continue_final_message", BOOLEAN)?;
    if begins_new == Some(true) && continues == Some(true) {
        let found = "expected false beside add_generation_prompt, found true";
        return Err(ApiError::parameter("continue_final_message", found));
    }
    Ok(continues.or(begins_new.map(|begins_new| !begins_new)))
}

/// Most tokens of a choice, by OpenAI's two names and llama.cpp's; `None`: no limit.
fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let mut max_tokens = None;
    for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
        let requested: Option<i64> = fields.take(name, COUNT)?;
        if let Some(found) = requested.filter(|requested| *requested != -1 && *requested <= 0) {
            return Err(ApiError::parameter(name, format!("expected {COUNT}, found {found}")));
        }
        max_tokens = max_tokens.or(requested);
    }
    // No context has more tokens than u32::MAX.
    Ok(max_tokens.filter(|requested| *requested != -1).map(|requested| requested.min(u32::MAX.into()) as u32))
}

/// llama-server's limit of time; 0 and below: none.
fn max_decode(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    let ms: Option<i64> = fields.take("t_max_predict_ms", "a whole number of milliseconds")?;
    Ok(ms.and_then(|ms| u64::try_from(ms).ok()).filter(|&ms| ms > 0).map(Duration::from_millis))
}

/// Most tokens of reasoning, by llama-server's names and vLLM's; `None`: the server's default, for which llama-server has -1.
fn reasoning_budget(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    const BUDGET: &str = "a whole number of tokens, 0 for no reasoning, or -1 for the server's default";
    let mut budget = None;
    for name in ["thinking_budget_tokens", "reasoning_budget_tokens", "reasoning_budget", "thinking_token_budget"] {
        let requested: Option<i64> = fields.take(name, BUDGET)?;
        if let Some(found) = requested.filter(|requested| *requested < -1) {
            return Err(ApiError::parameter(name, format!("expected {BUDGET}, found {found}")));
        }
        budget = budget.or(requested.filter(|requested| *requested >= 0));
    }
    Ok(budget.map(|tokens| tokens.min(u32::MAX.into()) as u32))
}

/// Variables of the chat template, by llama-server's and vLLM's name; those of reasoning models also by names of their own.
fn template_arguments(fields: &mut Fields) -> Result<TemplateArguments, ApiError> {
    let mut arguments: TemplateArguments = fields.take("chat_template_kwargs", "an object")?.unwrap_or_default();
    if let Some(enable) = fields.take::<bool>("enable_thinking", BOOLEAN)? {
        arguments.entry("enable_thinking").or_insert(enable.into());
    }
    if let Some(effort) = fields.take::<String>("reasoning_effort", "a text")? {
        // OpenAI's word for no reasoning.
        if effort == "none" {
            arguments.entry("enable_thinking").or_insert(false.into());
        }
        arguments.entry("reasoning_effort").or_insert(effort.into());
    }
    Ok(arguments)
}

fn stop_strings(stop: Option<Value>) -> Result<Vec<String>, ApiError> {
    let several = stop.map(|stop| if stop.is_string() { json!([stop]) } else { stop });
    match several {
        None => Ok(Vec::new()),
        Some(several) => {
            let texts: Vec<String> = Vec::deserialize(&several).map_err(|_| unexpected("stop", STOP, &several))?;
            // Each is searched for after every token.
            if texts.len() > MAX_STOP_STRINGS || texts.iter().any(|text| text.len() > MAX_STOP_BYTES) {
                let expected = format!("{MAX_STOP_STRINGS} texts of {MAX_STOP_BYTES} bytes each, at most");
                return Err(unexpected("stop", &expected, &several));
            }
            Ok(texts)
        }
    }
}

#[cfg(test)]
mod tests {
    use unicorn_text::IMAGE_MARK;

    use super::*;

    fn parse(endpoint: Endpoint, body: Value) -> Result<Request, String> {
        let defaults = unicorn_text::default_sampling().with(|sampling| sampling.top_k = 5);
        Request::parse(endpoint, body.to_string().as_bytes(), &defaults).map_err(|error| error.message)
    }

    fn text(body: Value) -> Result<Request, String> {
        let mut whole = json!({"prompt": "Hello"});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        parse(Endpoint::Completions, whole)
    }

    #[test]
    fn a_prompt_is_text_or_tokens_or_several_of_them() {
        let prompts =
            |prompt: Value| parse(Endpoint::Completions, json!({"prompt": prompt})).map(|request| request.prompts);
        let (hello, bye) = (Prompt::Text("Hello".into()), Prompt::Text("Bye".into()));
        assert_eq!(prompts(json!("Hello")), Ok(vec![hello.clone()]));
        assert_eq!(prompts(json!(["Hello", "Bye"])), Ok(vec![hello, bye]));
        assert_eq!(prompts(json!([1, 2])), Ok(vec![Prompt::Tokens(vec![1, 2])]));
        assert_eq!(prompts(json!([[1], [2]])), Ok(vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])]));
        let mixed = vec![Prompt::Tokens(vec![1]), Prompt::Text("Hello".into())];
        assert_eq!(prompts(json!([1, "Hello"])), Ok(vec![Prompt::Mixed(mixed)]));
        assert_eq!(prompts(json!({"prompt_string": "Hello"})), Ok(vec![Prompt::Text("Hello".into())]));
        let parts = json!([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]);
        assert_eq!(prompts(json!({"content": parts})), Ok(vec![Prompt::Text("Hello".into())]));
        assert!(prompts(json!([1, null])).unwrap_err().ends_with("found [1,null]"));
    }

    #[test]
    fn a_message_is_text_or_parts_of_text() {
        let messages = |message: Value| {
            parse(Endpoint::ChatCompletions, json!({"messages": [message]})).map(|request| request.prompts)
        };
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let chat_of =
            |message: Message, pictures: Vec<Vec<u8>>| vec![Prompt::Chat { messages: vec![message], pictures }];
        let is_text = |read, content: &str| assert_eq!(read, Ok(chat_of(Message::new("user", content), Vec::new())));
        let of_parts = |texts: &[&str]| Message::of_parts("user", texts.iter().copied().map(String::from).collect());
        let expected = chat_of(of_parts(&["a", "b"]), Vec::new());
        assert_eq!(messages(json!({"role": "user", "content": parts})), Ok(expected));
        is_text(messages(json!({"role": "user", "content": [parts[0]]})), "a");
        // Marks of images are written here alone.
        is_text(messages(json!({"role": "user", "content": format!("a{IMAGE_MARK}b")})), "ab");
        let image = |address: &str| json!({"type": "image_url", "image_url": {"url": address}});
        let parts = json!([{"type": "text", "text": format!("a{IMAGE_MARK}")}, image("data:image/png;base64,QUI=")]);
        let expected = chat_of(of_parts(&["a", &IMAGE_MARK.to_string()]), vec![b"AB".to_vec()]);
        assert_eq!(messages(json!({"role": "user", "content": parts})), Ok(expected));
        for (address, what) in
            [("https://a/b.png", "not fetched"), ("data:image/png;base64,!", "base64"), ("data:", "begins with")]
        {
            let refused = messages(json!({"role": "user", "content": [image(address)]})).unwrap_err();
            assert!(refused.starts_with("messages[0]: expected an image") && refused.contains(what), "{refused}");
        }
        assert_eq!(
            messages(json!({"role": "assistant", "content": null, "tool_calls": []})),
            Ok(chat_of(Message::new("assistant", ""), Vec::new()))
        );
        let sound = json!([{"type": "input_audio", "input_audio": {}}]);
        for rejected in [json!({"role": "user", "content": sound}), json!({"content": "a"}), json!("a")] {
            assert!(messages(rejected).unwrap_err().starts_with("messages[0]: expected a role"));
        }
    }

    #[test]
    fn calls_of_tools_and_their_results_are_messages() {
        let chat = |body: Value| parse(Endpoint::ChatCompletions, body);
        let call = |arguments: Value| json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let messages = |arguments: Value| {
            let calls = json!({"role": "assistant", "content": null, "tool_calls": [call(arguments)]});
            json!([{"role": "user", "content": "a"}, calls, {"role": "tool", "tool_call_id": "c1", "content": "b"}])
        };
        let tools = json!([tool, {"type": "web_search"}]);
        let request = chat(json!({"messages": messages(json!("{\"a\": 1}")), "tools": tools})).unwrap();
        let [Prompt::Chat { messages: read, .. }] = request.prompts.as_slice() else { panic!("one conversation") };
        // Templates expect an object, and a result by the name of its tool.
        assert_eq!(read[1].fields["tool_calls"], json!([call(json!({"a": 1}))]));
        assert_eq!((&read[2].fields["tool_call_id"], &read[2].fields["name"]), (&json!("c1"), &json!("f")));
        assert_eq!((request.tools, request.tool_choice), (vec![tool.clone()], ToolChoice::Auto));
        let broken = chat(json!({"messages": messages(json!("{"))})).unwrap_err();
        assert!(broken.starts_with("messages[1]: expected a role"), "{broken}");

        let choice = |choice: Value| {
            chat(json!({"messages": messages(json!({})), "tools": [tool], "tool_choice": choice}))
                .map(|request| request.tool_choice)
        };
        assert_eq!(choice(json!("required")), Ok(ToolChoice::Required));
        assert_eq!(choice(json!({"type": "function", "function": {"name": "f"}})), Ok(ToolChoice::Named("f".into())));
        assert!(
            choice(json!({"type": "function", "function": {"name": "g"}})).unwrap_err().contains("one of the tools")
        );
        let none = chat(json!({"messages": messages(json!({})), "tools": [tool], "tool_choice": "none"})).unwrap();
        assert!(none.tools.is_empty());
        // Some of the tools: in the form of chats and of responses.
        let other = json!({"type": "function", "function": {"name": "g"}});
        let allowed = |choice: Value| {
            chat(json!({"messages": messages(json!({})), "tools": [tool, other], "tool_choice": choice}))
                .map(|request| (request.tools, request.tool_choice))
        };
        let of_chat = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [other]}});
        assert_eq!(allowed(of_chat), Ok((vec![other.clone()], ToolChoice::Required)));
        let name = json!({"type": "function", "name": "f"});
        let of_response = json!({"type": "allowed_tools", "mode": "auto", "tools": [name, {"type": "web_search"}]});
        assert_eq!(allowed(of_response), Ok((vec![tool.clone()], ToolChoice::Auto)));
        for wrong in
            [json!({}), json!({"mode": "auto"}), json!({"mode": "no", "tools": [name]}), json!({"tools": [name]})]
        {
            let mut choice = wrong.clone();
            choice["type"] = "allowed_tools".into();
            assert!(allowed(choice).unwrap_err().starts_with("tool_choice: expected"), "{wrong}");
        }
        let unknown = json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]});
        assert!(allowed(unknown).unwrap_err().contains("one of the tools"));
    }

    #[test]
    fn a_reply_that_has_begun_is_continued_unless_the_request_begins_another() {
        let continues = |body: Value| {
            let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
            let mut whole = json!({"messages": messages});
            whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
            parse(Endpoint::ChatCompletions, whole).map(|request| request.continues)
        };
        assert_eq!(continues(json!({})), Ok(true));
        assert_eq!(continues(json!({"add_generation_prompt": true})), Ok(false));
        let begins = |body: Value| parse(Endpoint::ChatCompletions, body).map(|request| request.begins_reply);
        let question = json!([{"role": "user", "content": "a"}]);
        assert_eq!(begins(json!({"messages": question})), Ok(true));
        assert_eq!(begins(json!({"messages": question, "add_generation_prompt": false})), Ok(false));
        let twice = json!([question[0], {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}]);
        assert!(begins(json!({"messages": twice})).unwrap_err().contains("expected one message of the assistant"));
        assert_eq!(begins(json!({"messages": twice, "add_generation_prompt": true})), Ok(true));
        assert!(continues(json!({"add_generation_prompt": true, "continue_final_message": true})).is_err());
    }

    #[test]
    fn arguments_of_the_template_have_several_names() {
        let arguments = |body: Value| text(body).map(|request| Value::Object(request.template_arguments));
        assert_eq!(arguments(json!({})), Ok(json!({})));
        assert_eq!(
            arguments(
                json!({"reasoning_effort": "low", "enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false}})
            ),
            Ok(json!({"enable_thinking": false, "reasoning_effort": "low"}))
        );
        assert!(arguments(json!({"chat_template_kwargs": [1]})).unwrap_err().contains("expected an object"));
        assert!(arguments(json!({"enable_thinking": "yes"})).unwrap_err().contains("expected true or false"));
    }

    #[test]
    fn what_a_request_leaves_out_is_the_server_s_default() {
        let request = text(json!({"temperature": 0.5, "top_p": null})).unwrap();
        let sampling = request.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p, request.seed), (0.5, 5, 0.95, None));
        let request = text(json!({"top_k": -1, "seed": -7, "repetition_penalty": 1.5})).unwrap();
        let sampling = request.sampling;
        assert_eq!((sampling.top_k, request.seed, sampling.repeat_penalty), (0, Some(-7i64 as u64), 1.5));
        let request = text(json!({"max_tokens": 3, "stop": "END", "stream_options": {}})).unwrap();
        assert_eq!((request.max_tokens, request.stop_strings, request.n), (Some(3), vec!["END".to_owned()], 1));
        assert!(!request.stream && !request.include_usage);
    }

    #[test]
    fn parameters_of_other_servers_are_understood() {
        let max_tokens = |body: Value| text(body).map(|request| request.max_tokens);
        assert_eq!(max_tokens(json!({"n_predict": 4})), Ok(Some(4)));
        assert_eq!(max_tokens(json!({"max_tokens": -1, "n_predict": 4})), Ok(None));
        assert_eq!(max_tokens(json!({"max_completion_tokens": 10_000_000_000u64})), Ok(Some(u32::MAX)));
        assert!(max_tokens(json!({"max_tokens": -2})).unwrap_err().starts_with("max_tokens: expected a whole number"));
        assert_eq!(text(json!({"seed": u64::MAX})).unwrap().seed, Some(u64::MAX));
        assert_eq!(text(json!({"seed": -1})).unwrap().seed, None);
        assert!(text(json!({"top_p": 0})).unwrap().sampling.top_p > 0.0);
        let read =
            text(json!({"include_stop_str_in_output": true, "include_reasoning": false, "return_token_ids": true}));
        let read = read.unwrap();
        assert!(read.keeps_stop_string && !read.include_reasoning && read.return_tokens && read.return_prompt_tokens);
        assert!(text(json!({"tool_choice": "auto"})).is_ok() && text(json!({"tool_choice": "required"})).is_err());
        let budget = |body: Value| text(body).map(|request| request.reasoning_budget);
        assert_eq!(text(json!({"reasoning_budget": 0})).unwrap().template_arguments["enable_thinking"], json!(false));
        assert_eq!(budget(json!({"reasoning_budget": 0, "thinking_budget_tokens": -1})), Ok(Some(0)));
        assert_eq!(budget(json!({"thinking_budget_tokens": 64, "reasoning_budget": 8})), Ok(Some(64)));
        assert_eq!(budget(json!({"reasoning_budget": -1})), Ok(None));
        assert!(budget(json!({"reasoning_budget": -2})).unwrap_err().starts_with("reasoning_budget: expected a whole"));
        let best_of = |body: Value| text(body).map(|request| (request.n, request.best_of));
        assert_eq!((best_of(json!({"n": 2})), best_of(json!({"best_of": 3}))), (Ok((2, 2)), Ok((1, 3))));
        assert!(best_of(json!({"best_of": 2, "n": 3})).unwrap_err().starts_with("best_of: expected n at least"));
        assert!(best_of(json!({"best_of": 2, "stream": true})).unwrap_err().contains("no more than n in a stream"));
        assert!(best_of(json!({"best_of": 129})).unwrap_err().starts_with("best_of: expected 1 to 128 choices"));
    }

    #[test]
    fn what_is_not_implemented_is_an_error_unless_it_has_no_effect() {
        let no_effect =
            json!({"logprobs": null, "mirostat": 0, "tools": [], "response_format": {"type": "text"}, "user": "me"});
        assert!(text(no_effect).is_ok() && text(json!({"bad_words": [], "chat_template": null})).is_ok());
        for (name, value) in [
            ("xtc_probability", json!(0.5)),
            ("adaptive_target", json!(0.3)),
            ("mirostat", json!(2)),
            ("dry_multiplier", json!(1)),
            ("bad_words", json!(["a"])),
            ("allowed_token_ids", json!([1])),
            ("truncate_prompt_tokens", json!(3)),
            ("chat_template", json!("{{ messages }}")),
        ] {
            let message = text(json!({name: value})).unwrap_err();
            assert!(message.starts_with(&format!("{name}: not supported here, found ")), "{message}");
        }
    }

    #[test]
    fn an_error_quotes_at_most_a_line() {
        let message = text(json!({"temperature": "é".repeat(1000)})).unwrap_err();
        assert!(message.starts_with("temperature: expected a number, found \"éé") && message.len() < 300, "{message}");
        assert!(text(json!({"n": 129})).unwrap_err().starts_with("n: expected 1 to 128 choices"));
        // A whole number may have a fraction of 0.
        let read = text(json!({"max_tokens": 16.0, "top_k": 40.0, "seed": -1.0})).unwrap();
        assert_eq!((read.max_tokens, read.sampling.top_k, read.seed), (Some(16), 40, None));
        assert!(text(json!({"max_tokens": 16.5})).is_err() && text(json!({"top_k": 1e300})).is_err());
        assert!(text(json!({"max_tokens": 0})).is_err() && text(json!({"top_p": 1.5})).is_err());
        let many = vec!["a"; 17];
        assert!(text(json!({"stop": many})).unwrap_err().starts_with("stop: expected 16 texts"));
    }
}
