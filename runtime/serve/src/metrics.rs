//! What the server has done and is doing, for Prometheus: under llama-server's names, and the aliases that routers of vLLM read.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::activity::Activity;
use crate::choice_end::ChoiceEnd;
use crate::health::Health;

/// Counters since the server began, and what it is doing now. Written by the worker, read by requests.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Seconds since 1970.
    pub(crate) begun: u64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    prompt_micros: AtomicU64,
    predicted_tokens: AtomicU64,
    decode_micros: AtomicU64,
    /// Tokens that took a step of decode: all but the first of each choice.
    decode_tokens: AtomicU64,
    drafts: AtomicU64,
    drafted_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    steps: AtomicU64,
    step_tokens: AtomicU64,
    longest: AtomicU64,
    requests: AtomicU64,
    waiting: AtomicU64,
    running: AtomicU64,
    running_pages: AtomicU64,
    preemptions: AtomicU64,
    /// Whether the device computes.
    pub(crate) health: Health,
    /// Pages of the KV cache.
    kv_pages: u32,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let zero = AtomicU64::default;
        Metrics {
            begun: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            prompt_tokens: zero(),
            cached_tokens: zero(),
            prompt_micros: zero(),
            predicted_tokens: zero(),
            decode_micros: zero(),
            decode_tokens: zero(),
            drafts: zero(),
            drafted_tokens: zero(),
            accepted_tokens: zero(),
            steps: zero(),
            step_tokens: zero(),
            longest: zero(),
            requests: zero(),
            waiting: zero(),
            running: zero(),
            running_pages: zero(),
            preemptions: zero(),
            health: Health::default(),
            kv_pages: 0,
        }
    }
}

impl Metrics {
    /// Metrics of a server whose KV cache has `kv_pages`.
    pub(crate) fn new(kv_pages: u32) -> Metrics {
        Metrics { kv_pages, ..Metrics::default() }
    }

    /// A choice ended, `prompt_tokens` of whose prompt were computed.
    pub(crate) fn count(&self, prompt_tokens: u32, end: &ChoiceEnd) {
        let add = |counter: &AtomicU64, value: u64| {
            counter.fetch_add(value, Ordering::Relaxed);
        };
        add(&self.prompt_tokens, prompt_tokens.into());
        add(&self.prompt_micros, end.times.prompt.as_micros() as u64);
        add(&self.predicted_tokens, end.tokens.into());
        add(&self.decode_micros, end.times.decode.as_micros() as u64);
        add(&self.decode_tokens, end.tokens.saturating_sub(1).into());
        add(&self.requests, 1);
        self.longest.fetch_max(u64::from(prompt_tokens) + u64::from(end.tokens), Ordering::Relaxed);
    }

    /// A prompt was read, `tokens` of which were computed, and nothing is to follow it.
    pub(crate) fn count_read(&self, tokens: u32, time: Duration) {
        self.prompt_tokens.fetch_add(tokens.into(), Ordering::Relaxed);
        self.prompt_micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(tokens.into(), Ordering::Relaxed);
    }

    pub(crate) fn count_cached(&self, tokens: u32) {
        self.cached_tokens.fetch_add(tokens.into(), Ordering::Relaxed);
    }

    /// A draft of `proposed` tokens, or `accepted` tokens of one that was counted.
    pub(crate) fn count_drafted(&self, proposed: u32, accepted: u32) {
        self.drafts.fetch_add(u64::from(proposed > 0), Ordering::Relaxed);
        self.drafted_tokens.fetch_add(proposed.into(), Ordering::Relaxed);
        self.accepted_tokens.fetch_add(accepted.into(), Ordering::Relaxed);
    }

