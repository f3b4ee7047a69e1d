//! The rotation of k in front of quantisation: an orthonormal Hadamard matrix on each block of 32 values.
//!
//! A row of activations has one scale, which its largest value sets; a rotation spreads that value over its block, so that the others keep more bits (as in
//! QuaRot, arXiv 2404.00456). Weights are rotated when they are packed and activations when they are quantised: `(H a) · (H w) = a · w`.

/// Values of k in a block; depths of programs are multiples of it.
pub const ROTATED: usize = 32;

/// Rotates each block of `values`; its own inverse.
///
/// # Panics
/// If `values` are not whole blocks.
pub fn rotate(values: &mut [f32]) {
    assert!(values.len().is_multiple_of(ROTATED), "{} values are not blocks of {ROTATED}", values.len());
    for block in values.chunks_exact_mut(ROTATED) {
        let mut half = 1;
        while half < ROTATED {
            for pair in block.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (low, high) in low.iter_mut().zip(high) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
            half *= 2;
        }
        block.iter_mut().for_each(|value| *value *= FACTOR);
    }
}

/// `values`, rotated, with zeros behind them up to `depth` values.
pub fn rotated(values: &[f32], depth: usize) -> Vec<f32> {
    let mut padded = vec![0.0; depth];
    padded[..values.len()].copy_from_slice(values);
    rotate(&mut padded);
    padded
}

/// 1 / √32: the matrix of ±1 becomes orthonormal.
pub const FACTOR: f32 = 0.176_776_7;

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, step: usize) -> Vec<f32> {
        (0..n).map(|index| ((index * step % 61) as f32 - 30.0) / 7.0).collect()
    }

    /// From the definition: element (i, j) is -1 to the number of bits that i and j share.
    #[test]
    fn a_block_is_multiplied_by_the_hadamard_matrix() {
        let values = values(2 * ROTATED, 17);
        let found = rotated(&values, 2 * ROTATED);
        for (row, found) in found.iter().enumerate() {
            let block = &values[row / ROTATED * ROTATED..][..ROTATED];
            let sign = |column: usize| if (row & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            let sum: f64 =
                block.iter().enumerate().map(|(column, value)| sign(column % ROTATED) * f64::from(*value)).sum();
            let expected = sum / 32f64.sqrt();
            assert!((expected - f64::from(*found)).abs() < 1e-5, "{row}: {found} for {expected}");
        }
    }

    #[test]
    fn products_of_rotated_vectors_are_those_of_the_vectors() {
        let (a, b) = (values(50, 13), values(50, 29));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        assert!((dot(&a, &b) - dot(&rotated(&a, 64), &rotated(&b, 64))).abs() < 1e-4);
        let mut twice = rotated(&a, 64);
        rotate(&mut twice);
        assert!(a.iter().chain(&[0.0; 14]).zip(&twice).all(|(a, twice)| (a - twice).abs() < 1e-5));
    }
}
