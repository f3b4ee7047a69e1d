//! `/v1/chat/completions` and `/v1/completions`.

use serde_json::{Value, json};
use unicorn_text::unicorn_runtime::HostSampled;
use unicorn_text::{Delta, EndReason};

use crate::api::request::{Endpoint, Request};
use crate::probabilities::Probabilities;
use crate::reply::{Call, Reply, Usage, new_id};
use crate::writer::{ResponseWriter, Stream, prompt_progress, timings};

/// Writes responses in OpenAI's form, with llama-server's `timings`.
pub(crate) struct Completions {
    endpoint: Endpoint,
    id: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    include_usage: bool,
    return_tokens: bool,
    /// Token ids of the prompts, if they were requested.
    prompt_tokens: Vec<Vec<u32>>,
    include_reasoning: bool,
    timings_per_token: bool,
    return_progress: bool,
    /// Choices of each prompt.
    n: u32,
    /// `None`: they were not requested.
    probabilities: Option<Probabilities>,
    /// Text of the first prompt, if it was requested.
    prompt: Option<String>,
}

impl Completions {
    /// The response to `request`.
    pub(crate) fn new(
        endpoint: Endpoint,
        created: u64,
        model: &str,
        request: &Request,
        probabilities: Option<Probabilities>,
        prompt: Option<String>,
        prompt_tokens: Vec<Vec<u32>>,
    ) -> Completions {
        let prefix = match endpoint {
            Endpoint::ChatCompletions => "chatcmpl-",
            Endpoint::Completions => "cmpl-",
        };
        let &Request { include_usage, return_tokens, include_reasoning, timings_per_token, return_progress, n, .. } =
            request;
        Completions {
            endpoint,
            id: new_id(prefix),
            created,
            model: model.to_owned(),
            include_usage,
            return_tokens,
            prompt_tokens,
            include_reasoning,
            timings_per_token,
            return_progress,
            n,
            probabilities,
            prompt,
        }
    }

    fn choice(&self, index: usize, reply: &Reply) -> Value {
        let reason = finish_reason(reply);
        let logprobs = self.logprobs(&[&reply.prompt_probabilities[..], &reply.probabilities].concat(), 0);
        let mut choice = match self.endpoint {
            Endpoint::ChatCompletions => {
                json!({"index": index, "message": self.message(reply), "logprobs": logprobs, "finish_reason": reason})
            }
            Endpoint::Completions => {
                json!({"index": index, "text": reply.content, "logprobs": logprobs, "finish_reason": reason})
            }
        };
        if self.return_tokens {
            choice["token_ids"] = json!(reply.tokens);
        }
        if let Some(tokens) = self.prompt_tokens_of(index).filter(|_| self.endpoint == Endpoint::Completions) {
            choice["prompt_token_ids"] = json!(tokens);
        }
        choice
    }

    /// The assistant's message.
    fn message(&self, reply: &Reply) -> Value {
        // A reply of calls alone has no content.
        let content =
            if reply.content.is_empty() && !reply.calls.is_empty() { Value::Null } else { json!(reply.content) };
        let mut message = json!({"role": "assistant", "content": content});
        if !reply.reasoning.is_empty() && self.include_reasoning {
            message["reasoning_content"] = json!(reply.reasoning);
        }
        if !reply.calls.is_empty() {
            message["tool_calls"] = reply.calls.iter().map(tool_call).collect();
        }
        message
    }

    /// Token ids of the prompt of a choice, if they were requested.
    fn prompt_tokens_of(&self, choice: usize) -> Option<&[u32]> {
        self.prompt_tokens.get(choice / self.n as usize).map(Vec::as_slice)
    }

    /// The log probabilities of `tokens`, behind `before` characters of the text.
    fn logprobs(&self, tokens: &[HostSampled], before: usize) -> Value {
        match (&self.probabilities, self.endpoint) {
            (None, _) => Value::Null,
            (Some(probabilities), Endpoint::ChatCompletions) => probabilities.of_chat(tokens),
            (Some(probabilities), Endpoint::Completions) => probabilities.of_completion(tokens, before),
        }
    }

    fn chunk(&self, choice: usize, new: &Value, reason: Option<&str>) -> Value {
        let key = match self.endpoint {
            Endpoint::ChatCompletions => "delta",
            Endpoint::Completions => "text",
        };
        let choice = json!({"index": choice, key: new, "logprobs": null, "finish_reason": reason});
        self.part(self.chunk_object(), vec![choice])
    }

    /// The text fields of a chunk without text.
    fn nothing(&self) -> Value {
        match self.endpoint {
            Endpoint::ChatCompletions => json!({}),
            Endpoint::Completions => json!(""),
        }
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::ChatCompletions => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn part(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": FINGERPRINT, "choices": choices,
        })
    }
}

