//! Load on a server of OpenAI's API: many clients that send prompts with a common beginning and read the answer as it is streamed.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::http::begin_post;

/// When requests are sent.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// So many clients send one after another.
    Clients(usize),
    /// So many a second on average, at random: a Poisson process. They do not wait for answers.
    PerSecond(f64),
}

/// A load, the same for each server that it is put on.
#[derive(Clone, Debug)]
pub struct Load {
    pub arrivals: Arrivals,
    pub requests: u64,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// Number of the first request's prompt. Prompts of other numbers differ behind the words that all have in common.
    pub first_prompt: u64,
    /// Words of the beginning of all prompts.
    pub common_words: usize,
    /// What answers match, as a field of the request and its value; `None`: anything.
    pub structure: Option<(&'static str, Value)>,
}

/// What the clients saw.
#[derive(Debug, Default)]
pub struct Seen {
    prompt_tokens: u64,
    tokens: u64,
    /// Seconds to the first token of each answer.
    first: Vec<f64>,
    /// Seconds between two events of an answer.
    between: Vec<f64>,
    failed: Vec<String>,
    /// Seconds from the first request to the last answer.
    seconds: f64,
}

/// Words of a prompt's own part.
const OWN_WORDS: std::ops::Range<usize> = 20..400;
const WORDS: [&str; 32] = [
    "the", "a", "of", "and", "to", "in", "light", "house", "sea", "stone", "keeper", "night", "ship", "storm", "wind",
    "glass", "was", "is", "had", "were", "built", "saw", "kept", "lit", "old", "high", "round", "two", "years",
    "every", "when", "then",
];

impl Load {
    /// Puts it on the server at `address`, which serves `model`.
    pub fn put_on(&self, address: &str, model: &str) -> Seen {
        let all = Mutex::new(Seen::default());
        let begun = Instant::now();
        let send = |number: u64| {
            let seen = self.answer(address, model, number);
            *all.lock().expect("no client panics") += seen;
        };
        match self.arrivals {
            Arrivals::Clients(clients) => {
                let next = AtomicU64::new(0);
                let client = || {
                    let mine = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                    mine.take_while(|number| *number < self.requests).for_each(send);
                };
                thread::scope(|scope| (0..clients).for_each(|_| drop(scope.spawn(client))));
            }
            Arrivals::PerSecond(rate) => {
                let mut rng = StdRng::seed_from_u64(1);
                let mut at = 0.0;
                thread::scope(|scope| {
                    for number in 0..self.requests {
                        thread::sleep(Duration::from_secs_f64(at).saturating_sub(begun.elapsed()));
                        scope.spawn(move || send(number));
                        at -= rng.random_range(f64::MIN_POSITIVE..1.0).ln() / rate;
                    }
                });
            }
        }
        let mut all = all.into_inner().expect("no client panics");
        all.seconds = begun.elapsed().as_secs_f64();
        all
    }

    /// Sends the request of this number, and reads the answer.
    fn answer(&self, address: &str, model: &str, number: u64) -> Seen {
        let mut body = json!({
            "model": model, "prompt": prompt(self.common_words, self.first_prompt + number), "max_tokens": self.max_tokens, "temperature": 0.8, "seed": number,
            "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        });
        if let Some((field, value)) = &self.structure {
            body[field] = value.clone();
        }
        let mut seen = Seen::default();
        let sent = Instant::now();
        let mut last = sent;
        for line in BufReader::new(begin_post(address, "/v1/completions", &body.to_string())).lines() {
            let line = match line {
                Ok(line) => line,
                Err(error) => {
                    seen.failed.push(error.to_string());
                    break;
                }
            };
            let Some(event) = line.strip_prefix("data: ").and_then(|event| serde_json::from_str::<Value>(event).ok())
            else {
                continue;
            };
            let usage = |name: &str| event["usage"][name].as_u64().unwrap_or(0);
            seen.tokens += usage("completion_tokens");
            seen.prompt_tokens += usage("prompt_tokens");
            if event["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()) {
                let now = Instant::now();
                match seen.first.is_empty() {
                    true => seen.first.push((now - sent).as_secs_f64()),
                    false => seen.between.push((now - last).as_secs_f64()),
                }
                last = now;
            }
        }
        if seen.tokens == 0 {
            seen.failed.push(format!("request {number}: no tokens"));
        }
        seen
    }
}

/// The prompt of this number.
fn prompt(common_words: usize, number: u64) -> String {
    let words = |rng: &mut StdRng, n| (0..n).map(|_| *WORDS.choose(rng).expect("there are some")).collect::<Vec<_>>();
    let mut rng = StdRng::seed_from_u64(number + 1);
    let n_own = rng.random_range(OWN_WORDS);
    [words(&mut StdRng::seed_from_u64(0), common_words), words(&mut rng, n_own)].concat().join(" ")
}

impl AddAssign for Seen {
    fn add_assign(&mut self, mut other: Seen) {
        self.prompt_tokens += other.prompt_tokens;
        self.tokens += other.tokens;
        self.first.append(&mut other.first);
        self.between.append(&mut other.between);
        self.failed.append(&mut other.failed);
    }
}

impl Seen {
    /// Names of the columns of its text.
    pub const COLUMNS: &'static str =
        "tokens/s | prompt tokens/s | first token, ms: median, 99 % | between tokens, ms: median, 99 % | failed";

    /// Requests that failed, and why.
    pub fn failed(&self) -> &[String] {
        &self.failed
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |times: &[f64], part| 1e3 * part_of(times, part);
        let per_s = |tokens: u64| tokens as f64 / self.seconds;
        write!(f, "{:.0} | {:.0} | ", per_s(self.tokens), per_s(self.prompt_tokens))?;
        write!(f, "{:.0}, {:.0} | ", ms(&self.first, 0.5), ms(&self.first, 0.99))?;
        write!(f, "{:.2}, {:.2} | {}", ms(&self.between, 0.5), ms(&self.between, 0.99), self.failed.len())
    }
}

/// The time below which this part of all times is.
fn part_of(times: &[f64], part: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get((part * times.len() as f64) as usize).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_times_lies_below() {
        let times: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!([0.5, 0.99].map(|part| part_of(&times, part)), [50.0, 99.0]);
    }

    #[test]
    fn prompts_begin_alike_and_go_on_differently() {
        let [one, other] = [1, 2].map(|number| prompt(200, number));
        let common = one.split(' ').zip(other.split(' ')).take_while(|(one, other)| one == other).count();
        assert!((200..210).contains(&common), "{common}");
    }
}
