//! How long a program's dispatches take on this device, and where its submissions are cut so that each stays short:
//! drivers reset a device that spends seconds on one. A dispatch that is too long by itself is cut into bands.
//!
//! A dispatch of a program takes time in proportion to the bytes that it reads: weights, or a layer's K and V at the longest
//! context. What a byte costs depends on the program alone: one row waits for memory, 512 rows for arithmetic. It is
//! guessed low, and then measured: the first dispatches of each program run at load, by the device's clock.

use crate::error::LoadError;
use crate::program::dispatch_range::{Band, bands};
use crate::program::programs::Prepared;
use crate::session::session::Sampling;
use crate::step::engine::{Drawing, Engine, Rows, Step};

/// Seconds that a program takes for a byte that it reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    pub seconds_per_byte: f64,
}

/// Slower than the memory of any GPU that one would want to use.
const GUESSED_BYTES_PER_SECOND: f64 = 20e9;
/// Bytes times rows; INT4 at 2.5 TFLOP/s, which a small APU does.
const GUESSED_BYTE_ROWS_PER_SECOND: f64 = 0.6e12;
/// A program is measured on dispatches that are guessed to take this part of the bound: on a device that is ten times
/// slower than guessed, measuring is still no longer than the bound.
const MEASURED_PART: f64 = 0.1;
/// A program that is guessed to take less than this part of the bound is not measured: clocks are coarse.
const LEAST_PART: f64 = 0.01;
/// The attention of a long sequence is not measured, and kernels of a kind differ: so much longer may a dispatch take.
const SAFETY: f64 = 1.25;

impl Pace {
    /// For a program of `rows` rows of which nothing is known.
    pub fn guess(rows: u32) -> Pace {
        let arithmetic = f64::from(rows) / GUESSED_BYTE_ROWS_PER_SECOND;
        Pace { seconds_per_byte: arithmetic + 1.0 / GUESSED_BYTES_PER_SECOND }
    }

    pub fn seconds(&self, bytes: u64) -> f64 {
        bytes as f64 * self.seconds_per_byte
    }
}

/// What a dispatch is to whoever foresees its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub bytes: u64,
    pub workgroups: [u32; 3],
}

/// A dispatch, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index into the program's dispatches.
    pub dispatch: usize,
    pub band: Band,
}

/// More bands than this are no sensible answer: then the time that was foreseen is wrong, or the bound.
const MOST_BANDS: u64 = 256;

/// The pieces of each submission, in order, so that each submission is foreseen to take at most `bound_seconds`, or is a
/// single workgroup, or one of [`MOST_BANDS`]. A dispatch takes its time in proportion to its workgroups.
pub fn cut(program: &[Work], pace: Pace, bound_seconds: f64) -> Vec<Vec<Piece>> {
    let mut submissions: Vec<Vec<Piece>> = Vec::new();
    let mut seconds = 0.0;
    for (dispatch, work) in program.iter().enumerate() {
        let workgroups = Band::whole(work.workgroups).count();
        let seconds_per_workgroup = pace.seconds(work.bytes) / workgroups as f64;
        let most = (bound_seconds / seconds_per_workgroup) as u64;
        for band in bands(work.workgroups, most.max(workgroups / MOST_BANDS)) {
            let piece = Piece { dispatch, band };
            let now = pace.seconds(work.bytes_in(&band));
            match submissions.last_mut() {
                Some(submission) if seconds + now <= bound_seconds => {
                    submission.push(piece);
                    seconds += now;
                }
                _ => {
                    submissions.push(vec![piece]);
                    seconds = now;
                }
            }
        }
    }
    submissions
}

impl Work {
    /// Of its bytes, those that a band stands for.
    pub fn bytes_in(&self, band: &Band) -> u64 {
        let all = Band::whole(self.workgroups).count();
        (u128::from(self.bytes) * u128::from(band.count())).div_ceil(u128::from(all)) as u64
    }
}

