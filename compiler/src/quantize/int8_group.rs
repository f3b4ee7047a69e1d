//! One INT8 group. The largest weight becomes ±127 or a little less: the rounding errors of the others depend on the scale, and of
//! the tightest scale and a few above it, the one with the smallest error is used.

use half::f16;
use unicorn_artifact::int4::{INT8_GROUP, INT8_MAX};

use super::ErrorSum;
use super::lanes::{LANES, fold, larger, nearest_integer, smaller, sum};

/// Largest magnitude whose scale is a finite f16.
pub const MAX_INT8_WEIGHT: f32 = 65504.0 * LEVEL_MAX;

const LEVEL_MAX: f32 = INT8_MAX as f32;

/// Writes the codes and the scale of one group. Weights must be within ±[`MAX_INT8_WEIGHT`].
pub fn quantize_int8_group(
    weights: &[f32; INT8_GROUP],
    codes: &mut [i8; INT8_GROUP],
    stored_scale: &mut f16,
) -> ErrorSum {
    let most = fold(weights, |most, weight| larger(most, weight.abs()));
    let tightest = f16::from_f32(most / LEVEL_MAX);
    if tightest == f16::ZERO {
        *stored_scale = tightest;
        codes.fill(0);
        return weights.iter().fold(ErrorSum::default(), |sum, &weight| sum.with(weight, 0.0));
    }
    let mut min_error = f32::INFINITY;
    for step in 0..CANDIDATES {
        let candidate = f16::from_bits((tightest.to_bits() + step * CANDIDATE_STEP).min(f16::MAX.to_bits()));
        let error = squared_error(weights, candidate.to_f32(), 1.0 / most);
        if error < min_error {
            (min_error, *stored_scale) = (error, candidate);
        }
    }
    let inverse_scale = 1.0 / stored_scale.to_f32();
    for (code, &weight) in codes.iter_mut().zip(weights) {
        *code = nearest_level(weight * inverse_scale) as i32 as i8;
    }
    // In units of the largest weight, so that no square under- or overflows.
    let mut squared_weight = [0.0; LANES];
    for first in (0..INT8_GROUP).step_by(LANES) {
        for lane in 0..LANES {
            let relative = weights[first + lane] / most;
            squared_weight[lane] += relative * relative;
        }
    }
    ErrorSum::in_units(min_error, sum(squared_weight), most)
}

/// Number of scales that are tried, and their distance in steps of f16 (a thousandth or two thousandths each).
const CANDIDATES: u16 = 12;
const CANDIDATE_STEP: u16 = 3;

/// In units of `1 / unit`.
#[inline(always)]
fn squared_error(weights: &[f32; INT8_GROUP], scale: f32, unit: f32) -> f32 {
    let inverse_scale = 1.0 / scale;
    let mut squared_error = [0.0; LANES];
    for first in (0..INT8_GROUP).step_by(LANES) {
        for lane in 0..LANES {
            let weight = weights[first + lane];
            let error = (nearest_level(weight * inverse_scale) * scale - weight) * unit;
            squared_error[lane] += error * error;
        }
    }
    sum(squared_error)
}

/// A scale that f16 rounded down would otherwise require ±128.
#[inline(always)]
fn nearest_level(scaled: f32) -> f32 {
    nearest_integer(smaller(larger(scaled, -LEVEL_MAX), LEVEL_MAX))
}
