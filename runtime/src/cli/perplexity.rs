//! `perplexity`: how well a model predicts a text, by llama-perplexity's protocol, so that figures compare.
//!
//! ```text
//! text ──► ids ──► chunks of ctx ids, the first of each replaced by BOS
//!          chunk:  0 ………… ctx/2 ………… ctx−1
//!                         └ these predict their successors and are scored ┘ (all but the last)
//! ```

use std::io::Write;
use std::time::Instant;

use serde::Serialize;

use super::args::PerplexityArgs;
use super::error::CliError;
use super::figures::{Figures, Pace};
use super::load::load;
use super::output::{print, print_json};
use super::text::Text;
use crate::Session;

pub fn run(args: &PerplexityArgs) -> Result<(), CliError> {
    let file = std::fs::read_to_string(&args.file).map_err(|error| CliError::at(&args.file, error))?;
    let model = load(&args.artifact, &args.load, Some(args.ctx))?;
    let text = Text::open(model.tokenizer_section())?;
    let tokens = text.encode_prompt(&file)?;
    let chunk_tokens = args.ctx as usize;
    let all_chunks = tokens.len() / chunk_tokens;
    if all_chunks == 0 {
        return Err(CliError::at(
            &args.file,
            format!("text is too short: expected at least one chunk of {chunk_tokens} tokens, found {}", tokens.len()),
        ));
    }
    let n_chunks = args.chunks.map_or(all_chunks, |chunks| all_chunks.min(chunks as usize));

    let mut session = model.session()?;
    let mut score = Score::default();
    let started = Instant::now();
    for (index, chunk) in tokens.chunks_exact(chunk_tokens).take(n_chunks).enumerate() {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = text.prompt_bos() {
            chunk[0] = bos;
        }
        score_chunk(&mut session, &chunk, &mut score)?;
        eprint!("[{}]{:.4},", index + 1, score.perplexity());
        // Progress that cannot be shown is no reason to stop.
        std::io::stderr().flush().ok();
    }
    eprintln!();

    let prefill = Pace { tokens: (n_chunks * (chunk_tokens - 1)) as u64, elapsed: started.elapsed() };
    let report = PerplexityReport {
        perplexity: score.perplexity(),
        perplexity_error: score.perplexity_error(),
        chunks: n_chunks,
        context_tokens: args.ctx,
        scored_tokens: score.count,
        figures: Figures::new(&model, prefill, Pace::default()),
    };
    match args.json {
        true => print_json(&report),
        false => print(&format!(
            "Final estimate: PPL = {:.4} +/- {:.5}\n",
            report.perplexity,
            report.perplexity_error.unwrap_or(f64::NAN)
        )),
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct PerplexityReport {
    perplexity: f64,
    /// One standard error, as far as tokens are independent; `None` for a single one.
    perplexity_error: Option<f64>,
    chunks: usize,
    context_tokens: u32,
    scored_tokens: u64,
    #[serde(flatten)]
    figures: Figures,
}

/// Feeds all but the last token of `chunk` into an empty cache and scores the second half.
fn score_chunk(session: &mut Session<'_>, chunk: &[u32], score: &mut Score) -> Result<(), CliError> {
    let first_scored = chunk.len() / 2;
    let mut successors = chunk[first_scored + 1..].iter();
    session.clear();
    session.feed(&chunk[..first_scored])?;
    session.feed_with_logits(&chunk[first_scored..chunk.len() - 1], &mut |_, logits| {
        let successor = successors.next().expect("one row of logits a token");
        score.add(logits, *successor as usize);
    })?;
    if score.is_finite() {
        return Ok(());
    }
    Err(CliError::new("logits are not finite: the perplexity of this text has no value"))
}

/// Sums over scored tokens of their negative log-likelihood (nats), and of its square.
#[derive(Default)]
struct Score {
    sum: f64,
    sum_of_squares: f64,
    count: u64,
}

impl Score {
    /// Counts how unlikely `logits` (one a vocabulary entry) made the token that came.
    fn add(&mut self, logits: &[f32], token: usize) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        let nll = sum.ln() - f64::from(logits[token] - largest);
        self.sum += nll;
        self.sum_of_squares += nll * nll;
        self.count += 1;
    }

    fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the mean, carried through the exponential.
    fn perplexity_error(&self) -> Option<f64> {
        let variance = self.sum_of_squares / self.count as f64 - self.mean() * self.mean();
        (self.count > 1).then(|| (variance.max(0.0) / (self.count - 1) as f64).sqrt() * self.perplexity())
    }

    fn is_finite(&self) -> bool {
        self.sum.is_finite()
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fair_guess_among_n_has_perplexity_n() {
        let mut score = Score::default();
        for token in 0..4 {
            score.add(&[7.0; 4], token);
        }
        assert!((score.perplexity() - 4.0).abs() < 1e-12);
        assert_eq!(score.perplexity_error(), Some(0.0));
    }

    #[test]
    fn perplexity_is_the_geometric_mean_of_one_over_probability() {
        // Probabilities 1/4 and 3/4 of the tokens that came.
        let logits = [0.0, 3f32.ln()];
        let mut score = Score::default();
        score.add(&logits, 0);
        score.add(&logits, 1);
        assert!((score.perplexity() - (4.0f64 * 4.0 / 3.0).sqrt()).abs() < 1e-6);
        // Both are ln(3)/2 from the mean.
        let error = 3f64.ln() / 2.0 * score.perplexity();
        assert!((score.perplexity_error().unwrap() - error).abs() < 1e-6);
    }

    #[test]
    fn one_token_has_no_error_and_nonsense_is_noticed() {
        let mut score = Score::default();
        score.add(&[1000.0, -1000.0], 0);
        assert_eq!((score.perplexity(), score.perplexity_error()), (1.0, None));
        score.add(&[f32::NAN, 0.0], 1);
        assert!(!score.is_finite());
    }
}
