//! `bench`: prefill and decode timed apart, on made-up tokens, as llama-bench does (its `pp` and `tg`).

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::Serialize;

use super::args::BenchArgs;
use super::error::CliError;
use super::figures::{Figures, Pace};
use super::load::load;
use super::output::{print, print_json};
use crate::{RunError, Sampling, Session};

pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    let context_tokens = args.n_prompt.max(args.n_gen);
    let model = load(&args.artifact, &args.load, Some(context_tokens))?;
    let mut session = model.session()?;
    let tokens = made_up_tokens(context_tokens as usize, model.meta().model.vocab_size);
    let (prompt, steps) = (&tokens[..args.n_prompt as usize], &tokens[..args.n_gen as usize]);

    // Once without the clock: first steps pay for caches that later ones find warm.
    prefill(&mut session, prompt)?;
    decode(&mut session, &steps[..steps.len().min(WARM_UP_STEPS)])?;

    let bar = ProgressBar::new(u64::from(args.repetitions));
    let mut prefill_times = Vec::new();
    let mut decode_times = Vec::new();
    for _ in 0..args.repetitions {
        prefill_times.push(prefill(&mut session, prompt)?);
        decode_times.push(decode(&mut session, steps)?);
        bar.inc(1);
    }
    bar.finish_and_clear();

    let prefill = Pace { tokens: u64::from(args.n_prompt), elapsed: median(&mut prefill_times) };
    let decode = Pace { tokens: u64::from(args.n_gen), elapsed: median(&mut decode_times) };
    let report = BenchReport { figures: Figures::new(&model, prefill, decode), repetitions: args.repetitions };
    if args.json {
        return print_json(&report);
    }
    print(&format!("{}\nmedian   of {} runs\n", report.figures, report.repetitions))
}

/// What `--json` prints.
#[derive(Serialize)]
struct BenchReport {
    #[serde(flatten)]
    figures: Figures,
    repetitions: u32,
}

const WARM_UP_STEPS: usize = 4;

/// All tokens at once into an empty cache, up to the first drawn token.
fn prefill(session: &mut Session<'_>, tokens: &[u32]) -> Result<Duration, RunError> {
    session.clear();
    let started = Instant::now();
    session.feed_and_sample(tokens, &Sampling::default())?;
    Ok(started.elapsed())
}

/// One token after another from an empty cache on, each with a draw.
fn decode(session: &mut Session<'_>, tokens: &[u32]) -> Result<Duration, RunError> {
    session.clear();
    let started = Instant::now();
    for token in tokens {
        session.feed_and_sample(std::slice::from_ref(token), &Sampling::default())?;
    }
    Ok(started.elapsed())
}

/// The same ids each time, spread over the vocabulary.
pub fn made_up_tokens(count: usize, vocab_size: u32) -> Vec<u32> {
    // A multiplicative hash: neighbouring indices land far apart.
    (0..count as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % vocab_size).collect()
}

/// The middle one, or the mean of both middle ones. At least one time.
fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] } else { (times[middle - 1] + times[middle]) / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::figures::tests::figures;

    #[test]
    fn the_median_is_in_the_middle() {
        let seconds = |times: &[u64]| times.iter().map(|&time| Duration::from_secs(time)).collect::<Vec<_>>();
        assert_eq!(median(&mut seconds(&[9, 1, 2])), Duration::from_secs(2));
        assert_eq!(median(&mut seconds(&[4, 2, 9, 1])), Duration::from_secs(3));
    }

    #[test]
    fn made_up_tokens_stay_in_the_vocabulary() {
        let tokens = made_up_tokens(1000, 300);
        assert!(tokens.iter().all(|&token| token < 300));
        assert_eq!(tokens, made_up_tokens(1000, 300));
        assert!(tokens.iter().collect::<std::collections::BTreeSet<_>>().len() > 200);
    }

    #[test]
    fn the_report_has_the_keys_of_a_run() {
        let json = serde_json::to_value(BenchReport { figures: figures(), repetitions: 3 }).unwrap();
        assert!(json.get("decode_tokens_per_s").is_some() && json.get("repetitions").is_some());
    }
}
