//! Weights to INT4, INT8 and MXFP4 codes, one row at a time.
//!
//! The inputs are the weights and, where the caller has it, each column's importance. How the search was chosen, with
//! figures, is described in `docs/quantization.md`.
//!
//! INT4's loop is compiled for AVX2 as well, and everything inside it with it (`inline(always)`). The results are the same bits: no
//! sum changes its order, and no multiplication is contracted with an addition. INT8's is slower so (103 instead of 165 M weights/s).

mod fp4_group;
mod int4_group;
mod int8_group;
mod lanes;

use half::f16;
use multiversion::multiversion;
use unicorn_artifact::fp4::FP4_GROUP;
use unicorn_artifact::int4::{INT8_GROUP, Int4Params};

use fp4_group::{MAX_FP4_WEIGHT, quantize_fp4_group};
use int4_group::{MAX_INT4_WEIGHT, quantize_int4_group};
use int8_group::{MAX_INT8_WEIGHT, quantize_int8_group};

/// Quantises one row to INT4. A zero (padding, say) gets its group's zero point as code and stays exactly zero.
///
/// ```text
/// row             (cols)          cols a multiple of `group`
/// column_weight   (cols)          importance of each column's squared error, finite and not negative
/// codes           (cols)          written, 0..=15
/// params          (cols / group)  written, scale and zero point
/// ```
///
/// The weighted squared error of a group is never larger than that of the plain window from its smallest to its largest
/// weight. The sum that is returned is not weighted.
///
/// # Errors
/// The first column whose weight is not finite or beyond the format's range.
///
/// # Panics
/// If `group` is not 32, 64 or 128, or a length is not as above.
pub fn quantize_int4_row(
    row: &[f32],
    column_weight: Option<&[f32]>,
    group: usize,
    codes: &mut [u8],
    params: &mut [Int4Params],
) -> Result<ErrorSum, usize> {
    match group {
        32 => quantize_int4_groups::<32>(row, column_weight, codes, params),
        64 => quantize_int4_groups::<64>(row, column_weight, codes, params),
        128 => quantize_int4_groups::<128>(row, column_weight, codes, params),
        _ => panic!("INT4 group must be 32, 64 or 128, found {group}"),
    }
}

/// Quantises one row to INT8, symmetric around zero.
///
/// ```text
/// row      (cols)               cols a multiple of INT8_GROUP
/// codes    (cols)               written, -127..=127
/// scales   (cols / INT8_GROUP)  written
/// ```
///
/// # Errors
/// The first column whose weight is not finite or beyond the format's range.
///
/// # Panics
/// If a length is not as above.
pub fn quantize_int8_row(row: &[f32], codes: &mut [i8], scales: &mut [f16]) -> Result<ErrorSum, usize> {
    check_lengths(row, INT8_GROUP, codes.len(), scales.len());
    let mut sum = ErrorSum::default();
    let groups = row.as_chunks::<INT8_GROUP>().0.iter().zip(codes.as_chunks_mut::<INT8_GROUP>().0);
    for (index, ((weights, codes), scale)) in groups.zip(scales).enumerate() {
        check_range(weights, MAX_INT8_WEIGHT).map_err(|column| index * INT8_GROUP + column)?;
        sum.merge(&quantize_int8_group(weights, codes, scale));
    }
    Ok(sum)
}

/// Quantises one row to MXFP4. Weights from a source in MXFP4 keep every bit.
///
/// ```text
/// row      (cols)              cols a multiple of FP4_GROUP
/// codes    (cols)              written, 0..=15
/// scales   (cols / FP4_GROUP)  written, powers of two
/// ```
///
/// # Errors
/// The first column whose weight is not finite or beyond the format's range.
///
/// # Panics
/// If a length is not as above.
pub(crate) fn quantize_fp4_row(row: &[f32], codes: &mut [u8], scales: &mut [f16]) -> Result<ErrorSum, usize> {
    check_lengths(row, FP4_GROUP, codes.len(), scales.len());
    let mut sum = ErrorSum::default();
    let groups = row.as_chunks::<FP4_GROUP>().0.iter().zip(codes.as_chunks_mut::<FP4_GROUP>().0);
    for (index, ((weights, codes), scale)) in groups.zip(scales).enumerate() {
        check_range(weights, MAX_FP4_WEIGHT).map_err(|column| index * FP4_GROUP + column)?;
        sum.merge(&quantize_fp4_group(weights, codes, scale));
    }
    Ok(sum)
}