/// Fingerprint of the program: the same version generates the same text. Clients of llama-server expect a `b`.
pub(crate) const FINGERPRINT: &str = concat!("b-unicorn-", env!("CARGO_PKG_VERSION"));

impl ResponseWriter for Completions {
    fn whole(&mut self, replies: &[Reply]) -> Value {
        let kind = match self.endpoint {
            Endpoint::ChatCompletions => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let choices = replies.iter().enumerate().map(|(index, reply)| self.choice(index, reply)).collect();
        let mut object = self.part(kind, choices);
        object["usage"] = usage(Usage::of(replies, self.n));
        if let [reply] = replies {
            object["timings"] = timings(reply);
        }
        if let Some(tokens) = self.prompt_tokens_of(0).filter(|_| self.endpoint == Endpoint::ChatCompletions) {
            object["prompt_token_ids"] = json!(tokens);
        }
        if let Some(prompt) = &self.prompt {
            object["__verbose"] = json!({"prompt": prompt});
        }
        object
    }

    fn begin(&mut self, choice: usize, _replies: &[Reply], out: &mut Stream) {
        if self.endpoint == Endpoint::ChatCompletions {
            let mut chunk = self.chunk(choice, &json!({"role": "assistant", "content": null}), None);
            if let Some(tokens) = self.prompt_tokens_of(choice) {
                chunk["prompt_token_ids"] = json!(tokens);
            }
            out.data(&chunk);
        }
    }

    fn progress(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        if !self.return_progress {
            return;
        }
        let mut chunk = self.chunk(choice, &self.nothing(), None);
        chunk["prompt_progress"] = prompt_progress(&replies[choice]);
        if self.timings_per_token {
            chunk["timings"] = timings(&replies[choice]);
        }
        out.data(&chunk);
    }

    fn add(&mut self, choice: usize, deltas: &[Delta], tokens: &[u32], replies: &[Reply], out: &mut Stream) {
        for (number, delta) in deltas.iter().enumerate() {
            let new = match (self.endpoint, delta) {
                (Endpoint::Completions, Delta::Content(text)) => json!(text),
                (Endpoint::Completions, _) => continue,
                (Endpoint::ChatCompletions, Delta::Reasoning(_)) if !self.include_reasoning => continue,
                (Endpoint::ChatCompletions, delta) => chat_delta(delta, &replies[choice]),
            };
            let mut chunk = self.chunk(choice, &new, None);
            if self.timings_per_token {
                chunk["timings"] = timings(&replies[choice]);
            }
            if self.return_tokens && number == 0 {
                chunk["choices"][0]["token_ids"] = json!(tokens);
            }
            if self.probabilities.is_some() && number == 0 {
                let reply = &replies[choice];
                let new: usize = deltas
                    .iter()
                    .map(|delta| if let Delta::Content(text) = delta { text.chars().count() } else { 0 })
                    .sum();
                let before = reply.content.chars().count().saturating_sub(new);
                chunk["choices"][0]["logprobs"] = self.logprobs(reply.last_probabilities(tokens.len()), before);
            }
            out.data(&chunk);
        }
    }

    fn end(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        let mut chunk = self.chunk(choice, &self.nothing(), Some(finish_reason(&replies[choice])));
        if !self.include_usage && replies.len() == 1 {
            chunk["timings"] = timings(&replies[choice]);
        }
        out.data(&chunk);
    }

    fn finish(&mut self, replies: &[Reply], out: &mut Stream) {
        if self.include_usage {
            let mut chunk = self.part(self.chunk_object(), Vec::new());
            chunk["usage"] = usage(Usage::of(replies, self.n));
            if let [reply] = replies {
                chunk["timings"] = timings(reply);
            }
            out.data(&chunk);
        }
        out.done();
    }
}

fn tool_call(call: &Call) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

fn chat_delta(delta: &Delta, reply: &Reply) -> Value {
    match delta {
        Delta::Reasoning(text) => json!({"reasoning_content": text}),
        Delta::Content(text) => json!({"content": text}),
        Delta::CallBegin { index, .. } => {
            let call = &reply.calls[*index as usize];
            let function = json!({"name": call.name, "arguments": ""});
            json!({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]})
        }
        Delta::CallArguments { index, json } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]})
        }
    }
}

fn usage(usage: Usage) -> Value {
    let Usage { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens } = usage;
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    })
}

/// OpenAI's names: `stop` where the model or a stop string ended the text, `tool_calls` where it ended with a call, `length` where a
/// limit did.
fn finish_reason(reply: &Reply) -> &'static str {
    match reply.reason() {
        EndReason::StopToken | EndReason::StopString if !reply.calls.is_empty() => "tool_calls",
        EndReason::StopToken | EndReason::StopString => "stop",
        _ => "length",
    }
}
