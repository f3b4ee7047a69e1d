//! Which program runs the next rows (chunked prefill): pure functions of the rows and context lengths that programs are for.

use std::cmp::Reverse;

use unicorn_artifact::LogitsRows;

/// What a caller needs from the tokens that it feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutput {
    /// Only K and V in the cache.
    Nothing,
    /// A token sampled after the last row.
    Token,
    /// Logits of every row.
    AllLogits,
    /// The hidden row of every row, after the final norm.
    Hidden,
}

impl StepOutput {
    /// Name in error messages.
    pub fn name(self) -> &'static str {
        match self {
            StepOutput::Nothing => "only the cache",
            StepOutput::Token => "a sampled token",
            StepOutput::AllLogits => "logits of every row",
            StepOutput::Hidden => "hidden rows",
        }
    }
}

/// Shape of the steps that a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramShape {
    /// Most rows (tokens) of a step.
    pub rows: u32,
    pub logits: LogitsRows,
    /// Samples a token for each sequence.
    pub samples: bool,
    /// Its rows belong to different sequences.
    pub batch: bool,
    /// Its rows may be of images.
    pub images: bool,
    /// Replaces the otherwise equal program from this many cached tokens on.
    pub from_tokens: u32,
}

impl ProgramShape {
    /// Steps that can be in flight at once: sampled tokens of a batch feed the next step on the device.
    pub fn slots(&self) -> usize {
        if self.batch { 2 } else { 1 }
    }

    /// Whether one sequence decodes with it, so that a submission can have several of its steps.
    pub fn decodes_one_sequence(&self) -> bool {
        self.batch && self.rows == 1
    }

    /// Sorts programs with few rows first, and among equal rows those for the longest context.
    fn by_rows_and_context(&self) -> (u32, Reverse<u32>) {
        (self.rows, Reverse(self.from_tokens))
    }

    /// Whether all its rows may belong to one sequence.
    fn takes_one_sequence(&self) -> bool {
        (!self.batch || self.rows == 1) && !self.is_mixed() && !self.predicts()
    }

    /// Whether it predicts the token behind the next one, and appends nothing.
    pub fn predicts(&self) -> bool {
        self.logits == LogitsRows::Predicted
    }

    /// Whether it is for newest tokens of several sequences and parts of prompts.
    pub fn is_mixed(&self) -> bool {
        self.logits.prompts_beside() > 0
    }
}

/// One step: its program and the number of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index into the programs.
    pub program: usize,
    pub n_rows: u32,
}

/// A program may have up to this many times the rows in use: it reads the weights once, where several smaller programs would
/// read them several times.
pub const MAX_ROWS_OVER_USED: u32 = 4;

/// The next step for `remaining` tokens after `cached` ones, in steps of at most `limit` rows, which may be of images if `images`. When a token is to be sampled, the
/// last step's program samples. `None`: no program gives the output.
pub fn next_chunk(
    programs: &[ProgramShape],
    output: StepOutput,
    images: bool,
    cached: u32,
    remaining: u32,
    limit: u32,
) -> Option<Chunk> {
    let best = |fits: &dyn Fn(&ProgramShape) -> bool, n_rows| {
        best(programs, &|shape| shape.images == images && fits(shape), cached, n_rows)
    };
    let has_no_logits = |shape: &ProgramShape| shape.logits == LogitsRows::None;
    let any_without_logits = programs.iter().any(|shape| shape.images == images && has_no_logits(shape));
    // In an artifact whose programs all compute logits, those are left unread.
    let feeds = |shape: &ProgramShape| has_no_logits(shape) || !any_without_logits;
    match output {
        StepOutput::Nothing => best(&feeds, remaining.min(limit)),
        StepOutput::AllLogits => best(&|shape| shape.logits == LogitsRows::All, remaining.min(limit)),
        StepOutput::Hidden => best(&|shape| shape.logits == LogitsRows::Hidden, remaining.min(limit)),
        StepOutput::Token => {
            let last = best(&|shape| shape.samples, remaining.min(limit))?;
            if last.n_rows == remaining {
                return Some(last);
            }
            best(&feeds, (remaining - 1).min(limit))
        }
    }
}