/// Squared error of a quantisation and the squared weights it is measured against.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorSum {
    pub(crate) squared_error: f64,
    pub(crate) squared_weight: f64,
}

impl ErrorSum {
    pub(crate) fn add(&mut self, weight: f32, decoded: f32) {
        self.squared_error += (f64::from(weight) - f64::from(decoded)).powi(2);
        self.squared_weight += f64::from(weight).powi(2);
    }

    /// Adds the sums of other weights.
    pub fn merge(&mut self, other: &ErrorSum) {
        self.squared_error += other.squared_error;
        self.squared_weight += other.squared_weight;
    }

    /// Root mean square of the error over that of the weights; 0 when all weights are zero.
    pub fn relative(&self) -> f64 {
        if self.squared_weight > 0.0 { (self.squared_error / self.squared_weight).sqrt() } else { 0.0 }
    }

    /// Sums of squares that were taken in multiples of `unit`.
    fn in_units(squared_error: f32, squared_weight: f32, unit: f32) -> ErrorSum {
        let squared_unit = f64::from(unit).powi(2);
        ErrorSum {
            squared_error: f64::from(squared_error) * squared_unit,
            squared_weight: f64::from(squared_weight) * squared_unit,
        }
    }

    fn with(mut self, weight: f32, decoded: f32) -> ErrorSum {
        self.add(weight, decoded);
        self
    }
}

#[multiversion(targets("x86_64+avx2"))]
fn quantize_int4_groups<const GROUP: usize>(
    row: &[f32],
    column_weight: Option<&[f32]>,
    codes: &mut [u8],
    params: &mut [Int4Params],
) -> Result<ErrorSum, usize> {
    check_lengths(row, GROUP, codes.len(), params.len());
    let importances = column_weight.map(|weights| {
        assert_eq!(weights.len(), row.len(), "column weights must be as many as the row's weights");
        weights.as_chunks::<GROUP>().0
    });
    let mut sum = ErrorSum::default();
    let groups = row.as_chunks::<GROUP>().0.iter().zip(codes.as_chunks_mut::<GROUP>().0);
    for (index, ((weights, codes), params)) in groups.zip(params).enumerate() {
        check_range(weights, MAX_INT4_WEIGHT).map_err(|column| index * GROUP + column)?;
        let importance = importances.map_or(&[1.0; GROUP], |importances| &importances[index]);
        sum.merge(&quantize_int4_group(weights, importance, codes, params));
    }
    Ok(sum)
}

fn check_lengths(row: &[f32], group: usize, codes: usize, groups: usize) {
    assert_eq!(row.len() % group, 0, "a row must be whole groups of {group}, found {} columns", row.len());
    assert_eq!(codes, row.len(), "codes must be as many as the row's weights");
    assert_eq!(groups, row.len() / group, "scales must be one a group");
}

