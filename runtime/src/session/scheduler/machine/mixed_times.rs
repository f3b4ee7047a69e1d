//! How many tokens of a prompt a step feeds beside the sequences that decode: as many as the prompts that wait need, but so few that the step
//! is not much longer than the others.
//!
//! "The others" are steps without a prompt as long as those are the most. Where prompts come faster than such steps can feed them, nearly every
//! step feeds one, and the streams' tokens come at its pace whatever its length: then larger steps are permitted, one size after the other,
//! until prompts no longer wait. Without that, prompts that wait leave few sequences that decode, whose short steps permit only short parts of
//! prompts.
//!
//! On a device that has time left in such steps, larger ones take hardly longer. Then a prompt is fed in few of them, although it could wait.

use std::collections::VecDeque;
use std::time::Duration;

use crate::program::chunks::MAX_ROWS_OVER_USED;

/// Measured times of steps that decode and feed.
pub struct MixedTimes {
    /// Most rows of a program for such steps, and their seconds, an exponential moving average; `None`: none has run. The smallest first.
    sizes: Vec<(u32, Option<f64>)>,
    /// Seconds of the last steps that decoded, fed or not.
    recent: VecDeque<f64>,
}

/// A step that decodes and feeds takes at most this many times as long as others, if the smallest program allows it: the 99th
/// percentile of times between tokens stays below twice the median.
const MOST_TIMES_PLAIN: f64 = 1.9;
/// Steps of this many seconds are permitted, however short the others are: streams of 200 tokens/s are faster than anyone reads.
const UNNOTICED_SECONDS: f64 = 0.005;
/// Steps in which the prompts that wait are to be fed, if these may be long enough.
const STEPS_OF_PROMPTS: u32 = 4;
/// Prompts wait where feeding them takes more steps than this.
const MOST_STEPS_WAITING: u32 = 16;
/// Steps of whose times a median is taken.
const RECENT_STEPS: usize = 128;
/// Fewest of them.
const MIN_RECENT_STEPS: usize = 32;
/// A larger size than prompts need is chosen where it feeds them in less than this part of the time that the smaller one adds to plain
/// steps.
const CHEAPER: f64 = 2.0 / 3.0;
/// Part of the rows of such a step that are at least the prompt's, unless it ends: a fourth.
const MIN_PROMPT_PART: u32 = 4;
/// Weight of the newest time in an average.
const NEWEST_TIME: f64 = 0.25;
/// What is left of a size's average with each smaller step, so that a size that was too slow is tried again.
const KEPT_AVERAGE: f64 = 0.999;

/// Tokens of prompts.
pub struct Prompts {
    /// Left of those of which a step can feed parts.
    pub next: u32,
    /// Left of all.
    pub all: u32,
}

impl MixedTimes {
    pub fn new(sizes: Vec<u32>) -> MixedTimes {
        MixedTimes { sizes: sizes.into_iter().map(|rows| (rows, None)).collect(), recent: VecDeque::new() }
    }

    /// Most rows of a step that decodes and feeds; 0: there is none.
    pub fn most_rows(&self) -> u32 {
        self.sizes.last().map_or(0, |(rows, _)| *rows)
    }

    /// A step that only decodes has run: such steps take `average`, where the times of one are those of a submission of several.
    pub fn add_plain(&mut self, average: Duration) {
        self.add_recent(average.as_secs_f64());
    }

    /// Adds the time of a step of `n_rows` rows.
    pub fn add(&mut self, n_rows: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        self.add_recent(seconds);
        let mut sizes = self.sizes.iter_mut().skip_while(|(rows, _)| (*rows as usize) < n_rows);
        if let Some((_, average)) = sizes.next() {
            *average = Some(average.map_or(seconds, |average| average + NEWEST_TIME * (seconds - average)));
        }
        for (_, average) in sizes {
            *average = average.map(|average| KEPT_AVERAGE * average);
        }
    }

