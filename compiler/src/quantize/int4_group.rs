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
//!                   best scale = A / B,   error = Σ importance * weight² − A² / B
//! ```
//!
//! So the candidate with the largest A²/B wins. Its scale is refitted, cut to what the format stores, and compared with
//! the plain window by their true errors, so that the search can only gain.

use artifacts::int4::{INT4_MAX, Int4Params};

/// Largest magnitude that every group can hold: fifteen steps of the largest storable scale.
pub const MAX_INT4_WEIGHT: f32 = 15.0 * 65408.0;

/// Writes the codes of one group and returns its parameters. Weights must be within ±[`MAX_INT4_WEIGHT`].
pub fn quantize_int4_group<const GROUP: usize>(
    weights: &[f32; GROUP],
    importance: &[f32; GROUP],
    codes: &mut [u8; GROUP],
) -> Int4Params {
    let low = lanewise(weights, smaller);
    let high = lanewise(weights, larger);
    // The plain window's step; everything below is in its units, so that no sum under- or overflows.
    let unit = (high - low) / LEVEL_MAX;
    let inverse_unit = 1.0 / unit;
    if !inverse_unit.is_finite() {
        codes.fill(0);
        return Int4Params::default();
    }
    let weights = weights.map(|weight| weight * inverse_unit);
    let importance = normalised(importance);
    let plain_zero = -low * inverse_unit;

    let mut best = (0.0, Window { step: 1.0, zero: plain_zero.round_ties_even() });
    for (stretch, shift) in CANDIDATES {
        // Both windows have the same centre when their zeros are equally far from 7.5 in weights.
        let centred = 0.5 * LEVEL_MAX - (0.5 * LEVEL_MAX - plain_zero) / stretch;
        let window = Window { step: stretch, zero: (centred.round_ties_even() + shift).clamp(0.0, LEVEL_MAX) };
        let fit = window.fit(&weights, &importance);
        if fit.gain() > best.0 {
            best = (fit.gain(), Window { step: fit.step(), ..window });
        }
    }
    let mut window = best.1;
    for _ in 0..REFITS {
        window.step = window.fit(&weights, &importance).step();
    }

    let plain = Window { step: 1.0, zero: plain_zero.round_ties_even() };
    let stored = [plain, window].map(|window| Int4Params::new(window.step * unit, window.zero as u8));
    let error = stored.map(|params| Window::of(params, inverse_unit).error(&weights, &importance));
    let params = if error[1] < error[0] { stored[1] } else { stored[0] };
    Window::of(params, inverse_unit).encode(&weights, codes);
    params
}

/// Independent sums of a reduction: enough for the widest vectors, and the same bytes on any processor.
const LANES: usize = 16;
const LEVEL_MAX: f32 = INT4_MAX as f32;
const REFITS: usize = 1;
/// (stretch, shift), from a greedy choice out of 87 over trained, normal, heavy-tailed and unevenly important groups: the
/// plain window's neighbours, and narrower ones that cut off an outlier at one end.
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

/// Sixteen levels over a group: level l (−zero ..= 15 − zero) stands for l * step units.
#[derive(Clone, Copy)]
struct Window {
    step: f32,
    zero: f32,
}

impl Window {
    fn of(params: Int4Params, inverse_unit: f32) -> Window {
        Window { step: params.scale() * inverse_unit, zero: f32::from(params.zero()) }
    }

    /// Calls `each(lane, index, level)` for every weight with the level nearest to it.
    #[inline(always)]
    fn for_each_level<const GROUP: usize>(self, weights: &[f32; GROUP], mut each: impl FnMut(usize, usize, f32)) {
        let inverse = if self.step > 0.0 { 1.0 / self.step } else { 0.0 };
        let (lowest, highest) = (-self.zero, LEVEL_MAX - self.zero);
        for first in (0..GROUP).step_by(LANES) {
            for lane in 0..LANES {
                let level = smaller(larger(weights[first + lane] * inverse, lowest), highest);
                each(lane, first + lane, nearest_integer(level));
            }
        }
    }

    fn fit<const GROUP: usize>(self, weights: &[f32; GROUP], importance: &[f32; GROUP]) -> Fit {
        let (mut level_weight, mut level_level) = ([0.0; LANES], [0.0; LANES]);
        self.for_each_level(weights, |lane, index, level| {
            let scaled = importance[index] * level;
            level_weight[lane] += scaled * weights[index];
            level_level[lane] += scaled * level;
        });
        Fit { level_weight: sum(level_weight), level_level: sum(level_level) }
    }

    fn error<const GROUP: usize>(self, weights: &[f32; GROUP], importance: &[f32; GROUP]) -> f32 {
        let mut error = [0.0; LANES];
        self.for_each_level(weights, |lane, index, level| {
            let difference = level * self.step - weights[index];
            error[lane] += importance[index] * difference * difference;
        });
        sum(error)
    }

    fn encode<const GROUP: usize>(self, weights: &[f32; GROUP], codes: &mut [u8; GROUP]) {
        self.for_each_level(weights, |_, index, level| codes[index] = (level + self.zero) as i32 as u8);
    }
}

/// The two sums of a window's least squares.
struct Fit {
    level_weight: f32,
    level_level: f32,
}

impl Fit {
    /// What the window explains of the group's weighted square sum.
    fn gain(&self) -> f32 {
        self.level_weight * self.step()
    }

    fn step(&self) -> f32 {
        if self.level_level > 0.0 { self.level_weight / self.level_level } else { 0.0 }
    }
}

// Without f32::min's care for NaN, which no group holds, these are one instruction each.
fn smaller(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Ties to even, for magnitudes far below 2²²: adding 1.5 * 2²³ leaves no bits for a fraction. Unlike the library's
/// rounding, this is two additions on any processor.
#[inline(always)]
fn nearest_integer(value: f32) -> f32 {
    const NO_FRACTION: f32 = 12_582_912.0;
    (value + NO_FRACTION) - NO_FRACTION
}

/// `importance` with its largest at 1; all ones where that cannot be.
fn normalised<const GROUP: usize>(importance: &[f32; GROUP]) -> [f32; GROUP] {
    let inverse = 1.0 / lanewise(importance, larger);
    if inverse.is_finite() && inverse > 0.0 { importance.map(|value| value * inverse) } else { [1.0; GROUP] }
}

/// Folds a group and 0 with `combine`, which must not mind the order.
#[inline(always)]
fn lanewise<const GROUP: usize>(values: &[f32; GROUP], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for at in (0..GROUP).step_by(LANES) {
        for lane in 0..LANES {
            lanes[lane] = combine(lanes[lane], values[at + lane]);
        }
    }
    lanes.into_iter().fold(0.0, combine)
}

/// Sums pairwise, in a fixed order.
#[inline(always)]
fn sum(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}
