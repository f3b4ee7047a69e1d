//! The search for one INT4 group's scale and zero point.
//!
//! A candidate is a window of sixteen levels laid over the group: its `stretch` against the plain window from the
//! smallest to the largest weight, and its `shift` along the line. Rounding the weights in a window gives levels; the
//! scale that suits these levels best, by least squares, and the error at that scale follow from two sums without a
//! second pass:
//!
//! ```text
//! weight ≈ scale * level      level = q - zero
//!
//! over one group:   A = Σ importance * level * weight      B = Σ importance * level²
//!                   best scale = A / B      error = Σ importance * weight² − A² / B
//! ```
//!
//! So the candidate with the largest A²/B wins. Its scale is refitted once, cut to what the format stores, and compared
//! with the plain window by their true errors, so that the search can only gain.

use unicorn_artifact::int4::{INT4_MAX, Int4Params};

use super::ErrorSum;
use super::lanes::{LANES, fold, larger, nearest_integer, smaller, sum};

/// Largest magnitude that every group can hold: a group from −this to this needs the largest storable scale.
pub const MAX_INT4_WEIGHT: f32 = LARGEST_SCALE * LEVEL_MAX / 2.0;

/// The largest f16 with three bits of mantissa cut.
const LARGEST_SCALE: f32 = 65280.0;
const LEVEL_MAX: f32 = INT4_MAX as f32;

/// (stretch, shift): a greedy choice among 87 over trained, normal, heavy-tailed and unevenly important groups. They are
/// the plain window's neighbours, and narrower ones that cut off an outlier at one end.
const CANDIDATES: [(f32, f32); 12] = [
    (0.85, 0.0),
    (0.9, -1.0),
    (0.9, 0.0),
    (0.9, 1.0),
    (0.925, 0.0),
    (0.95, 0.0),
    (0.975, 0.0),
    (1.0, 0.0),
    (1.025, 0.0),
    (1.05, 0.0),
    (1.075, 0.0),
    (1.125, 0.0),
];

/// Writes the codes of one group. Weights must be within ±[`MAX_INT4_WEIGHT`]; the error is not weighted.
#[inline(always)]
pub fn quantize_int4_group<const GROUP: usize>(
    weights: &[f32; GROUP],
    importance: &[f32; GROUP],
    codes: &mut [u8; GROUP],
    stored: &mut Int4Params,
) -> ErrorSum {
    let low = fold(weights, smaller);
    let high = fold(weights, larger);
    // The plain window's step. Everything below is in its units, so that no square under- or overflows.
    let unit = (high - low) / LEVEL_MAX;
    let inverse_unit = 1.0 / unit;
    if !inverse_unit.is_finite() {
        codes.fill(0);
        *stored = Int4Params::default();
        return weights.iter().fold(ErrorSum::default(), |sum, &weight| sum.with(weight, 0.0));
    }
    let weights = weights.map(|weight| weight * inverse_unit);
    let importance = normalised(importance);
    let plain = Window { step: 1.0, zero: nearest_integer(-low * inverse_unit) };
    let searched = search(&weights, &importance, -low * inverse_unit).unwrap_or(plain);

    let params = [plain, searched].map(|window| Int4Params::new(window.step * unit, window.zero as u8));
    let [plain, searched] = params.map(|params| Window::of(params, inverse_unit));
    let gains = searched.error(&weights, &importance) < plain.error(&weights, &importance);
    let (window, params) = if gains { (searched, params[1]) } else { (plain, params[0]) };
    *stored = params;
    let (squared_error, squared_weight) = window.encode(&weights, codes);
    ErrorSum::in_units(squared_error, squared_weight, unit)
}

