//! Which program runs the next rows: pure functions of how many rows and cached tokens programs are for.

use std::cmp::Reverse;

use unicorn_artifact::LogitsRows;

/// What a caller wants of the tokens that it feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Nothing,
    /// A token drawn after the last row.
    Token,
    /// Logits of every row.
    AllLogits,
}

impl Wanted {
    /// For errors.
    pub fn name(self) -> &'static str {
        match self {
            Wanted::Nothing => "nothing but the cache",
            Wanted::Token => "a drawn token",
            Wanted::AllLogits => "logits of every row",
        }
    }
}

/// A program's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramShape {
    pub rows: u32,
    pub logits: LogitsRows,
    pub samples: bool,
    /// For rows of different sequences.
    pub batch: bool,
    /// Takes the place of the one that is otherwise the same where so many tokens are cached.
    pub from_tokens: u32,
}

impl ProgramShape {
    /// Steps that can be under way at once: the draws of a batch feed the next step without the host.
    pub fn turns(&self) -> usize {
        if self.batch { 2 } else { 1 }
    }

    /// Whether one sequence decodes by it: then a submission may have several of its steps.
    pub fn decodes_one_sequence(&self) -> bool {
        self.batch && self.rows == 1
    }

    /// The least for what fits best: few rows, and of equal ones, for the deepest sequences.
    fn small_and_deep(&self) -> (u32, Reverse<u32>) {
        (self.rows, Reverse(self.from_tokens))
    }

    /// Whether its rows may be those of one sequence.
    fn takes_a_sequence(&self) -> bool {
        !self.batch || self.rows == 1
    }
}

/// A step: the program and how many rows it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index into the programs.
    pub program: usize,
    pub n_rows: u32,
}

/// A program may run with this many times the rows in use: it reads the weights once either way, where several smaller
/// programs read them several times.
const MAX_ROWS_OVER_USED: u32 = 4;

/// The next step for `remaining` tokens behind `cached` ones, in steps of at most `limit` rows. When a token is wanted, the last
/// step is one that samples. `None`: no program gives what is wanted.
pub fn next_chunk(programs: &[ProgramShape], wanted: Wanted, cached: u32, remaining: u32, limit: u32) -> Option<Chunk> {
    let best = |fit: &dyn Fn(&ProgramShape) -> bool, n_rows| best(programs, fit, cached, n_rows);
    let silent = |shape: &ProgramShape| shape.logits == LogitsRows::None;
    let any_silent = programs.iter().any(silent);
    // An artifact without silent programs has others whose logits can be left unread.
    let quiet = |shape: &ProgramShape| silent(shape) || !any_silent;
    match wanted {
        Wanted::Nothing => best(&quiet, remaining.min(limit)),
        Wanted::AllLogits => best(&|shape| shape.logits == LogitsRows::All, remaining.min(limit)),
        Wanted::Token => {
            let last = best(&|shape| shape.samples, remaining.min(limit))?;
            if last.n_rows == remaining {
                return Some(last);
            }
            best(&quiet, (remaining - 1).min(limit))
        }
    }
}

/// Of the programs that `fit`, the smallest with room for `n_rows` if it is not mostly empty, else the largest that is
/// full, else the smallest; of several, the one for the deepest of the sequences that it may be for.
fn best(programs: &[ProgramShape], fit: &dyn Fn(&ProgramShape) -> bool, cached: u32, n_rows: u32) -> Option<Chunk> {
    let fits = |shape: &ProgramShape| shape.takes_a_sequence() && shape.from_tokens <= cached && fit(shape);
    let candidates = || programs.iter().enumerate().filter(|(_, shape)| fits(shape));
    let roomy = candidates()
        .filter(|(_, shape)| shape.rows >= n_rows && shape.rows <= n_rows.saturating_mul(MAX_ROWS_OVER_USED))
        .min_by_key(|(_, shape)| shape.small_and_deep());
    let most = |(_, shape): &(usize, &ProgramShape)| (shape.rows, shape.from_tokens);
    let full = || candidates().filter(|(_, shape)| shape.rows <= n_rows).max_by_key(most);
    let smallest = || candidates().min_by_key(|(_, shape)| shape.small_and_deep());
    let (program, shape) = roomy.or_else(full).or_else(smallest)?;
    Some(Chunk { program, n_rows: n_rows.min(shape.rows) })
}

