//! Timed runs on a loaded model: warm, by the host's clock and the device's, medians of several.

use std::time::{Duration, Instant};

use super::cases::{Case, WARM_UP_STEPS};
use unicorn_runtime::{BatchRow, ImagePatches, Model, RunError, Sampling, Session};

/// Length of the runs that are not measured. A device that was idle, even for a second while kernels were compiled, raises its
/// frequency only after a while.
const WARM_UP: Duration = Duration::from_millis(500);

pub struct Bench<'m> {
    pub model: &'m Model,
    /// Steps of a run of decode.
    pub n_gen: u32,
    pub repetitions: u32,
}

/// Medians of a case's runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Tokens of all sequences in one run.
    pub tokens: u64,
    pub wall: Duration,
    /// `None`: the device measures no time.
    pub gpu_seconds: Option<f64>,
    /// Tokens in a sequence's cache during a step, on average over all runs.
    pub cached_tokens: u32,
}

/// One run.
struct Run {
    tokens: u64,
    wall: Duration,
    gpu_seconds: Option<f64>,
    cached_tokens: u32,
}

impl Bench<'_> {
    pub fn measure(&self, case: Case) -> Result<Measured, RunError> {
        match case {
            Case::Prefill { tokens } => self.prefill(tokens),
            Case::Decode { depth } => self.decode(depth),
            Case::Batch { sequences } => self.batch(sequences),
            Case::Image => self.image(),
        }
    }

    fn prefill(&self, tokens: u32) -> Result<Measured, RunError> {
        let mut session = self.model.session()?;
        let prompt = self.tokens(tokens);
        let mut run = || {
            session.clear();
            let timed = Timed::begin(&mut session);
            session.feed_and_sample(&prompt, &Sampling::default())?;
            Ok(timed.end(&mut session, u64::from(tokens), 0))
        };
        warm_up(&mut run)?;
        self.repeat(run)
    }

    /// A run begins at `depth` where the cache can be cut back to it, else (sliding windows keep no older pages) where the one before ended.
    fn decode(&self, depth: u32) -> Result<Measured, RunError> {
        let mut session = self.model.session()?;
        session.feed(&self.tokens(depth))?;
        let [first] = self.tokens(1)[..] else { unreachable!("one token was requested") };
        let mut run = |steps: u32| {
            match session.truncate(depth) {
                Ok(()) | Err(RunError::NotInCache { .. }) => {}
                Err(error) => return Err(error),
            }
            let cached_tokens = session.len_tokens() + steps.div_ceil(2);
            let timed = Timed::begin(&mut session);
            session.generate(first, &Sampling::default(), steps).try_for_each(|sampled| sampled.map(drop))?;
            Ok(timed.end(&mut session, u64::from(steps), cached_tokens))
        };
        // The tokens before were warm-up enough, where a cache cannot go back.
        if depth == 0 {
            warm_up(|| run(WARM_UP_STEPS))?
        } else {
            run(WARM_UP_STEPS).map(|_| ())?
        }
        self.repeat(|| run(self.n_gen))
    }

    fn batch(&self, sequences: u32) -> Result<Measured, RunError> {
        let mut sessions = (0..sequences).map(|_| self.model.session()).collect::<Result<Vec<_>, _>>()?;
        let firsts = self.tokens(sequences);
        let sampling = Sampling::default();
        let mut run = |steps: u32| {
            sessions.iter_mut().for_each(Session::clear);
            let timed = Timed::begin(&mut sessions[0]);
            let rows = sessions.iter_mut().zip(&firsts);
            let rows = rows.map(|(session, &token)| BatchRow { session, token, sampling: &sampling });
            self.model.generate_batch(rows, steps).try_for_each(|sampled| sampled.map(drop))?;
            Ok(timed.end(&mut sessions[0], u64::from(steps) * u64::from(sequences), steps.div_ceil(2)))
        };
        warm_up(|| run(WARM_UP_STEPS))?;
        self.repeat(|| run(self.n_gen))
    }

    /// Each run has another image: one that is known is not computed.
    fn image(&self) -> Result<Measured, RunError> {
        let rows = self.model.image().map_or(0, |section| section.rows);
        let mut patches = plain_image(self.model, 0.0)?;
        let mut run = || {
            patches.values[0] += 1.0;
            let begin = Instant::now();
            self.model.encode_image(&patches)?;
            Ok(Run { tokens: rows.into(), wall: begin.elapsed(), gpu_seconds: None, cached_tokens: 0 })
        };
        warm_up(&mut run)?;
        self.repeat(run)
    }

    fn repeat(&self, mut run: impl FnMut() -> Result<Run, RunError>) -> Result<Measured, RunError> {
        let runs = (0..self.repetitions).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
        let walls: Vec<f64> = runs.iter().map(|run| run.wall.as_secs_f64()).collect();
        let by_device: Option<Vec<f64>> = runs.iter().map(|run| run.gpu_seconds).collect();
        let cached_tokens: u64 = runs.iter().map(|run| u64::from(run.cached_tokens)).sum();
        Ok(Measured {
            tokens: runs[0].tokens,
            wall: Duration::from_secs_f64(median(walls)),
            gpu_seconds: by_device.map(median),
            cached_tokens: (cached_tokens / runs.len() as u64) as u32,
        })
    }

    fn tokens(&self, count: u32) -> Vec<u32> {
        random_tokens(count as usize, self.model.meta().model.vocab_size)
    }
}

/// An image of the most rows, of one value but for its first.
///
/// # Errors
/// If the model takes no images.
pub fn plain_image(model: &Model, first: f32) -> Result<ImagePatches, RunError> {
    let section = model.image().ok_or(RunError::NoProgram { wanted: "rows of an image" })?;
    let mut values = vec![0.0; section.patches() as usize * section.patch_width() as usize];
    values[0] = first;
    Ok(ImagePatches { values, rows_across: section.rows_across() })
}

fn warm_up(mut run: impl FnMut() -> Result<Run, RunError>) -> Result<(), RunError> {
    let begin = Instant::now();
    run()?;
    while begin.elapsed() < WARM_UP {
        run()?;
    }
    Ok(())
}

/// Both clocks of a run.
struct Timed {
    begin: Instant,
}

impl Timed {
    fn begin(session: &mut Session) -> Timed {
        // Time that was spent before does not belong to this run.
        let _ = session.take_gpu_seconds();
        Timed { begin: Instant::now() }
    }

    fn end(self, session: &mut Session, tokens: u64, cached_tokens: u32) -> Run {
        Run { tokens, wall: self.begin.elapsed(), gpu_seconds: session.take_gpu_seconds(), cached_tokens }
    }
}

/// The same ids each time, spread over the vocabulary.
pub fn random_tokens(count: usize, vocab_size: u32) -> Vec<u32> {
    // A multiplicative hash: neighbouring indices give distant values.
    (0..count as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % vocab_size).collect()
}

/// The middle one, or the mean of both middle ones. At least one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 2.0, 9.0, 1.0]), 3.0);
    }

    #[test]
    fn random_tokens_stay_in_the_vocabulary() {
        let tokens = random_tokens(1000, 300);
        assert!(tokens.iter().all(|&token| token < 300));
        assert_eq!(tokens, random_tokens(1000, 300));
        assert!(tokens.iter().collect::<std::collections::BTreeSet<_>>().len() > 200);
    }
}