    /// A step that sampled `n_tokens`.
    pub(crate) fn count_step(&self, n_tokens: usize) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.step_tokens.fetch_add(n_tokens as u64, Ordering::Relaxed);
    }

    pub(crate) fn show(&self, activity: &Activity) {
        self.waiting.store(activity.waiting.into(), Ordering::Relaxed);
        self.running.store((activity.in_prefill + activity.decoding).into(), Ordering::Relaxed);
        self.running_pages.store(activity.running_pages.into(), Ordering::Relaxed);
        self.preemptions.store(activity.preemptions, Ordering::Relaxed);
    }

    /// Sequences that are generated now.
    pub(crate) fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// Requests that wait for a sequence.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Share of the KV cache's pages that running sequences hold, from 0 to 1.
    pub(crate) fn kv_usage(&self) -> f64 {
        self.running_pages.load(Ordering::Relaxed) as f64 / f64::from(self.kv_pages.max(1))
    }

    /// Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let seconds = |micros: &AtomicU64| read(micros) / 1e6;
        let rate = |tokens: f64, seconds: f64| if seconds > 0.0 { tokens / seconds } else { 0.0 };
        let (prompt_tokens, prompt_seconds) = (read(&self.prompt_tokens), seconds(&self.prompt_micros));
        let decode_seconds = seconds(&self.decode_micros);
        let metrics = [
            ("llamacpp:prompt_tokens_total", "counter", "Tokens of prompts that were computed", prompt_tokens),
            (
                "llamacpp:prompt_tokens_cached_total",
                "counter",
                "Tokens of prompts that were in the cache",
                read(&self.cached_tokens),
            ),
            ("llamacpp:prompt_seconds_total", "counter", "Time until the first token of each choice", prompt_seconds),
            ("llamacpp:tokens_predicted_total", "counter", "Tokens that were sampled", read(&self.predicted_tokens)),
            (
                "llamacpp:tokens_predicted_seconds_total",
                "counter",
                "Time from the first token of each choice to its last",
                decode_seconds,
            ),
            ("llamacpp:n_decode_total", "counter", "Steps of the model", read(&self.steps)),
            ("llamacpp:n_tokens_max", "counter", "Most tokens that a choice has computed", read(&self.longest)),
            (
                "llamacpp:spec_decode_num_draft_tokens_total",
                "counter",
                "Tokens that drafts proposed",
                read(&self.drafted_tokens),
            ),
            (
                "llamacpp:spec_decode_num_accepted_tokens_total",
                "counter",
                "Proposed tokens that were accepted",
                read(&self.accepted_tokens),
            ),
            ("llamacpp:spec_decode_num_drafts_total", "counter", "Drafts that were verified", read(&self.drafts)),
            (
                "llamacpp:prompt_tokens_seconds",
                "gauge",
                "Tokens of prompts a second, on average",
                rate(prompt_tokens, prompt_seconds),
            ),
            (
                "llamacpp:predicted_tokens_seconds",
                "gauge",
                "Tokens of a choice a second, on average",
                rate(read(&self.decode_tokens), decode_seconds),
            ),
            ("llamacpp:requests_processing", "gauge", "Sequences that are generated", read(&self.running)),
            ("llamacpp:requests_deferred", "gauge", "Requests that wait for a sequence", read(&self.waiting)),
            (
                "llamacpp:n_busy_slots_per_decode",
                "gauge",
                "Sequences of a step, on average",
                rate(read(&self.step_tokens), read(&self.steps)),
            ),
            ("vllm:num_requests_running", "gauge", "Sequences that are generated", read(&self.running)),
            ("vllm:num_requests_waiting", "gauge", "Requests that wait for a sequence", read(&self.waiting)),
            (
                "vllm:kv_cache_usage_perc",
                "gauge",
                "Share of the KV cache's pages that running sequences hold, from 0 to 1; what is kept of ended ones is free",
                self.kv_usage(),
            ),
            (
                "vllm:num_preemptions_total",
                "counter",
                "Times that a request was interrupted because pages ran out; its tokens are computed again",
                read(&self.preemptions),
            ),
            (
                "unicorn:device_losses_total",
                "counter",
                "Times that the device was lost since the model was loaded",
                self.health.state().losses as f64,
            ),
            ("vllm:prompt_tokens_total", "counter", "Tokens of prompts that were computed", prompt_tokens),
            ("vllm:generation_tokens_total", "counter", "Tokens that were sampled", read(&self.predicted_tokens)),
            ("vllm:request_success_total", "counter", "Choices that ended", read(&self.requests)),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in metrics {
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}").expect("writing to a String");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use unicorn_text::EndReason;

    use super::*;
    use crate::choice_end::Times;

    #[test]
    fn what_ended_is_counted() {
        let metrics = Metrics::new(64);
        metrics.show(&Activity { decoding: 2, running_pages: 16, preemptions: 3, ..Activity::default() });
        let end = ChoiceEnd {
            reason: EndReason::MaxTokens,
            stop_string: None,
            tokens: 5,
            rest: Vec::new(),
            probabilities: Vec::new(),
            prompt_probabilities: Vec::new(),
            drafted: 0,
            accepted: 0,
            times: Times { prompt: Duration::from_millis(500), decode: Duration::from_secs(2) },
        };
        metrics.health.has_lost(1);
        metrics.count(10, &end);
        metrics.count_cached(3);
        metrics.count_drafted(7, 0);
        metrics.count_drafted(0, 1);
        let text = metrics.text();
        for line in [
            "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 10\n",
            "\nllamacpp:prompt_tokens_seconds 20\n",
            // The first token takes no step of decode.
            "\nllamacpp:predicted_tokens_seconds 2\n",
            "\nllamacpp:prompt_tokens_cached_total 3\n",
            "\nllamacpp:spec_decode_num_drafts_total 1\n",
            "\nllamacpp:spec_decode_num_draft_tokens_total 7\n",
            "\nllamacpp:spec_decode_num_accepted_tokens_total 1\n",
            "\nvllm:num_requests_running 2\n",
            "\nvllm:kv_cache_usage_perc 0.25\n",
            "\nvllm:num_preemptions_total 3\n",
            "\nunicorn:device_losses_total 1\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
