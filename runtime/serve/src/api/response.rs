//! Responses in OpenAI's form: as one object, or as chunks of a stream.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use unicorn_text::EndReason;

use super::request::Endpoint;

/// What all parts of one response have in common.
pub(crate) struct ResponseFormat {
    pub(crate) endpoint: Endpoint,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// Token counts of all choices together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Each prompt counts once, however many choices it has.
    pub(crate) prompt_tokens: u32,
    /// Prompt tokens that were in the cache already.
    pub(crate) cached_tokens: u32,
    pub(crate) completion_tokens: u32,
}

impl ResponseFormat {
    /// One object with the text of every choice and why it ended.
    pub(crate) fn object(&self, choices: &[(String, EndReason)], usage: Usage) -> Value {
        let choices = choices.iter().enumerate().map(|(index, (text, reason))| match self.endpoint {
            Endpoint::ChatCompletions => {
                let message = json!({"role": "assistant", "content": text});
                json!({"index": index, "message": message, "logprobs": null, "finish_reason": finish_reason(*reason)})
            }
            Endpoint::Completions => {
                json!({"index": index, "text": text, "logprobs": null, "finish_reason": finish_reason(*reason)})
            }
        });
        let kind = match self.endpoint {
            Endpoint::ChatCompletions => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let mut object = self.part(kind, choices.collect());
        object["usage"] = usage.json();
        object
    }

    /// The first chunk of a choice, with its role; completions of plain text have none.
    pub(crate) fn role_chunk(&self, choice: u32) -> Option<Value> {
        let role = json!({"role": "assistant", "content": ""});
        (self.endpoint == Endpoint::ChatCompletions).then(|| self.chunk(choice, role, None))
    }

    /// A chunk with the next piece of a choice's text.
    pub(crate) fn text_chunk(&self, choice: u32, text: &str) -> Value {
        match self.endpoint {
            Endpoint::ChatCompletions => self.chunk(choice, json!({"content": text}), None),
            Endpoint::Completions => self.chunk(choice, json!(text), None),
        }
    }

    /// The last chunk of a choice.
    pub(crate) fn end_chunk(&self, choice: u32, reason: EndReason) -> Value {
        match self.endpoint {
            Endpoint::ChatCompletions => self.chunk(choice, json!({}), Some(reason)),
            Endpoint::Completions => self.chunk(choice, json!(""), Some(reason)),
        }
    }

    /// The last chunk of a stream whose request has `include_usage`.
    pub(crate) fn usage_chunk(&self, usage: Usage) -> Value {
        let mut chunk = self.part(self.chunk_object(), Vec::new());
        chunk["usage"] = usage.json();
        chunk
    }

    fn chunk(&self, choice: u32, new: Value, reason: Option<EndReason>) -> Value {
        let key = match self.endpoint {
            Endpoint::ChatCompletions => "delta",
            Endpoint::Completions => "text",
        };
        let choice = json!({"index": choice, key: new, "logprobs": null, "finish_reason": reason.map(finish_reason)});
        self.part(self.chunk_object(), vec![choice])
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::ChatCompletions => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn part(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }
}

impl Usage {
    fn json(self) -> Value {
        let Usage { prompt_tokens, cached_tokens, completion_tokens } = self;
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        })
    }
}

/// A response with a body of JSON.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// OpenAI's two names: `stop` where the model or a stop string ended the text, `length` where a limit did.
fn finish_reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::StopToken | EndReason::StopString => "stop",
        _ => "length",
    }
}