/// The program that draws the next tokens of `sequences` sequences at once, the longest of which has `cached` tokens: the smallest
/// with room for them.
pub fn batch_program(programs: &[ProgramShape], sequences: u32, cached: u32) -> Option<usize> {
    let draws = |shape: &ProgramShape| shape.batch && shape.samples && shape.from_tokens <= cached;
    let roomy = |(_, shape): &(usize, &ProgramShape)| draws(shape) && shape.rows >= sequences;
    let smallest = programs.iter().enumerate().filter(roomy).min_by_key(|(_, shape)| shape.small_and_deep());
    smallest.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cached tokens from which on another program decodes.
    const DEEP: u32 = 1000;

    fn programs() -> Vec<ProgramShape> {
        let of = |rows, logits, samples| ProgramShape { rows, logits, samples, batch: samples, from_tokens: 0 };
        let silent = [8, 64, 512].map(|rows| of(rows, LogitsRows::None, false));
        let one = of(1, LogitsRows::One, true);
        let deep = ProgramShape { from_tokens: DEEP, ..one };
        let batch = [2, 8].map(|rows| of(rows, LogitsRows::All, true));
        silent.into_iter().chain([one, deep, of(64, LogitsRows::All, false)]).chain(batch).collect()
    }

    /// Rows of each program in turn until `tokens` are fed, as (program rows, rows in use).
    fn steps(wanted: Wanted, mut tokens: u32, limit: u32) -> Vec<(u32, u32)> {
        let programs = programs();
        let mut steps = Vec::new();
        while tokens > 0 {
            let chunk = next_chunk(&programs, wanted, 0, tokens, limit).unwrap();
            steps.push((programs[chunk.program].rows, chunk.n_rows));
            tokens -= chunk.n_rows;
        }
        steps
    }

    #[test]
    fn large_prompts_take_large_programs_and_the_rest_fits_snugly() {
        assert_eq!(steps(Wanted::Nothing, 1100, u32::MAX), [(512, 512), (512, 512), (64, 64), (8, 8), (8, 4)]);
        assert_eq!(steps(Wanted::Nothing, 130, u32::MAX), [(512, 130)]);
        assert_eq!(steps(Wanted::Nothing, 3, u32::MAX), [(8, 3)]);
        assert_eq!(steps(Wanted::Nothing, 1, u32::MAX), [(8, 1)]);
    }

    #[test]
    fn a_token_comes_from_a_sampling_program_at_the_end() {
        assert_eq!(steps(Wanted::Token, 1, u32::MAX), [(1, 1)]);
        assert_eq!(steps(Wanted::Token, 41, u32::MAX), [(64, 40), (1, 1)]);
    }

    #[test]
    fn a_batch_takes_the_smallest_program_for_as_many_sequences() {
        let rows = |sequences| batch_program(&programs(), sequences, 0).map(|index| programs()[index].rows);
        assert_eq!([1, 2, 3, 8, 9].map(rows), [Some(1), Some(2), Some(8), Some(8), None]);
    }

    #[test]
    fn deep_sequences_take_the_program_that_is_for_them() {
        let decode = |cached| batch_program(&programs(), 1, cached).map(|index| programs()[index].from_tokens);
        assert_eq!([0, DEEP - 1, DEEP, 2 * DEEP].map(decode), [Some(0), Some(0), Some(DEEP), Some(DEEP)]);
        let last = |cached| next_chunk(&programs(), Wanted::Token, cached, 1, u32::MAX).map(|chunk| chunk.program);
        assert_eq!([DEEP - 1, DEEP].map(last), [Some(3), Some(4)]);
        assert_eq!(batch_program(&programs(), 2, DEEP).map(|index| programs()[index].rows), Some(2));
    }

    #[test]
    fn limits_hold_and_logits_come_from_programs_that_give_all() {
        assert_eq!(steps(Wanted::Nothing, 7, 3), [(8, 3), (8, 3), (8, 1)]);
        assert_eq!(steps(Wanted::Token, 5, 2), [(8, 2), (8, 2), (1, 1)]);
        assert_eq!(steps(Wanted::AllLogits, 70, u32::MAX), [(64, 64), (64, 6)]);
    }

    #[test]
    fn without_a_fitting_program_there_is_no_chunk() {
        let silent = &programs()[..3];
        assert_eq!(next_chunk(silent, Wanted::Token, 0, 4, u32::MAX), None);
        assert_eq!(next_chunk(silent, Wanted::AllLogits, 0, 4, u32::MAX), None);
        // A sampling program alone serves for feeding, too.
        let chunk = next_chunk(&programs()[3..4], Wanted::Nothing, 0, 4, u32::MAX);
        assert_eq!(chunk, Some(Chunk { program: 0, n_rows: 1 }));
    }
}