/// Measures each program that may be longer than a part of the bound, and writes down its pace. The cache is empty before,
/// and nothing that stays in it is looked at.
///
/// # Errors
/// When the device fails.
pub fn measure(
    engine: &mut Engine,
    prepared: &Prepared,
    paces: &mut [Pace],
    bound_seconds: f64,
    context_tokens: u32,
) -> Result<(), LoadError> {
    let device = engine.lane.device().clone();
    let tokens = vec![0; context_tokens.min(unicorn_artifact::step::MAX_ROWS as u32) as usize];
    for (index, (program, pace)) in prepared.programs.iter().zip(paces).enumerate() {
        if pace.seconds(program.weight_work.iter().map(|work| work.bytes).sum()) < LEAST_PART * bound_seconds {
            continue;
        }
        let Some(first) = cut(&program.weight_work, *pace, MEASURED_PART * bound_seconds).into_iter().next() else {
            continue;
        };
        let bytes: u64 = first.iter().map(|piece| program.weight_work[piece.dispatch].bytes_in(&piece.band)).sum();
        let Some((list, timer)) = program.record_alone(&device, &first)? else { return Ok(()) };
        engine.wait_for_weights(index, &first)?;
        let tokens = &tokens[..tokens.len().min(program.shape.rows as usize)];
        let rows = [Rows { slot: 0, position: 0, tokens, rope_variant: 0 }];
        let drawings: [Drawing<'_>; 1] = [Sampling::default().drawing(0, false, &[])];
        engine.write(&Step { program: index, rows: &rows, drawings: &drawings })?;
        // Once to wake the clocks, once to look.
        for _ in 0..2 {
            engine.lane.run(std::slice::from_ref(&list))?;
        }
        match timer.seconds_between(0, 1) {
            Some(seconds) if seconds > 0.0 && bytes > 0 => pace.seconds_per_byte = SAFETY * seconds / bytes as f64,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dispatches of one workgroup each.
    fn uncut(bytes: &[u64]) -> Vec<Work> {
        bytes.iter().map(|&bytes| Work { bytes, workgroups: [1; 3] }).collect()
    }

    #[test]
    fn programs_are_cut_where_time_adds_up() {
        let pace = Pace { seconds_per_byte: 1e-3 };
        let program = uncut(&[10, 20, 0, 40, 70, 0]);
        let lengths = |bound| cut(&program, pace, bound).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(0.064), [3, 1, 1, 1]);
        assert_eq!(lengths(0.070), [4, 2]);
        assert_eq!(lengths(1.0), [6]);
        assert_eq!(lengths(1e-9), [1; 6]);
        assert!(cut(&[], pace, 1.0).is_empty());
    }

    #[test]
    fn a_dispatch_that_is_too_long_by_itself_is_cut_into_bands() {
        let pace = Pace { seconds_per_byte: 1e-3 };
        let program =
            [(10, [5, 1, 1]), (80, [4, 2, 1]), (10, [9, 1, 1])].map(|(bytes, workgroups)| Work { bytes, workgroups });
        let found: Vec<Vec<_>> = cut(&program, pace, 0.040)
            .iter()
            .map(|pieces| pieces.iter().map(|piece| (piece.dispatch, piece.band.first, piece.band.count())).collect())
            .collect();
        assert_eq!(
            found,
            [vec![(0, [0, 0, 0], 5)], vec![(1, [0, 0, 0], 4)], vec![(1, [0, 1, 0], 4)], vec![(2, [0, 0, 0], 9)]]
        );
        // What follows the last band goes with it where there is room.
        assert_eq!(cut(&program, pace, 0.045).len(), 4);
        assert_eq!(cut(&program, pace, 0.050).last().unwrap().len(), 2);
    }

    #[test]
    fn every_submission_stays_within_the_bound_and_nothing_is_lost() {
        let work = |at: u64| Work {
            bytes: at * at % 37 * 1_000_000,
            workgroups: [(at % 11 + 1) as u32, (at % 3 + 1) as u32, (at % 2 + 1) as u32],
        };
        let program: Vec<Work> = (0..200).map(work).collect();
        for bound in [1e-5, 1e-4, 1e-3, 1e-2] {
            let pace = Pace::guess(8);
            let submissions = cut(&program, pace, bound);
            for pieces in &submissions {
                let bytes = |piece: &Piece| program[piece.dispatch].bytes_in(&piece.band);
                let seconds: f64 = pieces.iter().map(|piece| pace.seconds(bytes(piece))).sum();
                let is_one = pieces.len() == 1 && pieces[0].band.count() == 1;
                assert!(is_one || seconds <= bound * (1.0 + 1e-6), "{seconds} s of {bound} s: {pieces:?}");
            }
            let mut pieces = submissions.concat().into_iter().peekable();
            for (dispatch, work) in program.iter().enumerate() {
                let of_it: Vec<Band> = std::iter::from_fn(|| pieces.next_if(|piece| piece.dispatch == dispatch))
                    .map(|piece| piece.band)
                    .collect();
                let most = of_it.iter().map(Band::count).max().unwrap();
                assert_eq!(of_it, bands(work.workgroups, most), "{work:?}");
            }
            assert!(pieces.next().is_none());
        }
    }

    #[test]
    fn what_cannot_be_is_cut_into_a_sensible_number() {
        let work = Work { bytes: u64::MAX, workgroups: [65_535; 3] };
        let pieces = cut(&[work], Pace::guess(512), 1e-3).len() as u64;
        assert!((MOST_BANDS..=2 * MOST_BANDS).contains(&pieces), "{pieces}");
        // No bytes take no time.
        let nothing = [Work { bytes: 0, workgroups: [65_535; 3] }; 2];
        assert_eq!(cut(&nothing, Pace::guess(1), 1e-9).concat().len(), 2);
    }

    #[test]
    fn more_rows_cost_more() {
        assert!(Pace::guess(512).seconds_per_byte > 10.0 * Pace::guess(8).seconds_per_byte);
        // A decode step over 4 GB of weights on a slow device is cut, too.
        assert!(Pace::guess(1).seconds(4 << 30) > 0.1);
    }
}
