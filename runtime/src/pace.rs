//! How long a program's dispatches take on this device, and where its submissions are cut so that each stays short:
//! drivers reset a device that spends seconds on one.
//!
//! A dispatch of a program takes time in proportion to the bytes that it reads: weights, or a layer's K and V at the longest
//! context. What a byte costs depends on the program alone: one row waits for memory, 512 rows for arithmetic. It is
//! guessed low, and then measured: the first dispatches of each program run at load, by the device's clock.

use crate::engine::{Drawing, Engine, Rows, Step};
use crate::error::LoadError;
use crate::programs::Prepared;
use crate::session::Sampling;

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

/// Lengths of consecutive runs of dispatches, given the bytes that each reads, so that each run takes at most
/// `bound_seconds`, or is a single dispatch: one is never cut.
pub fn cut(bytes: &[u64], pace: Pace, bound_seconds: f64) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut seconds = 0.0;
    for &bytes in bytes {
        let now = pace.seconds(bytes);
        match lengths.last_mut() {
            Some(length) if seconds + now <= bound_seconds => {
                *length += 1;
                seconds += now;
            }
            _ => {
                lengths.push(1);
                seconds = now;
            }
        }
    }
    lengths
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
    let tokens = vec![0; context_tokens.min(artifacts::step::MAX_ROWS as u32) as usize];
    for (index, (program, pace)) in prepared.programs.iter().zip(paces).enumerate() {
        if pace.seconds(program.weight_bytes.iter().sum()) < LEAST_PART * bound_seconds {
            continue;
        }
        let count = cut(&program.weight_bytes, *pace, MEASURED_PART * bound_seconds)[0];
        let bytes: u64 = program.weight_bytes[..count].iter().sum();
        let Some((list, timer)) = program.record_first(&device, count)? else { return Ok(()) };
        engine.wait_for_weights(index, count)?;
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

    #[test]
    fn programs_are_cut_where_time_adds_up_but_never_inside_a_dispatch() {
        let pace = Pace { seconds_per_byte: 1e-3 };
        let bytes = [10, 20, 0, 40, 70, 0];
        assert_eq!(cut(&bytes, pace, 0.064), [3, 1, 1, 1]);
        assert_eq!(cut(&bytes, pace, 0.070), [4, 2]);
        assert_eq!(cut(&bytes, pace, 1.0), [6]);
        assert_eq!(cut(&bytes, pace, 1e-9), [1; 6]);
        assert!(cut(&[], pace, 1.0).is_empty());
    }

    #[test]
    fn every_run_stays_within_the_bound() {
        let bytes: Vec<u64> = (0..200u64).map(|at| at * at % 37 * 1_000_000).collect();
        for bound in [1e-5, 1e-4, 1e-3, 1e-2] {
            let pace = Pace::guess(8);
            let mut at = 0;
            for length in cut(&bytes, pace, bound) {
                let seconds: f64 = bytes[at..at + length].iter().map(|&bytes| pace.seconds(bytes)).sum();
                assert!(length == 1 || seconds <= bound * (1.0 + 1e-9), "{seconds} s of {bound} s");
                at += length;
            }
            assert_eq!(at, bytes.len());
        }
    }

    #[test]
    fn more_rows_cost_more() {
        assert!(Pace::guess(512).seconds_per_byte > 10.0 * Pace::guess(8).seconds_per_byte);
        // A decode step over 4 GB of weights on a slow device is cut, too.
        assert!(Pace::guess(1).seconds(4 << 30) > 0.1);
    }
}
