//! Arithmetic over a group in a form that compilers turn into vector instructions, and that gives the same bits on every
//! processor: sums run in [`LANES`] fixed lanes, and nothing depends on how wide the vectors are.

/// Independent sums of a reduction, enough for the widest vectors. Divides every group.
pub const LANES: usize = 16;

/// Folds a group and 0 with `combine`, whose result must not depend on the order.
#[inline(always)]
pub fn fold<const GROUP: usize>(values: &[f32; GROUP], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for chunk in values.as_chunks::<LANES>().0 {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = combine(*lane, *value);
        }
    }
    lanes.into_iter().fold(0.0, combine)
}

/// Sums pairwise.
#[inline(always)]
pub fn sum(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `f32::min` without its treatment of NaN: one instruction.
#[inline(always)]
pub fn smaller(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// `f32::max` without its treatment of NaN: one instruction.
#[inline(always)]
pub fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Rounds magnitudes below 2²², ties to even: adding 1.5 * 2²³ leaves no bits for a fraction. The library's rounding is
/// a function call on processors without SSE4.1.
#[inline(always)]
pub fn nearest_integer(value: f32) -> f32 {
    const NO_FRACTION: f32 = 12_582_912.0;
    (value + NO_FRACTION) - NO_FRACTION
}
