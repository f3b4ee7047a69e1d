//! What is reported about one run: one object for `--json`, two lines or all figures as text.

use std::fmt;

use serde::Serialize;
use unicorn_text::EndReason;

use super::answer::Generated;
use crate::report::statistics::RunStatistics;

/// Everything about one run; what `--json` prints.
#[derive(Serialize)]
pub struct RunReport {
    #[serde(flatten)]
    pub statistics: RunStatistics,
    /// Time from the start of the load to the first token.
    pub first_token_s: Option<f64>,
    pub seed: u64,
    pub stop_reason: &'static str,
    /// Tokens that speculation proposed; 0 without it.
    pub draft_n: u64,
    /// Number of those tokens that were accepted.
    pub draft_n_accepted: u64,
    /// Generated ids, without the stop token.
    pub tokens: Vec<u32>,
    pub text: String,
}

impl RunReport {
    pub fn new(statistics: RunStatistics, seed: u64, generated: Generated) -> RunReport {
        RunReport {
            statistics,
            first_token_s: generated.first_token.map(|age| age.as_secs_f64()),
            seed,
            stop_reason: generated.end_reason.name(),
            draft_n: generated.drafts.proposed,
            draft_n_accepted: generated.drafts.accepted,
            tokens: generated.tokens,
            text: generated.text,
        }
    }
}

/// All figures, a line a subject.
impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.statistics)?;
        if let Some(seconds) = self.first_token_s {
            writeln!(f, "latency  {}", latency(seconds, self.statistics.load.load_resident_s))?;
        }
        if let Some(percent) = (100 * self.draft_n_accepted).checked_div(self.draft_n) {
            writeln!(f, "drafts   {} of {} tokens accepted ({percent} %)", self.draft_n_accepted, self.draft_n)?;
        }
        write!(f, "seed     {}\nstopped  {}", self.seed, self.stop_reason)
    }
}

/// Times of the first token and of the last weight, both from the start of the load.
pub fn latency(first_token_s: f64, resident_s: Option<f64>) -> String {
    let resident = resident_s.map(|seconds| format!("resident after {seconds:.2} s"));
    format!("first token after {first_token_s:.2} s, all weights {}", resident.as_deref().unwrap_or("not resident yet"))
}

/// Why nothing was generated, and what to try; `None`: there is text, or the user ended it.
pub fn why_empty(text: &str, end_reason: EndReason, is_raw: bool) -> Option<String> {
    if !text.trim().is_empty() {
        return None;
    }
    Some(match end_reason {
        EndReason::Cancelled => return None,
        EndReason::StopToken if is_raw => "answer is empty: the model ended the text at once; without --raw, its chat \
                                           template is used"
            .to_owned(),
        EndReason::StopToken => {
            "answer is empty: the model ended it at once; try other words, another --seed, or --raw, \
                                 which continues the text"
                .to_owned()
        }
        EndReason::ContextFull => {
            "answer is empty: the prompt fills the context; try a shorter one, or a longer context with -c".to_owned()
        }
        other => format!("answer is empty: it ended with {}; try a larger -n, or other words", other.name()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::generate::answer::tests::generated;
    use crate::report::statistics::tests::statistics;

    fn report() -> RunReport {
        RunReport::new(statistics(), 42, generated())
    }

    #[test]
    fn the_first_token_may_come_before_all_weights() {
        assert_eq!(latency(0.456, Some(2.0)), "first token after 0.46 s, all weights resident after 2.00 s");
        assert_eq!(latency(0.456, None), "first token after 0.46 s, all weights not resident yet");
    }

    #[test]
    fn the_report_is_one_flat_object() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["stop_reason"], "stop_token");
        assert_eq!(json["text"], " hé");
        assert_eq!(json["tokens"], serde_json::json!([3, 4]));
        assert_eq!((&json["seed"], &json["software"]), (&42.into(), &false.into()));
        assert_eq!(json["first_token_s"], 0.75);
        assert!(json.get("statistics").is_none() && json.get("decode_tokens_per_s").is_some());
    }

    #[test]
    fn an_empty_answer_has_a_reason_and_a_remedy() {
        assert_eq!(why_empty("text", EndReason::StopToken, false), None);
        assert_eq!(why_empty("", EndReason::Cancelled, false), None);
        assert!(why_empty(" \n", EndReason::StopToken, false).unwrap().contains("--raw"));
        assert!(why_empty("", EndReason::StopToken, true).unwrap().contains("without --raw"));
        assert!(why_empty("", EndReason::ContextFull, false).unwrap().contains("-c"));
        assert!(why_empty("", EndReason::MaxTokens, false).unwrap().contains("-n"));
    }
}