/// The best candidate, with its step refitted; none if no window explains anything.
#[inline(always)]
fn search<const GROUP: usize>(weights: &[f32; GROUP], importance: &[f32; GROUP], plain_zero: f32) -> Option<Window> {
    let mut best_gain = 0.0;
    let mut best = None;
    for (stretch, shift) in CANDIDATES {
        // The plain window and a stretched one have the same centre, 7.5 − zero levels from 0.
        let centred = LEVEL_MAX / 2.0 - (LEVEL_MAX / 2.0 - plain_zero) / stretch;
        let zero = smaller(larger(nearest_integer(centred) + shift, 0.0), LEVEL_MAX);
        let fit = Window { step: stretch, zero }.fit(weights, importance);
        if fit.gain() > best_gain {
            best_gain = fit.gain();
            best = Some(Window { step: fit.step(), zero });
        }
    }
    best.map(|window| Window { step: window.fit(weights, importance).step(), ..window })
}

/// Sixteen levels over a group: level l (−zero ..= 15 − zero) stands for l * step units.
#[derive(Clone, Copy)]
struct Window {
    step: f32,
    zero: f32,
}

impl Window {
    /// `params` as a GPU will decode them.
    #[inline(always)]
    fn of(params: Int4Params, inverse_unit: f32) -> Window {
        Window { step: params.scale() * inverse_unit, zero: f32::from(params.zero()) }
    }

    /// Calls `each(lane, index, level)` for every weight with the level nearest to it.
    #[inline(always)]
    fn for_each_level<const GROUP: usize>(self, weights: &[f32; GROUP], mut each: impl FnMut(usize, usize, f32)) {
        let inverse_step = if self.step > 0.0 { 1.0 / self.step } else { 0.0 };
        let (lowest, highest) = (-self.zero, LEVEL_MAX - self.zero);
        for first in (0..GROUP).step_by(LANES) {
            for lane in 0..LANES {
                let level = smaller(larger(weights[first + lane] * inverse_step, lowest), highest);
                each(lane, first + lane, nearest_integer(level));
            }
        }
    }

    #[inline(always)]
    fn fit<const GROUP: usize>(self, weights: &[f32; GROUP], importance: &[f32; GROUP]) -> Fit {
        let (mut level_weight, mut level_level) = ([0.0; LANES], [0.0; LANES]);
        self.for_each_level(weights, |lane, index, level| {
            let important_level = importance[index] * level;
            level_weight[lane] += important_level * weights[index];
            level_level[lane] += important_level * level;
        });
        Fit { level_weight: sum(level_weight), level_level: sum(level_level) }
    }

    #[inline(always)]
    fn error<const GROUP: usize>(self, weights: &[f32; GROUP], importance: &[f32; GROUP]) -> f32 {
        let mut squared_error = [0.0; LANES];
        self.for_each_level(weights, |lane, index, level| {
            let error = level * self.step - weights[index];
            squared_error[lane] += importance[index] * error * error;
        });
        sum(squared_error)
    }

    /// Writes the codes; returns the squared error and the squared weights, in units.
    #[inline(always)]
    fn encode<const GROUP: usize>(self, weights: &[f32; GROUP], codes: &mut [u8; GROUP]) -> (f32, f32) {
        let (mut squared_error, mut squared_weight) = ([0.0; LANES], [0.0; LANES]);
        self.for_each_level(weights, |lane, index, level| {
            codes[index] = (level + self.zero) as i32 as u8;
            let error = level * self.step - weights[index];
            squared_error[lane] += error * error;
            squared_weight[lane] += weights[index] * weights[index];
        });
        (sum(squared_error), sum(squared_weight))
    }
}

/// The two sums of a window's least squares: A and B above.
struct Fit {
    level_weight: f32,
    level_level: f32,
}

impl Fit {
    /// A²/B, what the window explains of the group's weighted square sum.
    #[inline(always)]
    fn gain(&self) -> f32 {
        self.level_weight * self.step()
    }

    #[inline(always)]
    fn step(&self) -> f32 {
        if self.level_level > 0.0 { self.level_weight / self.level_level } else { 0.0 }
    }
}

/// `importance` scaled to a maximum of 1; all ones where that is impossible.
#[inline(always)]
fn normalised<const GROUP: usize>(importance: &[f32; GROUP]) -> [f32; GROUP] {
    let inverse = 1.0 / fold(importance, larger);
    if inverse.is_finite() && inverse > 0.0 { importance.map(|value| value * inverse) } else { [1.0; GROUP] }
}