/// The first column that is not finite or larger than `most` in magnitude, as the error.
fn check_range(weights: &[f32], most: f32) -> Result<(), usize> {
    let in_range = |weight: &f32| weight.abs() <= most;
    // Without an early exit the loop of the usual case runs on vectors.
    if weights.iter().fold(true, |all, weight| all & in_range(weight)) {
        return Ok(());
    }
    Err(weights.iter().position(|weight| !in_range(weight)).expect("a weight is out of range"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicorn_artifact::int4::INT8_MAX;

    use super::*;

    /// Room for f32 sums of a group, which decide, against this test's f64 sums.
    const ROUNDING: f64 = 1e-4;

    struct Int4Row {
        codes: Vec<u8>,
        params: Vec<Int4Params>,
        sum: ErrorSum,
    }

    impl Int4Row {
        fn decoded(&self) -> Vec<f32> {
            let group = self.codes.len() / self.params.len();
            self.codes.iter().enumerate().map(|(column, &code)| self.params[column / group].decode(code)).collect()
        }
    }

    fn int4(row: &[f32], column_weight: Option<&[f32]>, group: usize) -> Result<Int4Row, usize> {
        // Other values, to check that everything is written.
        let (mut codes, mut params) = (vec![0xaa; row.len()], vec![Int4Params(0xaaaa); row.len() / group]);
        let sum = quantize_int4_row(row, column_weight, group, &mut codes, &mut params)?;
        Ok(Int4Row { codes, params, sum })
    }

    fn weighted_error(row: &[f32], decoded: &[f32], column_weight: &[f32]) -> f64 {
        let terms = row.iter().zip(decoded).zip(column_weight);
        terms.map(|((&w, &d), &importance)| f64::from(importance) * (f64::from(w) - f64::from(d)).powi(2)).sum()
    }

    /// The plain window from smallest to largest weight (and zero), written for one group with loops.
    fn plain(row: &[f32]) -> Vec<f32> {
        let (low, high) = row.iter().fold((0f32, 0f32), |(low, high), &w| (low.min(w), high.max(w)));
        let scale = (high - low) / 15.0;
        if scale == 0.0 {
            return vec![0.0; row.len()];
        }
        let params = Int4Params::new(scale, (-low / scale).round_ties_even() as u8);
        let inverse = if params.scale() > 0.0 { 1.0 / params.scale() } else { 0.0 };
        let zero = f32::from(params.zero());
        row.iter().map(|w| params.decode((w * inverse + zero).round_ties_even().clamp(0.0, 15.0) as u8)).collect()
    }

    fn group_len() -> impl Strategy<Value = usize> {
        prop::sample::select(vec![32usize, 64, 128])
    }

    /// One group of any usual magnitude, with zeros and outliers.
    fn group_of_weights() -> impl Strategy<Value = Vec<f32>> {
        let weight = prop_oneof![8 => -1f32..1.0, 1 => Just(0f32), 1 => -30f32..30.0];
        (group_len(), -4i32..4).prop_flat_map(move |(group, exponent)| {
            let weight = weight.clone().prop_map(move |weight| weight * 10f32.powi(exponent));
            prop::collection::vec(weight, group)
        })
    }

    proptest! {
        #[test]
        fn int4_is_never_worse_than_the_plain_window(row in group_of_weights(), seed in prop::collection::vec(0f32..9.0, 128)) {
            let importance = &seed[..row.len()];
            let found = int4(&row, Some(importance), row.len()).unwrap();
            let bound = weighted_error(&row, &plain(&row), importance);
            let error = weighted_error(&row, &found.decoded(), importance);
            prop_assert!(error <= bound * (1.0 + ROUNDING), "error {error}, plain window {bound}");
        }

        #[test]
        fn int4_codes_are_in_range_zeros_stay_zero_and_the_sum_is_the_error(row in group_of_weights()) {
            let found = int4(&row, None, row.len()).unwrap();
            prop_assert!(found.codes.iter().all(|&code| code <= 15));
            let decoded = found.decoded();
            let mut sum = ErrorSum::default();
            for (&weight, &decoded) in row.iter().zip(&decoded) {
                prop_assert!(weight != 0.0 || decoded == 0.0);
                sum.add(weight, decoded);
            }
            prop_assert!((found.sum.squared_error - sum.squared_error).abs() <= ROUNDING * sum.squared_weight);
            prop_assert!((found.sum.squared_weight - sum.squared_weight).abs() <= ROUNDING * sum.squared_weight);
        }

        #[test]
        fn int4_finds_codes_again(codes in prop::collection::vec(0u8..16, 32), zero in 0u8..16, exponent in -12i32..4) {
            // If a group uses both ends of its window, its own codes are its best quantisation.
            let mut codes = codes;
            (codes[3], codes[17]) = (0, 15);
            let params = Int4Params::new(1.5 * 2f32.powi(exponent), zero);
            let row: Vec<f32> = codes.iter().map(|&code| params.decode(code)).collect();
            let found = int4(&row, None, 32).unwrap();
            prop_assert_eq!(found.decoded(), row);
        }

        #[test]
        fn groups_do_not_touch_each_other(a in prop::collection::vec(-1f32..1.0, 32), b in prop::collection::vec(-9f32..9.0, 32)) {
            let both = int4(&[a.clone(), b.clone()].concat(), None, 32).unwrap();
            let (a, b) = (int4(&a, None, 32).unwrap(), int4(&b, None, 32).unwrap());
            prop_assert_eq!(both.codes, [a.codes, b.codes].concat());
            prop_assert_eq!(both.params, [a.params, b.params].concat());
        }

        #[test]
        fn any_bits_return(bits in prop::collection::vec(any::<u32>(), 64), importance in prop::collection::vec(any::<u32>(), 64)) {
            let row: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            let importance: Vec<f32> = importance.into_iter().map(f32::from_bits).collect();
            if let Ok(found) = int4(&row, Some(&importance), 32) {
                prop_assert!(found.codes.iter().all(|&code| code <= 15));
                prop_assert!(found.decoded().iter().all(|decoded| decoded.is_finite()));
            }
            let (mut codes, mut scales) = (vec![0; 64], vec![f16::ZERO; 2]);
            if quantize_int8_row(&row, &mut codes, &mut scales).is_ok() {
                prop_assert!(scales.iter().all(|scale| scale.is_finite()));
            }
        }

        #[test]
        fn int8_is_within_half_a_step(row in prop::collection::vec(-3f32..3.0, 64)) {
            let (mut codes, mut scales) = (vec![0; 64], vec![f16::ZERO; 2]);
            let found = quantize_int8_row(&row, &mut codes, &mut scales).unwrap();
            let mut sum = ErrorSum::default();
            for (column, (&weight, &code)) in row.iter().zip(&codes).enumerate() {
                prop_assert!(code >= -INT8_MAX);
                let scale = scales[column / INT8_GROUP].to_f32();
                let decoded = f32::from(code) * scale;
                // Half a step, and what f16's rounding of the scale moves the last level by.
                prop_assert!((decoded - weight).abs() <= scale * (0.5 + 127.0 / 2048.0));
                sum.add(weight, decoded);
            }
            prop_assert!((found.squared_error - sum.squared_error).abs() <= ROUNDING * sum.squared_error);
        }
    }

    #[test]
    fn rows_of_one_value_keep_it() {
        for value in [0.0f32, 0.75, -0.75, 1e-3, -400_000.0, 1e-30, f32::from_bits(1)] {
            let found = int4(&[value; 32], None, 32).unwrap();
            // Below the smallest storable scale a weight becomes zero.
            let expected = if value.abs() < 1e-6 { 0.0 } else { value };
            for decoded in found.decoded() {
                assert!((decoded - expected).abs() <= expected.abs() / 200.0, "{value} became {decoded}");
            }
        }
    }

    #[test]
    fn an_outlier_does_not_take_the_other_weights_with_it() {
        // Where the outlier's column does not matter, the window closes around the others.
        let mut row: Vec<f32> = (0..32).map(|i| (i as f32 - 15.5) / 16.0).collect();
        row[7] = 1.2;
        let mut importance = vec![1.0; 32];
        importance[7] = 0.0;
        let found = int4(&row, Some(&importance), 32).unwrap();
        let plain_error = weighted_error(&row, &plain(&row), &importance);
        assert!(weighted_error(&row, &found.decoded(), &importance) < 0.9 * plain_error);
    }

    #[test]
    fn a_weight_that_no_group_can_hold_is_named_by_its_column() {
        for (hostile, int8_holds) in [(f32::NAN, false), (f32::INFINITY, false), (-1e38, false), (5e5, true)] {
            let mut row = vec![0.5; 96];
            row[70] = hostile;
            assert_eq!(int4(&row, None, 32).map(|found| found.codes), Err(70));
            let (mut codes, mut scales) = (vec![0; 96], vec![f16::ZERO; 3]);
            let int8 = quantize_int8_row(&row, &mut codes, &mut scales);
            assert_eq!(int8.map(|_| ()), if int8_holds { Ok(()) } else { Err(70) });
        }
        let mut row = vec![0.0; 32];
        (row[0], row[1]) = (MAX_INT4_WEIGHT, -MAX_INT4_WEIGHT);
        let found = int4(&row, None, 32).unwrap();
        assert!(found.sum.relative() < 0.1);
    }

    #[test]
    fn the_search_gains_on_the_plain_window() {
        // A bell of weights, sums of four uniform numbers; measured: 5 % less error.
        let mut state = 1u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let row: Vec<f32> = (0..4096).map(|_| (0..4).map(|_| uniform()).sum()).collect();
        let plain: Vec<f32> = row.chunks_exact(32).flat_map(plain).collect();
        let plain_error = weighted_error(&row, &plain, &vec![1.0; row.len()]).sqrt();
        let error = int4(&row, None, 32).unwrap().sum.squared_error.sqrt();
        assert!(error < 0.97 * plain_error, "error {error}, plain window {plain_error}");
    }
}
