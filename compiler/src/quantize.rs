//! Weights to INT4 and INT8 codes, one row at a time.
//!
//! Nothing is known here but the weights and, where the caller has it, how strongly each column is driven. The search
//! for an INT4 group's scale and zero point is `int4_group`'s story; why it is this one, with figures, is
//! `docs/quantization.md`'s.

mod int4_group;

use artifacts::int4::{INT8_GROUP, INT8_MAX, Int4Params};
use half::f16;

use int4_group::{MAX_INT4_WEIGHT, quantize_int4_group};

/// Quantises one row to INT4; a padding zero gets its group's zero point as code and stays exactly zero.
///
/// ```text
/// row             (cols)          f32, cols a multiple of `group`
/// column_weight   (cols)          importance of each column's squared error, finite and not negative
/// codes           (cols)          0..=15, written
/// params          (cols / group)  scale and zero point, written
/// ```
///
/// The weighted squared error of a group is never larger than that of its plain minimum-to-maximum quantisation.
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

/// Quantises one row to INT8: the largest weight of each group becomes ±127.
///
/// `row` (cols), `codes` (cols), `scales` (cols / [`INT8_GROUP`]).
///
/// # Errors
/// The first column whose weight is not finite or beyond the format's range.
///
/// # Panics
/// If a length is not as above.
pub fn quantize_int8_row(row: &[f32], codes: &mut [i8], scales: &mut [f16]) -> Result<ErrorSum, usize> {
    let (groups, rest) = row.as_chunks::<INT8_GROUP>();
    assert!(rest.is_empty(), "INT8 row must be whole groups of {INT8_GROUP}, found {} columns", row.len());
    assert_eq!(codes.len(), row.len(), "INT8 codes must be as many as the row's weights");
    assert_eq!(scales.len(), groups.len(), "INT8 scales must be one a group");

    let mut sum = ErrorSum::default();
    let code_groups = codes.as_chunks_mut::<INT8_GROUP>().0;
    for (index, ((weights, codes), scale)) in groups.iter().zip(code_groups).zip(scales).enumerate() {
        check_range(weights, MAX_INT8_WEIGHT).map_err(|column| index * INT8_GROUP + column)?;
        sum.merge(&quantize_int8_group(weights, codes, scale));
    }
    Ok(sum)
}

/// Squared error of a quantisation and the squared weights it is measured against.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorSum {
    pub squared_error: f64,
    pub squared_weight: f64,
}

impl ErrorSum {
    pub fn add(&mut self, weight: f32, decoded: f32) {
        self.squared_error += (f64::from(weight) - f64::from(decoded)).powi(2);
        self.squared_weight += f64::from(weight).powi(2);
    }

    pub fn merge(&mut self, other: &ErrorSum) {
        self.squared_error += other.squared_error;
        self.squared_weight += other.squared_weight;
    }

    /// Root mean square of the error over that of the weights; 0 when all weights are zero.
    pub fn relative(&self) -> f64 {
        if self.squared_weight > 0.0 { (self.squared_error / self.squared_weight).sqrt() } else { 0.0 }
    }
}

/// Largest magnitude whose scale is a finite f16.
const MAX_INT8_WEIGHT: f32 = 65504.0 * INT8_MAX as f32;

fn quantize_int4_groups<const GROUP: usize>(
    row: &[f32],
    column_weight: Option<&[f32]>,
    codes: &mut [u8],
    params: &mut [Int4Params],
) -> Result<ErrorSum, usize> {
    let (groups, rest) = row.as_chunks::<GROUP>();
    assert!(rest.is_empty(), "INT4 row must be whole groups of {GROUP}, found {} columns", row.len());
    assert_eq!(codes.len(), row.len(), "INT4 codes must be as many as the row's weights");
    assert_eq!(params.len(), groups.len(), "INT4 parameters must be one a group");
    let importances = column_weight.map(|weights| {
        assert_eq!(weights.len(), row.len(), "column weights must be as many as the row's weights");
        weights.as_chunks::<GROUP>().0
    });

    let mut sum = ErrorSum::default();
    let code_groups = codes.as_chunks_mut::<GROUP>().0;
    for (index, ((weights, codes), params)) in groups.iter().zip(code_groups).zip(params).enumerate() {
        check_range(weights, MAX_INT4_WEIGHT).map_err(|column| index * GROUP + column)?;
        let importance = importances.map_or(&[1.0; GROUP], |importances| &importances[index]);
        *params = quantize_int4_group(weights, importance, codes);
        for (&weight, &code) in weights.iter().zip(codes.iter()) {
            sum.add(weight, params.decode(code));
        }
    }
    Ok(sum)
}

fn quantize_int8_group(
    weights: &[f32; INT8_GROUP],
    codes: &mut [i8; INT8_GROUP],
    stored_scale: &mut f16,
) -> ErrorSum {
    let most = weights.iter().fold(0.0f32, |most, weight| most.max(weight.abs()));
    *stored_scale = f16::from_f32(most / f32::from(INT8_MAX));
    let scale = stored_scale.to_f32();
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut sum = ErrorSum::default();
    for (&weight, code) in weights.iter().zip(codes) {
        // A scale that f16 rounded down would otherwise ask for ±128.
        let level = (weight * inverse).round_ties_even().clamp(-127.0, 127.0);
        *code = level as i8;
        sum.add(weight, level * scale);
    }
    sum
}

/// The first column that is not finite or larger than `most` in magnitude, as the error.
fn check_range(weights: &[f32], most: f32) -> Result<(), usize> {
    // Counting first leaves a loop without an early exit, which runs on vectors.
    let in_range = |weight: &f32| weight.abs() <= most;
    let count = weights.iter().map(|weight| u32::from(in_range(weight))).sum::<u32>() as usize;
    if count == weights.len() {
        return Ok(());
    }
    Err(weights.iter().position(|weight| !in_range(weight)).expect("a weight is out of range"))
}
