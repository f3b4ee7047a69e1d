//! `/completion`: llama-server's form of a completion.

use serde_json::{Map, Value, json};
use unicorn_text::{Delta, EndReason};

use crate::api::request::Request;
use crate::probabilities::Probabilities;
use crate::reply::Reply;
use crate::writer::{ResponseWriter, Stream, prompt_progress, timings};

/// Writes completions in llama-server's form.
pub(crate) struct Completion {
    model: String,
    /// The text of each prompt.
    prompts: Vec<String>,
    settings: Value,
    return_tokens: bool,
    timings_per_token: bool,
    return_progress: bool,
    /// Paths of the requested fields; empty: all.
    fields: Vec<String>,
    /// Choices of each prompt.
    n: u32,
    /// `None`: they were not requested.
    probabilities: Option<Probabilities>,
}

impl Completion {
    /// The response to `request`, whose parameters in effect are `settings`.
    pub(crate) fn new(
        model: &str,
        prompts: Vec<String>,
        settings: Value,
        fields: Vec<String>,
        request: &Request,
        probabilities: Option<Probabilities>,
    ) -> Completion {
        let &Request { return_tokens, timings_per_token, return_progress, n, .. } = request;
        let model = model.to_owned();
        Completion {
            model,
            prompts,
            settings,
            return_tokens,
            timings_per_token,
            return_progress,
            fields,
            n,
            probabilities,
        }
    }

    fn last(&self, index: usize, reply: &Reply, is_stream: bool) -> Value {
        let (stop_type, truncated) = match reply.reason() {
            EndReason::StopToken => ("eos", false),
            EndReason::StopString => ("word", false),
            reason => ("limit", reason == EndReason::ContextFull),
        };
        let word = reply.end.as_ref().and_then(|end| end.stop_string.as_deref()).unwrap_or_default();
        let tokens: &[u32] = if self.return_tokens && !is_stream { &reply.tokens } else { &[] };
        let mut object = json!({
            "index": index,
            "content": if is_stream { "" } else { reply.content.as_str() },
            "tokens": tokens,
            "id_slot": 0,
            "stop": true,
            "model": self.model,
            "tokens_predicted": reply.n_tokens(),
            "tokens_evaluated": reply.prompt_tokens,
            "generation_settings": self.settings,
            "prompt": self.prompts[index / self.n as usize],
            "has_new_line": reply.content.contains('\n'),
            "truncated": truncated,
            "stop_type": stop_type,
            "stopping_word": word,
            "tokens_cached": reply.prompt_tokens + reply.n_tokens(),
            "timings": timings(reply),
        });
        if let Some(probabilities) = self.probabilities.as_ref().filter(|_| !is_stream) {
            object["completion_probabilities"] = probabilities.of_llama(&reply.probabilities);
        }
        object
    }

    /// A part of a stream that is not its last.
    fn part(&self, choice: usize, text: &str, tokens: &[u32], reply: &Reply) -> Value {
        let mut part = json!({
            "index": choice, "content": text, "tokens": tokens, "id_slot": 0, "stop": false,
            "tokens_predicted": reply.tokens.len(), "tokens_evaluated": reply.prompt_tokens,
        });
        if self.timings_per_token {
            part["timings"] = timings(reply);
        }
        part
    }

    fn chosen(&self, object: Value) -> Value {
        if self.fields.is_empty() {
            return object;
        }
        // A path `a/b` is the name of its value, as in llama-server.
        let one = |path: &String| Some((path.clone(), object.pointer(&format!("/{path}"))?.clone()));
        Value::Object(self.fields.iter().filter_map(one).collect::<Map<_, _>>())
    }
}

impl ResponseWriter for Completion {
    fn whole(&mut self, replies: &[Reply]) -> Value {
        let mut objects = replies.iter().enumerate().map(|(index, reply)| self.chosen(self.last(index, reply, false)));
        match replies.len() {
            1 => objects.next().expect("there is one"),
            _ => objects.collect(),
        }
    }

    fn begin(&mut self, _choice: usize, _replies: &[Reply], _out: &mut Stream) {}

    fn progress(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        if self.return_progress {
            let mut part = self.part(choice, "", &[], &replies[choice]);
            part["prompt_progress"] = prompt_progress(&replies[choice]);
            out.data(&part);
        }
    }

    fn add(&mut self, choice: usize, deltas: &[Delta], tokens: &[u32], replies: &[Reply], out: &mut Stream) {
        let reply = &replies[choice];
        for delta in deltas {
            let Delta::Content(text) = delta else { continue };
            let mut chunk = self.part(choice, text, tokens, reply);
            if let Some(probabilities) = &self.probabilities {
                chunk["completion_probabilities"] = probabilities.of_llama(reply.last_probabilities(tokens.len()));
            }
            out.data(&chunk);
        }
    }

    fn end(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        let last = self.last(choice, &replies[choice], true);
        out.data(&self.chosen(last));
    }

    fn finish(&mut self, _replies: &[Reply], _out: &mut Stream) {}
}