/// Chooses among the programs that `fits` accepts: the smallest with enough rows if `n_rows` use a sufficient part of it, else the
/// largest that is full, else the smallest; among equals, the one for the longest context that `cached` allows.
fn best(programs: &[ProgramShape], fits: &dyn Fn(&ProgramShape) -> bool, cached: u32, n_rows: u32) -> Option<Chunk> {
    let fits = |shape: &ProgramShape| shape.takes_one_sequence() && shape.from_tokens <= cached && fits(shape);
    let candidates = || programs.iter().enumerate().filter(|(_, shape)| fits(shape));
    let large_enough = candidates()
        .filter(|(_, shape)| shape.rows >= n_rows && shape.rows <= n_rows.saturating_mul(MAX_ROWS_OVER_USED))
        .min_by_key(|(_, shape)| shape.by_rows_and_context());
    let size = |(_, shape): &(usize, &ProgramShape)| (shape.rows, shape.from_tokens);
    let full = || candidates().filter(|(_, shape)| shape.rows <= n_rows).max_by_key(size);
    let smallest = || candidates().min_by_key(|(_, shape)| shape.by_rows_and_context());
    let (program, shape) = large_enough.or_else(full).or_else(smallest)?;
    Some(Chunk { program, n_rows: n_rows.min(shape.rows) })
}

/// Index of the smallest program that samples the next token of each of `sequences` sequences in one step, the longest of which
/// has `cached` tokens.
pub fn batch_program(programs: &[ProgramShape], sequences: u32, cached: u32) -> Option<usize> {
    let samples = |shape: &ProgramShape| shape.batch && shape.samples && shape.from_tokens <= cached;
    let large_enough = |(_, shape): &(usize, &ProgramShape)| samples(shape) && shape.rows >= sequences;
    let smallest =
        programs.iter().enumerate().filter(large_enough).min_by_key(|(_, shape)| shape.by_rows_and_context());
    smallest.map(|(index, _)| index)
}

