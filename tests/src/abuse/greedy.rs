//! Greedy answers, judged by the model's own probabilities.
//!
//! Batches of other sizes, and beginnings that other programs computed, add in another order, and so round differently. Where the
//! probabilities of two tokens differ by less than that rounding, either may be the greedy one, and the text after it differs. An
//! answer is therefore right when each of its tokens is the most probable one after those before it, or ties with it.

use std::io::Read;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::http::begin_post;
use crate::server::Server;

/// Two tokens whose log probabilities differ by less tie. Integer activations and keys in f16 round each of two computations by
/// about half of it; the most that was seen is 0.057.
const TIE_NATS: f64 = 0.1;
/// Candidates among which the tokens of a tie are found.
const CANDIDATES: usize = 20;

/// A prompt with the greedy answers that are known for it.
pub(super) struct GreedyPrompt {
    pub text: String,
    tokens: Vec<u32>,
    /// The answer to a request alone, then those that differ from it by ties.
    right: Mutex<Vec<Vec<u32>>>,
}

impl GreedyPrompt {
    /// Requests the first answer, of `n_tokens`.
    ///
    /// # Errors
    /// The server's answer, when it has no text.
    pub fn ask_first(server: &Server, text: String, n_tokens: usize) -> Result<GreedyPrompt, String> {
        let body = request(server, "/tokenize", &json!({"content": text, "add_special": true}))?;
        let tokens = ids(&body["tokens"]).ok_or(format!("no tokens: {body}"))?;
        let first = greedy(server, &tokens, n_tokens)?;
        Ok(GreedyPrompt { text, tokens, right: Mutex::new(vec![first]) })
    }

    /// Requests the answer again and checks it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn ask(&self, server: &Server) -> Result<(), String> {
        let (known, first) = {
            let right = self.right.lock().expect("no client panics while it adds");
            (right.clone(), right[0].clone())
        };
        let found = greedy(server, &self.tokens, first.len())?;
        if known.contains(&found) {
            return Ok(());
        }
        self.judge(server, first.clone(), &found)
            .map_err(|error| format!("{:?}: expected {first:?}, found {found:?}: {error}", self.text))?;
        self.right.lock().expect("no client panics while it adds").push(found);
        Ok(())
    }

    /// Answers that differ from the first by ties.
    pub fn n_tied(&self) -> usize {
        self.right.lock().expect("no client panics while it adds").len() - 1
    }

    /// Follows `found` from each token at which it leaves the greedy text.
    fn judge(&self, server: &Server, mut greedy_text: Vec<u32>, found: &[u32]) -> Result<(), String> {
        loop {
            if greedy_text.len() != found.len() {
                return Err(format!("{} tokens instead of {}", found.len(), greedy_text.len()));
            }
            let Some(at) = greedy_text.iter().zip(found).position(|(expected, found)| expected != found) else {
                return Ok(());
            };
            let nats = self.distance(server, &found[..at], greedy_text[at], found[at])?;
            if nats.abs() >= TIE_NATS {
                return Err(format!(
                    "log probability of token {at} differs from that of the known one by {nats:.3} nats, expected a tie, less than {TIE_NATS}"
                ));
            }
            greedy_text = found[..=at].to_vec();
            let before = [&self.tokens, &found[..=at]].concat();
            if at + 1 < found.len() {
                greedy_text.extend(greedy(server, &before, found.len() - at - 1)?);
            }
        }
    }

    /// Log probability of `one` less that of `other`, after the prompt and `answer`.
    fn distance(&self, server: &Server, answer: &[u32], one: u32, other: u32) -> Result<f64, String> {
        let prompt = [&self.tokens, answer].concat();
        let fields = json!({"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": CANDIDATES});
        let body = request(server, "/completion", &fields)?;
        let candidates = &body["completion_probabilities"][0]["top_logprobs"];
        let log_probability = |token: u32| {
            let mut entries = candidates.as_array()?.iter();
            entries.find(|entry| entry["id"] == token)?["logprob"].as_f64()
        };
        match (log_probability(one), log_probability(other)) {
            (Some(one), Some(other)) => Ok(one - other),
            _ => Err(format!("tokens {one} and {other} are not both among the {CANDIDATES} most probable")),
        }
    }
}

/// The greedy tokens after `prompt`.
fn greedy(server: &Server, prompt: &[u32], n_tokens: usize) -> Result<Vec<u32>, String> {
    let fields = json!({"prompt": prompt, "n_predict": n_tokens, "temperature": 0, "return_tokens": true});
    let body = request(server, "/completion", &fields)?;
    ids(&body["tokens"]).ok_or(format!("no tokens: {body}"))
}

fn ids(tokens: &Value) -> Option<Vec<u32>> {
    tokens.as_array()?.iter().map(|token| u32::try_from(token.as_u64()?).ok()).collect()
}

fn request(server: &Server, path: &str, fields: &Value) -> Result<Value, String> {
    let mut text = String::new();
    begin_post(&server.address, path, &fields.to_string())
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no answer")?;
    match head.contains(" 200 ") {
        true => serde_json::from_str(body).map_err(|error| format!("{error}: {body}")),
        false => Err(format!("{head}: {body}")),
    }
}
