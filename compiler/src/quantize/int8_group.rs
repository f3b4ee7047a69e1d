//! One INT8 group: its largest weight becomes ±127. A search would gain little: 8 bits are within 0.6 % of any group.

use artifacts::int4::{INT8_GROUP, INT8_MAX};
use half::f16;

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
    *stored_scale = f16::from_f32(most / LEVEL_MAX);
    let scale = stored_scale.to_f32();
    if scale == 0.0 {
        codes.fill(0);
        return weights.iter().fold(ErrorSum::default(), |sum, &weight| sum.with(weight, 0.0));
    }
    let (inverse_scale, inverse_most) = (1.0 / scale, 1.0 / most);
    // In units of the largest weight, so that no square under- or overflows.
    let (mut squared_error, mut squared_weight) = ([0.0; LANES], [0.0; LANES]);
    for first in (0..INT8_GROUP).step_by(LANES) {
        for lane in 0..LANES {
            let weight = weights[first + lane];
            // A scale that f16 rounded down would otherwise ask for ±128.
            let level = nearest_integer(smaller(larger(weight * inverse_scale, -LEVEL_MAX), LEVEL_MAX));
            codes[first + lane] = level as i32 as i8;
            let error = (level * scale - weight) * inverse_most;
            let relative = weight * inverse_most;
            squared_error[lane] += error * error;
            squared_weight[lane] += relative * relative;
        }
    }
    ErrorSum::in_units(sum(squared_error), sum(squared_weight), most)
}