    /// Tokens of the first prompts that a step feeds beside `n_decoding` sequences, whose steps alone take `plain`; `None`: prompt and
    /// sequences take turns.
    pub fn prompt_rows(&self, n_decoding: u32, prompts: &Prompts, plain: Option<Duration>) -> Option<u32> {
        let plain = plain.map_or(0.0, |plain| plain.as_secs_f64());
        let most = (MOST_TIMES_PLAIN * plain).max(UNNOTICED_SECONDS);
        let wanted = n_decoding + prompts.next.min(prompts.all.div_ceil(STEPS_OF_PROMPTS));
        let has_room = |rows: u32| rows >= n_decoding + prompts.next.min(rows / MIN_PROMPT_PART);
        let mut chosen = None;
        // What steps of this size add to those that only decode until these prompts are fed.
        let mut added_seconds = f64::INFINITY;
        // Of the size before: seconds for each row more than those of a step that only decodes.
        let mut row_seconds = None;
        for &(rows, seconds) in self.sizes.iter().filter(|(rows, _)| has_room(*rows)) {
            let foreseen = seconds.or(row_seconds.map(|of_row: f64| plain + of_row * f64::from(rows)));
            let is_short = |seconds: f64| {
                let is_behind = |size: u32| prompts.all > MOST_STEPS_WAITING * size.saturating_sub(n_decoding);
                seconds <= most || chosen.is_some_and(is_behind) && seconds <= self.most_times_median()
            };
            if chosen.is_some() && !foreseen.is_some_and(is_short) {
                break;
            }
            let more_seconds = foreseen.map(|seconds| (seconds - plain).max(0.0));
            let n_steps = prompts.next.div_ceil((rows - n_decoding).max(1));
            let added = more_seconds.map_or(f64::INFINITY, |seconds| seconds * f64::from(n_steps));
            if chosen.is_some_and(|smaller| smaller >= wanted) && added >= CHEAPER * added_seconds {
                break;
            }
            added_seconds = added;
            row_seconds = more_seconds.map(|seconds| seconds / f64::from(rows));
            chosen = Some(rows);
        }
        let rows = chosen?;
        let n_rows = rows.min(n_decoding + prompts.next);
        // A matmul computes all rows of its program.
        (n_rows.saturating_mul(MAX_ROWS_OVER_USED) >= rows).then_some(n_rows - n_decoding)
    }

    fn add_recent(&mut self, seconds: f64) {
        self.recent.truncate(RECENT_STEPS - 1);
        self.recent.push_front(seconds);
    }

