//! Verification of a draft: one step whose rows are the newest token and the draft, with logits of each.

use std::time::{Duration, Instant};

use crate::error::RunError;
use crate::program::chunks::{StepOutput, next_chunk};
use crate::session::model_state::Shared;
use crate::session::recovery::persist;
use crate::session::sequence::Sequence;
use crate::step::cancel::CancelToken;
use crate::step::masks::Masks;
use crate::step::sampling::Sampling;
use crate::step::watch::Watch;

/// Chooses the token that follows a row: called with the tokens up to the row, the number of the sample and the row's logits.
/// `false`: no more are needed.
pub type ChooseToken<'c> = dyn FnMut(&[u32], u32, &mut [f32]) -> (u32, bool) + 'c;

/// What a verification did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Tokens of the draft that the step computed.
    pub proposed: usize,
    /// Tokens that were chosen: those of the draft that were accepted, and one that follows them.
    pub chosen: usize,
    /// Time from the start of the step until all were chosen.
    pub time: Duration,
}

impl Verified {
    /// Tokens of the draft that were accepted.
    pub fn accepted(&self) -> usize {
        self.chosen - 1
    }
}

/// Appends `rows`, the newest token and at least one that may follow it, in one step, as many as a program takes; then `choose` is called for
/// each until it chooses another token than the next row has. Rows behind that are removed again. The last chosen token is not appended.
///
/// # Errors
/// Errors of a feed; nothing is appended then.
pub fn verify(
    shared: &Shared,
    sequence: &mut Sequence,
    cancel: Option<&CancelToken>,
    rows: &[u32],
    logits: &mut Vec<f32>,
    choose: &mut ChooseToken<'_>,
) -> Result<Verified, RunError> {
    let (model, position, number) = (shared.model(), sequence.len_tokens(), sequence.samples());
    if cancel.is_some_and(CancelToken::is_cancelled) {
        return Err(RunError::Cancelled);
    }
    shared.check_tokens(position, rows)?;
    let begun = Instant::now();
    // Each row has the frequencies of LongRoPE that it has alone.
    let rope_variant = model.rope_variant(position + 1);
    let alike = (1..=rows.len() as u32).take_while(|n_rows| model.rope_variant(position + n_rows) == rope_variant);
    let most_rows = alike.count() as u32;
    let mut shapes = Vec::new();
    let n_rows = persist(shared, &mut [&mut *sequence], None, |engine, sequences| {
        let sequence = &mut *sequences[0];
        if shared.has_state() {
            shapes.clone_from(&engine.programs.shapes);
            sequence.save_state(engine)?;
        }
        let chunk = next_chunk(&engine.programs.shapes, StepOutput::AllLogits, false, position, most_rows, u32::MAX)
            .ok_or(RunError::NoProgram { wanted: StepOutput::AllLogits.name() })?;
        let now = &rows[..chunk.n_rows as usize];
        let (greedy, masks) = (Sampling::default(), &mut Masks::none());
        sequence.run(engine, chunk.program, now, rope_variant, &greedy, (Watch::of(cancel), masks))?;
        logits.clear();
        let read = engine.read_logits(chunk.program, 0..now.len(), model.vocab_size, logits);
        if read.is_err() {
            sequence.take_back(position);
        }
        read.map(|()| now.len()).map_err(Into::into)
    })?;
    let tokens = &sequence.tokens()[..position as usize + n_rows];
    let chosen = accept(tokens, n_rows, logits.chunks_exact_mut(model.vocab_size as usize), number, choose);
    (0..chosen).for_each(|_| sequence.count_sample());
    sequence.truncate(position + chosen as u32);
    if chosen < n_rows && shared.has_state() {
        // The step has put rejected tokens into the state. It goes back to its copy, now that no other sequence has replaced that, and the
        // accepted tokens are appended again, by steps without logits.
        sequence.replace_steps(position, rope_variant, |position, n_tokens| {
            next_chunk(&shapes, StepOutput::Nothing, false, position, n_tokens, u32::MAX)
        });
        // If the device fails, the next step does it.
        let _ = persist(shared, &mut [sequence], None, |_, _| Ok(()));
    }
    Ok(Verified { proposed: n_rows - 1, chosen, time: begun.elapsed() })
}