/// Index of the smallest program for newest tokens and parts of `n_prompts` prompts, at least one, that takes `n_rows` in all.
pub fn mixed_program(programs: &[ProgramShape], n_rows: u32, n_prompts: usize) -> Option<usize> {
    let takes = |shape: &ProgramShape| shape.logits.prompts_beside() >= n_prompts.max(1) && shape.rows >= n_rows;
    let large_enough = |(_, shape): &(usize, &ProgramShape)| takes(shape);
    let smallest = programs.iter().enumerate().filter(large_enough).min_by_key(|(_, shape)| shape.rows);
    smallest.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cached tokens from which the program for long contexts decodes.
    const LONG: u32 = 1000;

    fn programs() -> Vec<ProgramShape> {
        let of = |rows, logits, samples| ProgramShape {
            rows,
            logits,
            samples,
            batch: samples,
            images: false,
            from_tokens: 0,
        };
        let feeding = [8, 64, 512].map(|rows| of(rows, LogitsRows::None, false));
        let one = of(1, LogitsRows::One, true);
        let long = ProgramShape { from_tokens: LONG, ..one };
        let batch = [2, 8].map(|rows| of(rows, LogitsRows::All, true));
        feeding.into_iter().chain([one, long, of(64, LogitsRows::All, false)]).chain(batch).collect()
    }

    /// Steps until `tokens` are fed, as (program rows, rows in use).
    fn steps(output: StepOutput, mut tokens: u32, limit: u32) -> Vec<(u32, u32)> {
        let programs = programs();
        let mut steps = Vec::new();
        while tokens > 0 {
            let chunk = next_chunk(&programs, output, false, 0, tokens, limit).unwrap();
            steps.push((programs[chunk.program].rows, chunk.n_rows));
            tokens -= chunk.n_rows;
        }
        steps
    }

    #[test]
    fn large_prompts_take_large_programs_and_the_rest_small_ones() {
        assert_eq!(steps(StepOutput::Nothing, 1100, u32::MAX), [(512, 512), (512, 512), (64, 64), (8, 8), (8, 4)]);
        assert_eq!(steps(StepOutput::Nothing, 130, u32::MAX), [(512, 130)]);
        assert_eq!(steps(StepOutput::Nothing, 3, u32::MAX), [(8, 3)]);
        assert_eq!(steps(StepOutput::Nothing, 1, u32::MAX), [(8, 1)]);
    }

    #[test]
    fn a_token_comes_from_a_sampling_program_at_the_end() {
        assert_eq!(steps(StepOutput::Token, 1, u32::MAX), [(1, 1)]);
        assert_eq!(steps(StepOutput::Token, 41, u32::MAX), [(64, 40), (1, 1)]);
    }

    #[test]
    fn a_batch_takes_the_smallest_program_for_as_many_sequences() {
        let rows = |sequences| batch_program(&programs(), sequences, 0).map(|index| programs()[index].rows);
        assert_eq!([1, 2, 3, 8, 9].map(rows), [Some(1), Some(2), Some(8), Some(8), None]);
    }

    #[test]
    fn long_contexts_take_the_program_for_them() {
        let decode = |cached| batch_program(&programs(), 1, cached).map(|index| programs()[index].from_tokens);
        assert_eq!([0, LONG - 1, LONG, 2 * LONG].map(decode), [Some(0), Some(0), Some(LONG), Some(LONG)]);
        let last =
            |cached| next_chunk(&programs(), StepOutput::Token, false, cached, 1, u32::MAX).map(|chunk| chunk.program);
        assert_eq!([LONG - 1, LONG].map(last), [Some(3), Some(4)]);
        assert_eq!(batch_program(&programs(), 2, LONG).map(|index| programs()[index].rows), Some(2));
    }

    #[test]
    fn row_limits_hold_and_all_logits_come_from_programs_that_compute_them() {
        assert_eq!(steps(StepOutput::Nothing, 7, 3), [(8, 3), (8, 3), (8, 1)]);
        assert_eq!(steps(StepOutput::Token, 5, 2), [(8, 2), (8, 2), (1, 1)]);
        assert_eq!(steps(StepOutput::AllLogits, 70, u32::MAX), [(64, 64), (64, 6)]);
    }

    #[test]
    fn rows_of_images_take_programs_for_them_and_no_other_rows_do() {
        let with_images = |shape: ProgramShape| ProgramShape { images: true, ..shape };
        let mut all = programs();
        let feeds = ProgramShape { rows: 512, logits: LogitsRows::None, samples: false, ..all[0] };
        let samples = ProgramShape { logits: LogitsRows::One, samples: true, ..feeds };
        all.extend([with_images(feeds), with_images(samples)]);
        let of_images = all.len() - 2;
        let chunk = |output, images, remaining| next_chunk(&all, output, images, 0, remaining, u32::MAX);
        assert_eq!(chunk(StepOutput::Nothing, true, 10), Some(Chunk { program: of_images, n_rows: 10 }));
        assert_eq!(chunk(StepOutput::Token, true, 300), Some(Chunk { program: of_images + 1, n_rows: 300 }));
        assert!(chunk(StepOutput::Nothing, false, 512).is_some_and(|chunk| chunk.program < of_images));
        assert_eq!(chunk(StepOutput::AllLogits, true, 10), None);
    }

    #[test]
    fn mixed_steps_have_programs_of_their_own() {
        let mut all = programs();
        assert_eq!(mixed_program(&all, 1, 1), None);
        all.extend([128, 64].map(|rows| ProgramShape { rows, logits: LogitsRows::Samplers, batch: false, ..all[3] }));
        all.push(ProgramShape { rows: 256, logits: LogitsRows::SamplersBesideTwo, batch: false, ..all[3] });
        let rows = |n_rows| mixed_program(&all, n_rows, 1).map(|index| all[index].rows);
        assert_eq!([2, 64, 65, 129, 257].map(rows), [Some(64), Some(64), Some(128), Some(256), None]);
        assert_eq!(mixed_program(&all, 2, 2).map(|index| all[index].rows), Some(256));
        let fed = next_chunk(&all, StepOutput::Token, false, 0, 40, u32::MAX).unwrap();
        assert!(!all[fed.program].is_mixed());
    }

    #[test]
    fn without_a_fitting_program_there_is_no_chunk() {
        let feeding = &programs()[..3];
        assert_eq!(next_chunk(feeding, StepOutput::Token, false, 0, 4, u32::MAX), None);
        assert_eq!(next_chunk(feeding, StepOutput::AllLogits, false, 0, 4, u32::MAX), None);
        // A sampling program feeds where there is no other.
        let chunk = next_chunk(&programs()[3..4], StepOutput::Nothing, false, 0, 4, u32::MAX);
        assert_eq!(chunk, Some(Chunk { program: 0, n_rows: 1 }));
    }
}
