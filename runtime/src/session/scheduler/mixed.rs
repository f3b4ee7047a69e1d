//! How many rows a step has that feeds a part of a prompt beside the sequences that decode: so many that these do not notice.

use std::time::Duration;

use super::{Scheduler, TokenReceiver};
use unicorn_artifact::step::image_of;

/// Measured times of steps by their programs' rows, the smallest first.
#[derive(Default)]
pub(super) struct MixedTimes {
    /// Most rows of a step, and its seconds, an exponential moving average; `None`: none has run.
    sizes: Vec<(u32, Option<f64>)>,
}

/// A step that decodes and feeds takes at most this many times as long as one that only decodes, if the smallest program allows it: the 99th
/// percentile of times between tokens stays below twice the median.
const MOST_TIMES_PLAIN: f64 = 1.8;
/// Part of the rows of such a step that are at least the prompt's, unless it ends: a fourth.
const MIN_PROMPT_PART: u32 = 4;
/// Longest sequence that decodes in such a step: its row attends to the cache in one workgroup a KV head, where a step that only decodes divides
/// the cache between many.
const MAX_DECODED_TOKENS: u32 = 8192;
/// Weight of the newest time in an average.
const NEWEST_TIME: f64 = 0.25;

impl MixedTimes {
    pub fn new(sizes: Vec<u32>) -> MixedTimes {
        MixedTimes { sizes: sizes.into_iter().map(|rows| (rows, None)).collect() }
    }

    /// Adds the time of a step of `n_rows` rows.
    pub fn add(&mut self, n_rows: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some((_, average)) = self.sizes.iter_mut().find(|(rows, _)| *rows as usize >= n_rows) {
            *average = Some(average.map_or(seconds, |average| average + NEWEST_TIME * (seconds - average)));
        }
    }

    /// Tokens of a prompt of which `n_prompt` are left that a step has beside `n_decoding` sequences, whose steps alone take `plain`;
    /// `None`: prompt and sequences take turns.
    fn prompt_rows(&self, n_decoding: u32, n_prompt: u32, plain: Option<Duration>) -> Option<u32> {
        let most = MOST_TIMES_PLAIN * plain.map_or(0.0, |plain| plain.as_secs_f64());
        let has_room = |rows: u32| rows >= n_decoding + n_prompt.min(rows / MIN_PROMPT_PART);
        let mut chosen = None;
        // Of the size before: seconds for each row more than those of a step that only decodes.
        let mut row_seconds = None;
        for &(rows, seconds) in self.sizes.iter().filter(|(rows, _)| has_room(*rows)) {
            let plain = most / MOST_TIMES_PLAIN;
            let foreseen = seconds.or(row_seconds.map(|of_row: f64| plain + of_row * f64::from(rows)));
            if chosen.is_some() && foreseen.is_none_or(|seconds| seconds > most) {
                break;
            }
            row_seconds = foreseen.map(|seconds| (seconds - plain).max(0.0) / f64::from(rows));
            chosen = Some(rows);
            if rows >= n_decoding + n_prompt {
                break;
            }
        }
        let rows = chosen?;
        let n_rows = rows.min(n_decoding + n_prompt);
        // A matmul computes all rows of its program.
        (2 * n_rows >= rows).then_some(n_rows - n_decoding)
    }
}

impl<R: TokenReceiver> Scheduler<R> {
    /// Tokens of the first prompt, which has begun, that the next step of the sequences that decode can feed; `None`: they take turns.
    pub(super) fn prompt_rows_beside(&self) -> Option<usize> {
        let first = self.prefill.front()?;
        let reads_rows =
            first.receiver.reads_hidden_rows() || first.receiver.reads_prompt_logits() && first.resumes.is_none();
        let is_long = |session: &crate::session::session::Session| session.len_tokens() > MAX_DECODED_TOKENS;
        let longest = self.decoding.iter().any(|active| is_long(&active.session));
        if self.deterministic || self.decoding.is_empty() || reads_rows || longest {
            return None;
        }
        let (n_decoding, n_prompt) = (self.decoding.len() as u32, first.rest.len().min(self.max_prefill_tokens) as u32);
        let n_tokens = self.mixed_times.prompt_rows(n_decoding, n_prompt, self.times.plain())? as usize;
        first.rest[..n_tokens].iter().all(|&token| image_of(token).is_none()).then_some(n_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Option<Duration> = Some(Duration::from_millis(5));

    fn times(measured: &[(usize, u64)]) -> MixedTimes {
        let mut times = MixedTimes::new(vec![64, 128, 256]);
        measured.iter().for_each(|&(rows, ms)| times.add(rows, Duration::from_millis(ms)));
        times
    }

    #[test]
    fn steps_grow_while_nobody_notices() {
        let rows = |measured: &[(usize, u64)]| times(measured).prompt_rows(32, 1000, PLAIN);
        assert_eq!(rows(&[]), Some(32));
        assert_eq!(rows(&[(64, 6)]), Some(256 - 32), "9 ms are foreseen");
        assert_eq!(rows(&[(64, 6), (256, 12)]), Some(128 - 32), "7 ms are foreseen");
        assert_eq!(rows(&[(64, 8)]), Some(32), "11 ms are foreseen");
        assert_eq!(rows(&[(64, 50)]), Some(32), "there is no smaller one");
    }

    #[test]
    fn a_program_is_chosen_that_is_mostly_in_use() {
        let rows =
            |n_decoding, n_prompt| times(&[(64, 6), (128, 6), (256, 7)]).prompt_rows(n_decoding, n_prompt, PLAIN);
        assert_eq!(rows(4, 40), Some(40));
        assert_eq!(rows(4, 27), None, "31 of 64 rows");
        assert_eq!(rows(60, 20), Some(20), "in 128 rows");
        assert_eq!(rows(60, 2), Some(2), "in 64 rows, with the end of the prompt");
        assert_eq!(times(&[]).prompt_rows(60, 1000, PLAIN), Some(128 - 60), "64 rows have no room");
        assert_eq!(MixedTimes::new(Vec::new()).prompt_rows(4, 400, PLAIN), None);
    }
}