/// Chooses what follows each of the last `n_rows` of `tokens` by its logits, until that is not the next row's token. Returns how many were
/// chosen.
fn accept<'l>(
    tokens: &[u32],
    n_rows: usize,
    logits: impl Iterator<Item = &'l mut [f32]>,
    number: u32,
    choose: &mut ChooseToken<'_>,
) -> usize {
    let first_end = tokens.len() - n_rows + 1;
    let mut chosen = 0;
    for ((end, row), number) in (first_end..).zip(logits).zip(number..) {
        let (token, goes_on) = choose(&tokens[..end], number, row);
        chosen += 1;
        if !goes_on || tokens.get(end) != Some(&token) {
            break;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::host_sampling::{HostSampler, HostSampling};

    const VOCAB: usize = 5;

    /// Logits of the token behind `token`: of a text in which each token depends on the one before.
    fn logits(token: u32) -> Vec<f32> {
        (0..VOCAB as u32).map(|next| ((7 * token + 3 * next) % VOCAB as u32) as f32 * 0.4).collect()
    }

    fn probability(token: u32, next: u32) -> f64 {
        let heat = |next: usize| f64::from(logits(token)[next]).exp();
        heat(next as usize) / (0..VOCAB).map(heat).sum::<f64>()
    }

    /// Three tokens behind token 0, with a draft in each step; `trusts`: how many of 8 drafts are accepted without a comparison.
    fn text(seed: u64, trusts: u64) -> [u32; 3] {
        let sampling = Sampling::default().with(|sampling| (sampling.temperature, sampling.seed) = (1.0, seed));
        let sampler = HostSampler::new(sampling, HostSampling::default());
        let mut text = vec![0];
        while text.len() < 4 {
            // Likely tokens and unlikely ones.
            let draft = [(seed % 5) as u32, (seed / 5 % 5) as u32, (seed / 25 % 5) as u32];
            let rows: Vec<u32> = text.iter().chain(&draft).copied().collect();
            let mut of_rows: Vec<Vec<f32>> = rows[text.len() - 1..].iter().map(|&token| logits(token)).collect();
            let (number, begin) = (text.len() as u32 - 1, text.len());
            let mut sampled = Vec::new();
            let mut choose = |tokens: &[u32], number: u32, logits: &mut [f32]| {
                let proposed = rows.get(tokens.len()).copied().filter(|_| seed % 8 < trusts);
                let token = proposed.unwrap_or_else(|| sampler.sample_as_device(number, tokens, logits, None).token);
                sampled.push(token);
                (token, true)
            };
            let all_logits = of_rows.iter_mut().map(|row| &mut row[..]);
            let chosen = accept(&rows, rows.len() - begin + 1, all_logits, number, &mut choose);
            assert_eq!(chosen, sampled.len());
            text.extend(sampled);
        }
        [text[1], text[2], text[3]]
    }

    /// Pearson's statistic of `n` texts against the probabilities of the model, with 124 degrees of freedom.
    fn chi_square(n: u64, trusts: u64) -> f64 {
        let mut counts = vec![0_u32; VOCAB.pow(3)];
        let at = |[a, b, c]: [u32; 3]| (25 * a + 5 * b + c) as usize;
        (0..n).for_each(|seed| counts[at(text(seed, trusts))] += 1);
        let cells = (0..125_u32).map(|cell| [cell / 25, cell / 5 % 5, cell % 5]);
        let deviation = |[a, b, c]: [u32; 3]| {
            let expected = n as f64 * probability(0, a) * probability(a, b) * probability(b, c);
            (f64::from(counts[at([a, b, c])]) - expected).powi(2) / expected
        };
        cells.map(deviation).sum()
    }

    /// The 99.9th percentile of chi-square with 124 degrees of freedom.
    const UNLIKELY: f64 = 178.0;

    #[test]
    fn drafts_leave_the_distribution_as_it_is() {
        let found = chi_square(40_000, 0);
        assert!(found < UNLIKELY, "chi-square {found}");
        // What the test would find: one draft of eight is accepted wrongly.
        let wrong = chi_square(40_000, 1);
        assert!(wrong > UNLIKELY, "chi-square {wrong}");
    }

    #[test]
    fn the_first_other_token_ends_it() {
        let chosen = |answers: [(u32, bool); 4]| {
            let mut answers = answers.into_iter();
            let mut rows = [[0.0_f32; 1]; 4];
            let rows = rows.iter_mut().map(|row| &mut row[..]);
            let mut ends = Vec::new();
            let n = accept(&[9, 9, 1, 2, 3], 4, rows, 7, &mut |tokens, number, _| {
                ends.push((tokens.len(), number));
                answers.next().expect("four rows")
            });
            (n, ends)
        };
        assert_eq!(chosen([(1, true), (2, true), (3, true), (4, true)]), (4, vec![(2, 7), (3, 8), (4, 9), (5, 10)]));
        assert_eq!(chosen([(1, true), (5, true), (3, true), (4, true)]).0, 2);
        assert_eq!(chosen([(1, true), (2, false), (3, true), (4, true)]).0, 2);
        assert_eq!(chosen([(0, true), (2, true), (3, true), (4, true)]).0, 1);
    }
}
