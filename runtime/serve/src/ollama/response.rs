//! Responses of Ollama's API: lines of JSON, the last of which has the counts.

use serde_json::{Value, json};
use unicorn_text::{Delta, EndReason};

use super::date::rfc3339;
use crate::api::error::ApiError;
use crate::choice_end::Times;
use crate::probabilities::Probabilities;
use crate::reply::{Call, Reply};
use crate::writer::{ResponseWriter, Stream};

/// Writes replies in Ollama's form.
pub(crate) struct Lines {
    created_at: String,
    model: String,
    /// Whether replies are for `/api/chat`; otherwise they are for `/api/generate`.
    is_chat: bool,
    /// Calls that were sent: each goes out once it is whole.
    sent_calls: usize,
    /// `None`: they were not requested.
    probabilities: Option<Probabilities>,
}

impl Lines {
    pub(crate) fn new(created: u64, model: &str, is_chat: bool, probabilities: Option<Probabilities>) -> Lines {
        Lines { created_at: rfc3339(created), model: model.to_owned(), is_chat, sent_calls: 0, probabilities }
    }

    /// The answer to a request for no text.
    pub(crate) fn of_loaded(&self) -> Value {
        let mut object = self.object("", "", &[]);
        (object["done"], object["done_reason"]) = (true.into(), "load".into());
        object
    }

    fn object(&self, content: &str, thinking: &str, calls: &[Call]) -> Value {
        let mut object = json!({"model": self.model, "created_at": self.created_at});
        let mut message = json!({"role": "assistant", "content": content});
        let texts = if self.is_chat { &mut message } else { &mut object };
        if !thinking.is_empty() {
            texts["thinking"] = thinking.into();
        }
        match self.is_chat {
            true => {
                if !calls.is_empty() {
                    message["tool_calls"] = calls.iter().enumerate().map(call).collect();
                }
                object["message"] = message;
            }
            false => object["response"] = content.into(),
        }
        object["done"] = false.into();
        object
    }

    fn ended(mut object: Value, reply: &Reply) -> Value {
        let reason = match reply.reason() {
            EndReason::StopToken | EndReason::StopString => "stop",
            _ => "length",
        };
        let Times { prompt, decode } = reply.times;
        let last = json!({
            "done": true, "done_reason": reason, "total_duration": (prompt + decode).as_nanos() as u64, "load_duration": 0,
            "prompt_eval_count": reply.prompt_tokens, "prompt_eval_duration": prompt.as_nanos() as u64,
            "eval_count": reply.n_tokens(), "eval_duration": decode.as_nanos() as u64,
        });
        if let (Some(object), Value::Object(last)) = (object.as_object_mut(), last) {
            object.extend(last);
        }
        object
    }
}

/// Arguments are an object here; those that were cut off become an empty one.
fn call((index, call): (usize, &Call)) -> Value {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments}})
}

impl ResponseWriter for Lines {
    fn whole(&mut self, replies: &[Reply]) -> Value {
        let reply = &replies[0];
        let mut object = self.object(&reply.content, &reply.reasoning, &reply.calls);
        if let Some(probabilities) = &self.probabilities {
            object["logprobs"] = probabilities.list(&reply.probabilities);
        }
        Lines::ended(object, reply)
    }

    fn begin(&mut self, _choice: usize, _replies: &[Reply], _out: &mut Stream) {}

    fn add(&mut self, choice: usize, deltas: &[Delta], tokens: &[u32], replies: &[Reply], out: &mut Stream) {
        let texts = deltas.iter().filter_map(|delta| match delta {
            Delta::Reasoning(text) => Some(("", text.as_str())),
            Delta::Content(text) => Some((text.as_str(), "")),
            Delta::CallBegin { .. } | Delta::CallArguments { .. } => None,
        });
        for (number, (content, thinking)) in texts.enumerate() {
            let mut object = self.object(content, thinking, &[]);
            if let Some(probabilities) = self.probabilities.as_ref().filter(|_| number == 0) {
                object["logprobs"] = probabilities.list(replies[choice].last_probabilities(tokens.len()));
            }
            out.line(&object);
        }
    }

    fn end(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        let reply = &replies[choice];
        if self.sent_calls < reply.calls.len() {
            out.line(&self.object("", "", &reply.calls[self.sent_calls..]));
            self.sent_calls = reply.calls.len();
        }
        out.line(&Lines::ended(self.object("", "", &[]), reply));
    }

    fn finish(&mut self, _replies: &[Reply], _out: &mut Stream) {}

    fn fail(&mut self, error: &ApiError, out: &mut Stream) {
        out.line(&error.ollama());
    }

    fn is_lines(&self) -> bool {
        true
    }
}
