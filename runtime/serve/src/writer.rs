//! The interface of all forms of a response: an API's folder has a [`ResponseWriter`] for each of its endpoints.

use std::fmt::Write;

use serde_json::{Value, json};
use unicorn_text::Delta;

use crate::api::error::ApiError;
use crate::reply::Reply;

/// Writes a response as one API's clients read it. `replies` are all choices, `choice` the index of the one that has changed.
pub(crate) trait ResponseWriter: Send {
    /// The response in one piece; all replies have ended.
    fn whole(&mut self, replies: &[Reply]) -> Value;

    /// A choice has begun.
    fn begin(&mut self, choice: usize, replies: &[Reply], out: &mut Stream);

    /// More of a choice's prompt is in the cache, if the request has `return_progress`.
    fn progress(&mut self, _choice: usize, _replies: &[Reply], _out: &mut Stream) {}

    /// A choice has further `deltas`, decoded from `tokens`.
    fn add(&mut self, choice: usize, deltas: &[Delta], tokens: &[u32], replies: &[Reply], out: &mut Stream);

    /// A choice has ended.
    fn end(&mut self, choice: usize, replies: &[Reply], out: &mut Stream);

    /// All choices have ended.
    fn finish(&mut self, replies: &[Reply], out: &mut Stream);

    /// The choices have failed.
    fn fail(&mut self, error: &ApiError, out: &mut Stream) {
        out.data(&error.json());
    }

    /// Whether a stream is lines of JSON instead of server-sent events.
    fn is_lines(&self) -> bool {
        false
    }
}

/// The next part of a stream.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) text: String,
}

impl Stream {
    /// An event without a name.
    pub(crate) fn data(&mut self, data: &Value) {
        write!(self.text, "data: {data}\n\n").expect("writing to a String");
    }

    /// An event whose name is its `type`.
    pub(crate) fn typed(&mut self, data: &Value) {
        let name = data["type"].as_str().unwrap_or_default();
        write!(self.text, "event: {name}\ndata: {data}\n\n").expect("writing to a String");
    }

    /// A line of JSON.
    pub(crate) fn line(&mut self, data: &Value) {
        writeln!(self.text, "{data}").expect("writing to a String");
    }

    /// OpenAI's last event.
    pub(crate) fn done(&mut self) {
        self.text += "data: [DONE]\n\n";
    }
}

/// llama-server's report of the progress of a prompt.
pub(crate) fn prompt_progress(reply: &Reply) -> Value {
    json!({
        "total": reply.prompt_tokens, "cache": reply.cached_tokens, "processed": reply.fed_tokens,
        "time_ms": reply.times.prompt.as_millis() as u64,
    })
}

/// llama-server's report of the time that a choice took, or has taken until now.
pub(crate) fn timings(reply: &Reply) -> Value {
    let (prompt_ms, predicted_ms) = (reply.times.prompt.as_secs_f64() * 1e3, reply.times.decode.as_secs_f64() * 1e3);
    let prompt_n = reply.fed_tokens - reply.cached_tokens;
    let predicted_n = reply.n_tokens();
    // The first token takes no step of decode.
    let steps = predicted_n.saturating_sub(1);
    let each = |ms: f64, n: u32| if n > 0 { ms / f64::from(n) } else { 0.0 };
    let rate = |ms: f64, n: u32| if ms > 0.0 { f64::from(n) * 1e3 / ms } else { 0.0 };
    let mut timings = json!({
        "cache_n": reply.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": each(prompt_ms, prompt_n),
        "prompt_per_second": rate(prompt_ms, prompt_n),
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": each(predicted_ms, steps),
        "predicted_per_second": rate(predicted_ms, steps),
    });
    // As in llama-server, where there was a draft.
    let (drafted, accepted) = reply.drafted();
    if drafted > 0 {
        timings["draft_n"] = drafted.into();
        timings["draft_n_accepted"] = accepted.into();
    }
    timings
}
