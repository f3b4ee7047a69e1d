//! Weights to INT4 and INT8 codes.

use artifacts::int4::{INT8_GROUP, INT8_MAX, Int4Params};
use half::f16;

/// Squared error of a quantisation and the squared weights it is measured against.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorSum {
    pub squared_error: f64,
    pub squared_weight: f64,
}

impl ErrorSum {
    pub fn add(&mut self, weight: f32, decoded: f32) {
        self.squared_error += f64::from(weight - decoded).powi(2);
        self.squared_weight += f64::from(weight).powi(2);
    }

    pub fn merge(&mut self, other: &ErrorSum) {
        self.squared_error += other.squared_error;
        self.squared_weight += other.squared_weight;
    }

    pub fn relative(&self) -> f64 {
        if self.squared_weight > 0.0 { (self.squared_error / self.squared_weight).sqrt() } else { 0.0 }
    }
}

pub fn quantize_int4_row(
    row: &[f32],
    _column_weight: Option<&[f32]>,
    group: usize,
    codes: &mut [u8],
    params: &mut [Int4Params],
) -> Result<ErrorSum, usize> {
    let mut sum = ErrorSum::default();
    for (index, weights) in row.chunks_exact(group).enumerate() {
        if let Some(at) = weights.iter().position(|w| !w.is_finite()) {
            return Err(index * group + at);
        }
        let low = weights.iter().copied().fold(0.0, f32::min);
        let high = weights.iter().copied().fold(0.0, f32::max);
        let scale = (high - low) / 15.0;
        let zero = if scale > 0.0 { (-low / scale).round().clamp(0.0, 15.0) as u8 } else { 0 };
        let param = Int4Params::new(scale, zero);
        params[index] = param;
        let inverse = if param.scale() > 0.0 { 1.0 / param.scale() } else { 0.0 };
        for (code, &w) in codes[index * group..].iter_mut().zip(weights) {
            *code = (w * inverse + f32::from(zero)).round().clamp(0.0, 15.0) as u8;
            sum.add(w, param.decode(*code));
        }
    }
    Ok(sum)
}

pub fn quantize_int8_row(row: &[f32], codes: &mut [i8], scales: &mut [f16]) -> Result<ErrorSum, usize> {
    let mut sum = ErrorSum::default();
    for (index, weights) in row.chunks_exact(INT8_GROUP).enumerate() {
        if let Some(at) = weights.iter().position(|w| !w.is_finite()) {
            return Err(index * INT8_GROUP + at);
        }
        let most = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        let scale = f16::from_f32(most / f32::from(INT8_MAX));
        scales[index] = scale;
        let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
        for (code, &w) in codes[index * INT8_GROUP..].iter_mut().zip(weights) {
            *code = (w * inverse).round().clamp(-127.0, 127.0) as i8;
            sum.add(w, f32::from(*code) * scale.to_f32());
        }
    }
    Ok(sum)
}