    /// [`MOST_TIMES_PLAIN`] times the median of the last steps, in seconds; 0 while there are few.
    fn most_times_median(&self) -> f64 {
        let mut recent: Vec<f64> = self.recent.iter().copied().collect();
        if recent.len() < MIN_RECENT_STEPS {
            return 0.0;
        }
        let middle = recent.len() / 2;
        MOST_TIMES_PLAIN * *recent.select_nth_unstable_by(middle, f64::total_cmp).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Option<Duration> = Some(Duration::from_millis(5));

    /// Of sizes that took as many milliseconds.
    fn times(measured: &[(usize, u64)]) -> MixedTimes {
        let mut times = MixedTimes::new(vec![64, 128, 256]);
        measured.iter().for_each(|&(rows, ms)| times.add(rows, Duration::from_millis(ms)));
        times
    }

    fn one(n_tokens: u32) -> Prompts {
        Prompts { next: n_tokens, all: n_tokens }
    }

    #[test]
    fn steps_grow_while_nobody_notices() {
        let rows = |measured: &[(usize, u64)]| times(measured).prompt_rows(32, &one(1000), PLAIN);
        assert_eq!(rows(&[]), Some(32));
        assert_eq!(rows(&[(64, 6)]), Some(256 - 32), "9 ms are foreseen");
        assert_eq!(rows(&[(64, 6), (256, 12)]), Some(128 - 32), "7 ms are foreseen");
        assert_eq!(rows(&[(64, 8)]), Some(32), "11 ms are foreseen");
        assert_eq!(rows(&[(64, 50)]), Some(32), "there is no smaller one");
    }

    #[test]
    fn where_prompts_wait_steps_grow_to_what_most_steps_permit() {
        let mut times = times(&[(64, 10), (128, 15), (256, 25)]);
        let rows = |times: &MixedTimes, all| times.prompt_rows(8, &Prompts { next: 300, all }, PLAIN);
        assert_eq!(rows(&times, 5000), Some(64 - 8), "most of these times are not known");
        (0..60).for_each(|_| times.add(64, Duration::from_millis(10)));
        assert_eq!(rows(&times, 5000), Some(128 - 8), "15 ms are less than twice 10");
        assert_eq!(rows(&times, 16 * 56), Some(64 - 8), "sixteen steps are enough");
        (0..60).for_each(|_| times.add(128, Duration::from_millis(15)));
        assert_eq!(rows(&times, 5000), Some(256 - 8), "so are 25 than twice 15");
        assert_eq!(rows(&times, 1900), Some(128 - 8), "nobody waits for larger ones");
        (0..100).for_each(|_| times.add_plain(Duration::from_millis(5)));
        assert_eq!(rows(&times, 5000), Some(64 - 8), "most steps feed none");
    }

    #[test]
    fn a_size_that_was_too_slow_is_tried_again() {
        let mut times = times(&[(64, 6), (128, 10)]);
        assert_eq!(times.prompt_rows(32, &one(1000), PLAIN), Some(32));
        (0..100).for_each(|_| times.add(64, Duration::from_millis(6)));
        assert_eq!(times.prompt_rows(32, &one(1000), PLAIN), Some(128 - 32));
    }

    #[test]
    fn steps_are_no_longer_than_the_prompts_that_wait_need() {
        let times = times(&[(64, 6), (128, 6), (256, 7)]);
        let rows = |next, all| times.prompt_rows(32, &Prompts { next, all }, PLAIN);
        assert_eq!(rows(24, 24), Some(24));
        assert_eq!(rows(300, 300), Some(128 - 32), "four steps of 6 ms add as much as two of 7");
        assert_eq!(rows(120, 2000), Some(120), "in 256 rows");
    }

    #[test]
    fn where_larger_steps_take_hardly_longer_a_prompt_takes_few() {
        let rows = |measured: &[(usize, u64)], first| times(measured).prompt_rows(32, &one(first), PLAIN);
        assert_eq!(
            rows(&[(64, 6), (128, 6), (256, 7)], 120),
            Some(128 - 32),
            "two steps of 6 ms, not four, nor one of 7"
        );
        assert_eq!(rows(&[(64, 6), (128, 6), (256, 6)], 120), Some(120), "in 256 rows");
        assert_eq!(rows(&[(64, 6), (128, 8)], 120), Some(32), "four steps of 6 ms add as much as two of 8");
    }

    #[test]
    fn a_program_is_chosen_that_is_mostly_in_use() {
        let times = times(&[(64, 6), (128, 6), (256, 7)]);
        let rows = |n_decoding, n_prompt| times.prompt_rows(n_decoding, &one(n_prompt), PLAIN);
        assert_eq!(rows(4, 40), Some(40));
        assert_eq!(rows(4, 12), Some(12));
        assert_eq!(rows(4, 11), None, "15 of 64 rows");
        assert_eq!(rows(60, 20), Some(20), "in 128 rows");
        assert_eq!(rows(60, 2), Some(2), "in 64 rows, with the end of the prompt");
        assert_eq!(rows(60, 1000), Some(256 - 60));
        assert_eq!(MixedTimes::new(Vec::new()).prompt_rows(4, &one(400), PLAIN), None);
    }
}
