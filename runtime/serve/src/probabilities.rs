//! Probabilities of tokens in the forms of each API.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use unicorn_structure::Vocabulary;
use unicorn_text::unicorn_runtime::HostSampled;

/// Writes probabilities of a response whose request has requested them.
#[derive(Clone)]
pub(crate) struct Probabilities {
    vocabulary: Arc<Vocabulary>,
    /// Whether to write probabilities instead of their logarithms, as llama-server can.
    are_plain: bool,
}

/// OpenAI's logarithm of 0.
const NEVER: f32 = -9999.0;

impl Probabilities {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, are_plain: bool) -> Probabilities {
        Probabilities { vocabulary, are_plain }
    }

    /// OpenAI's form for a chat: `logprobs.content`.
    pub(crate) fn of_chat(&self, tokens: &[HostSampled]) -> Value {
        json!({"content": self.list(tokens), "refusal": null})
    }

    /// OpenAI's list of tokens, in a chat and in the text of a response.
    pub(crate) fn list(&self, tokens: &[HostSampled]) -> Value {
        let one = |token: &HostSampled| {
            let mut object = self.token(token.token, token.logprob);
            object["top_logprobs"] = token.top.iter().map(|top| self.token(top.token, Some(top.logprob))).collect();
            object
        };
        tokens.iter().map(one).collect()
    }

    /// OpenAI's form for a completion: parallel lists, with null where a prompt begins. `before`: characters of the text before the first token.
    pub(crate) fn of_completion(&self, tokens: &[HostSampled], before: usize) -> Value {
        let mut offset = before;
        let (mut texts, mut offsets) = (Vec::new(), Vec::new());
        for token in tokens {
            let text = self.text(token.token);
            offsets.push(offset);
            offset += text.chars().count();
            texts.push(text);
        }
        // The token of the text is there, too, whether or not it is one of the most likely.
        let top = |token: &HostSampled| -> Value {
            let Some(logprob) = token.logprob else { return Value::Null };
            let likely = token.top.iter().map(|top| (top.token, top.logprob));
            let all = likely.chain([(token.token, logprob)]);
            all.map(|(token, logprob)| (self.text(token), json!(logprob.max(NEVER)))).collect::<Map<_, _>>().into()
        };
        let logprobs: Vec<Option<f32>> =
            tokens.iter().map(|token| token.logprob.map(|logprob| logprob.max(NEVER))).collect();
        let tops: Vec<Value> = tokens.iter().map(top).collect();
        json!({"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
    }

    /// llama-server's form: `completion_probabilities`.
    pub(crate) fn of_llama(&self, tokens: &[HostSampled]) -> Value {
        let named = |token: u32, logprob: f32| {
            let mut object = json!({"id": token, "token": self.text(token), "bytes": self.vocabulary.bytes(token)});
            match self.are_plain {
                true => object["prob"] = json!(logprob.exp()),
                false => object["logprob"] = json!(logprob.max(NEVER)),
            }
            object
        };
        let list = if self.are_plain { "top_probs" } else { "top_logprobs" };
        let one = |token: &HostSampled| {
            let mut object = named(token.token, token.logprob.unwrap_or(NEVER));
            object[list] = token.top.iter().map(|top| named(top.token, top.logprob)).collect();
            object
        };
        tokens.iter().map(one).collect()
    }

    fn token(&self, token: u32, logprob: Option<f32>) -> Value {
        json!({
            "id": token, "token": self.text(token), "logprob": logprob.unwrap_or(NEVER).max(NEVER),
            "bytes": self.vocabulary.bytes(token),
        })
    }

    fn text(&self, token: u32) -> String {
        String::from_utf8_lossy(self.vocabulary.bytes(token)).into_owned()
    }
}
