//! `perplexity`: how well a model predicts a text, as llama-perplexity measures it, so that results can be compared.
//!
//! ```text
//! text ──► ids ──► chunks of ctx ids, the first of each replaced by BOS
//!          chunk:  0 ………… ctx/2 ………… ctx−1
//!                         └ these predict their successors and are scored ┘ (all but the last)
//! ```

pub mod likelihood;

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use self::likelihood::{Divergence, Score};
use crate::args::PerplexityArgs;
use crate::error::CliError;
use crate::files::logits_file::{LogitsFile, LogitsWriter};
use crate::files::output_file::check_replaced;
use crate::load::load;
use crate::report::statistics::{RunStatistics, Throughput};
use crate::terminal::output::{note, note_part, print, print_json};
use unicorn_runtime::Session;
use unicorn_text::Tokenizer;

pub fn run(args: &PerplexityArgs) -> Result<(), CliError> {
    if let Some(path) = &args.save_logits {
        let inputs: Vec<&Path> = args.kl_base.iter().chain([&args.file]).map(AsRef::as_ref).collect();
        check_replaced(path, "the logits", &inputs)?;
    }
    let file = std::fs::read_to_string(&args.file).map_err(|error| CliError::at(&args.file, error))?;
    let model = load(&args.artifact, &args.load, Some(args.ctx))?;
    let text = Tokenizer::new(model.tokenizer_section())?;
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

    let vocab_size = model.meta().model.vocab_size as usize;
    let n_rows = n_chunks * scored_tokens(chunk_tokens);
    let mut base = args.kl_base.as_deref().map(|path| Base::open(path, n_rows, vocab_size)).transpose()?;
    let mut copy =
        args.save_logits.as_deref().map(|path| LogitsWriter::create(path, n_rows, vocab_size)).transpose()?;

    let mut session = model.session()?;
    let mut score = Score::default();
    let started = Instant::now();
    for (index, chunk) in tokens.chunks_exact(chunk_tokens).take(n_chunks).enumerate() {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = text.prompt_bos() {
            chunk[0] = bos;
        }
        score_chunk(&mut session, &chunk, &mut |logits, successor| {
            score.add(logits, successor as usize);
            if let Some(base) = &mut base {
                base.compare(logits);
            }
            if let Some(copy) = &mut copy {
                copy.row(logits);
            }
        })?;
        if !score.is_finite() {
            return Err(CliError::new("logits are not finite: the perplexity of this text has no value"));
        }
        note_part(format_args!("[{}]{:.4},", index + 1, score.perplexity()));
    }
    note("");
    copy.map(LogitsWriter::finish).transpose()?;

    let prefill = Throughput { tokens: (n_chunks * (chunk_tokens - 1)) as u64, elapsed: started.elapsed() };
    let report = PerplexityReport {
        perplexity: score.perplexity(),
        perplexity_error: score.perplexity_error(),
        chunks: n_chunks,
        context_tokens: args.ctx,
        scored_tokens: score.count(),
        mean_kl_divergence: base.as_ref().map(|base| base.divergence.mean()),
        same_top_token: base.as_ref().map(|base| base.divergence.same_top()),
        statistics: RunStatistics::new(&model, prefill, Throughput::default()),
    };
    match args.json {
        true => print_json(&report),
        false => print(&report.lines()),
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct PerplexityReport {
    perplexity: f64,
    /// One standard error, under the assumption that tokens are independent; `None` for a single one.
    perplexity_error: Option<f64>,
    chunks: usize,
    context_tokens: u32,
    scored_tokens: u64,
    /// Mean Kullback-Leibler divergence from the predictions of --kl-base, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_kl_divergence: Option<f64>,
    /// Part of the predictions whose most likely token is that of --kl-base, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    same_top_token: Option<f64>,
    #[serde(flatten)]
    statistics: RunStatistics,
}

impl PerplexityReport {
    fn lines(&self) -> String {
        let error = self.perplexity_error.map_or(String::new(), |error| format!(" +/- {error:.5}"));
        let mut lines = format!("Final estimate: PPL = {:.4}{error}\n", self.perplexity);
        if let (Some(divergence), Some(same_top)) = (self.mean_kl_divergence, self.same_top_token) {
            lines += &format!("Mean KL divergence: {divergence:.6}\nSame top token: {:.2} %\n", 100.0 * same_top);
        }
        lines
    }
}

/// Tokens of a chunk whose successors are scored.
fn scored_tokens(chunk_tokens: usize) -> usize {
    chunk_tokens - 1 - chunk_tokens / 2
}

/// Feeds all but the last token of `chunk` into an empty cache; passes the logits of the second half to `scored`, each
/// with the token that came next.
fn score_chunk(session: &mut Session, chunk: &[u32], scored: &mut dyn FnMut(&[f32], u32)) -> Result<(), CliError> {
    let first_scored = chunk.len() / 2;
    let mut successors = chunk[first_scored + 1..].iter();
    session.clear();
    session.feed(&chunk[..first_scored])?;
    session.feed_with_logits(&chunk[first_scored..chunk.len() - 1], &mut |_, logits| {
        scored(logits, *successors.next().expect("one row of logits a token"));
    })?;
    Ok(())
}

/// Logits that another run saved, in the same order.
struct Base {
    file: LogitsFile,
    next_row: usize,
    divergence: Divergence,
}

impl Base {
    fn open(path: &Path, n_rows: usize, vocab_size: usize) -> Result<Base, CliError> {
        let file = LogitsFile::open(path, vocab_size)?;
        if file.n_rows() < n_rows {
            let found = file.n_rows();
            return Err(CliError::at(path, format!("logits are too few: expected {n_rows} rows, found {found}")));
        }
        Ok(Base { file, next_row: 0, divergence: Divergence::default() })
    }

    fn compare(&mut self, logits: &[f32]) {
        self.divergence.add(&self.file.row(self.next_row), logits);
        self.next_row += 1;
    }
}
