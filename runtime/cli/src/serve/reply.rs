//! Answers in OpenAI's form: whole, or chunk by chunk.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::choice::FinishReason;
use super::request::Kind;

/// What all parts of one answer have in common.
pub struct Reply {
    pub kind: Kind,
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
}

/// Tokens of all choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Each prompt counts once, however many choices it has.
    pub prompt_tokens: u32,
    /// Of those, what was still in the cache.
    pub cached_tokens: u32,
    pub completion_tokens: u32,
}

impl Reply {
    /// An answer at once, of choices that have all ended.
    pub fn whole(&self, choices: &[(String, FinishReason)], usage: Usage) -> Value {
        let choices = choices.iter().enumerate().map(|(index, (text, reason))| match self.kind {
            Kind::Chat => {
                let message = json!({"role": "assistant", "content": text});
                json!({"index": index, "message": message, "logprobs": null, "finish_reason": reason.name()})
            }
            Kind::Text => json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason.name()}),
        });
        let object = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Text => "text_completion",
        };
        let mut whole = self.part(object, choices.collect());
        whole["usage"] = usage.json();
        whole
    }

    /// The first chunk of a choice; completions of text have none.
    pub fn begun(&self, choice: u32) -> Option<Value> {
        let role = json!({"role": "assistant", "content": ""});
        (self.kind == Kind::Chat).then(|| self.chunk(choice, role, None))
    }

    pub fn text(&self, choice: u32, text: &str) -> Value {
        match self.kind {
            Kind::Chat => self.chunk(choice, json!({"content": text}), None),
            Kind::Text => self.chunk(choice, json!(text), None),
        }
    }

    /// The last chunk of a choice.
    pub fn ended(&self, choice: u32, reason: FinishReason) -> Value {
        match self.kind {
            Kind::Chat => self.chunk(choice, json!({}), Some(reason)),
            Kind::Text => self.chunk(choice, json!(""), Some(reason)),
        }
    }

    /// The last chunk of all, for those who asked for it.
    pub fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.part(self.chunk_object(), Vec::new());
        chunk["usage"] = usage.json();
        chunk
    }

    fn chunk(&self, choice: u32, new: Value, reason: Option<FinishReason>) -> Value {
        let key = match self.kind {
            Kind::Chat => "delta",
            Kind::Text => "text",
        };
        let choice =
            json!({"index": choice, key: new, "logprobs": null, "finish_reason": reason.map(FinishReason::name)});
        self.part(self.chunk_object(), vec![choice])
    }

    fn chunk_object(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Text => "text_completion",
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

/// A body of JSON.
pub fn json_response(status: StatusCode, value: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
