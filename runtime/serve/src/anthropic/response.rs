//! A message of the assistant, whole or as a stream of blocks.

use serde_json::{Value, json};
use unicorn_text::{Delta, EndReason};

use crate::api::error::ApiError;
use crate::reply::{Reply, new_id};
use crate::writer::{ResponseWriter, Stream};

/// Writes a message in Anthropic's form.
pub(crate) struct Message {
    id: String,
    model: String,
    /// Blocks that have begun, and the kind of the last.
    blocks: usize,
    open: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Thinking,
    Text,
    /// The call of this number.
    Call(u32),
}

impl Message {
    pub(crate) fn new(model: &str) -> Message {
        Message { id: new_id("msg_"), model: model.to_owned(), blocks: 0, open: None }
    }

    fn object(&self, content: Vec<Value>, reply: &Reply) -> Value {
        let reason = reply.end.as_ref().map(|_| stop_reason(reply));
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": reason, "stop_sequence": stop_sequence(reply), "usage": usage(reply),
        })
    }

    fn begin_block(&mut self, kind: Kind, reply: &Reply, out: &mut Stream) {
        if self.open == Some(kind) {
            return;
        }
        self.end_block(out);
        let block = match kind {
            Kind::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Kind::Text => json!({"type": "text", "text": ""}),
            Kind::Call(index) => {
                let call = &reply.calls[index as usize];
                json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            }
        };
        out.typed(&json!({"type": "content_block_start", "index": self.blocks, "content_block": block}));
        (self.blocks, self.open) = (self.blocks + 1, Some(kind));
    }

    fn end_block(&mut self, out: &mut Stream) {
        let Some(kind) = self.open.take() else { return };
        let index = self.blocks - 1;
        if kind == Kind::Thinking {
            let delta = json!({"type": "signature_delta", "signature": SIGNATURE});
            out.typed(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        out.typed(&json!({"type": "content_block_stop", "index": index}));
    }
}

impl ResponseWriter for Message {
    fn whole(&mut self, replies: &[Reply]) -> Value {
        let reply = &replies[0];
        let mut content = Vec::new();
        if !reply.reasoning.is_empty() {
            content.push(json!({"type": "thinking", "thinking": reply.reasoning, "signature": SIGNATURE}));
        }
        if !reply.content.is_empty() || (reply.calls.is_empty() && content.is_empty()) {
            content.push(json!({"type": "text", "text": reply.content}));
        }
        for call in &reply.calls {
            // Arguments that were cut off are no object.
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            content.push(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}));
        }
        self.object(content, reply)
    }

    fn begin(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        let message = self.object(Vec::new(), &replies[choice]);
        out.typed(&json!({"type": "message_start", "message": message}));
    }

    fn add(&mut self, choice: usize, deltas: &[Delta], _tokens: &[u32], replies: &[Reply], out: &mut Stream) {
        for delta in deltas {
            let (kind, value) = match delta {
                Delta::Reasoning(text) => (Kind::Thinking, Some(json!({"type": "thinking_delta", "thinking": text}))),
                Delta::Content(text) => (Kind::Text, Some(json!({"type": "text_delta", "text": text}))),
                Delta::CallBegin { index, .. } => (Kind::Call(*index), None),
                Delta::CallArguments { index, json } => {
                    (Kind::Call(*index), Some(json!({"type": "input_json_delta", "partial_json": json})))
                }
            };
            self.begin_block(kind, &replies[choice], out);
            if let Some(value) = value {
                out.typed(&json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": value}));
            }
        }
    }

    fn end(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        let reply = &replies[choice];
        if self.blocks == 0 {
            self.begin_block(Kind::Text, reply, out);
        }
        self.end_block(out);
        let delta = json!({"stop_reason": stop_reason(reply), "stop_sequence": stop_sequence(reply)});
        out.typed(&json!({"type": "message_delta", "delta": delta, "usage": usage(reply)}));
    }

    fn finish(&mut self, _replies: &[Reply], out: &mut Stream) {
        out.typed(&json!({"type": "message_stop"}));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Stream) {
        out.typed(&error.anthropic());
    }
}

/// Of thinking. Clients send it back; pi takes thinking without one for a part of the answer.
const SIGNATURE: &str = "unsigned";

fn stop_reason(reply: &Reply) -> &'static str {
    match reply.reason() {
        EndReason::StopToken | EndReason::StopString if !reply.calls.is_empty() => "tool_use",
        EndReason::StopToken => "end_turn",
        EndReason::StopString => "stop_sequence",
        _ => "max_tokens",
    }
}

fn stop_sequence(reply: &Reply) -> Option<&str> {
    reply.end.as_ref()?.stop_string.as_deref()
}

fn usage(reply: &Reply) -> Value {
    json!({
        "input_tokens": reply.prompt_tokens - reply.cached_tokens, "cache_read_input_tokens": reply.cached_tokens,
        "cache_creation_input_tokens": 0, "output_tokens": reply.n_tokens(),
    })
}
