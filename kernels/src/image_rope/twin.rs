//! The kernel in plain loops, to check it by.

use super::spec::ImageRopeSpec;

/// The kernel in plain loops: writes `output` (n_rows · side², output_stride) of `input`, for an image of `across` rows of the step from
/// left to right; `table`: as `image_rope_table` makes it.
pub fn twin(spec: &ImageRopeSpec, input: &[f32], table: &[[f32; 2]], n_rows: usize, across: usize, output: &mut [f32]) {
    let (side, dim) = (spec.side, spec.head_dim);
    for square in 0..n_rows {
        for inside in 0..side * side {
            let row = square * side * side + inside;
            let down = square / across * side + inside / side;
            let right = square % across * side + inside % side;
            for head in 0..spec.n_heads {
                for pair in 0..dim / 2 {
                    let (place, frequency) = if pair < dim / 4 { (down, pair) } else { (right, pair - dim / 4) };
                    let [cos, sin] = table[place * (dim / 4) + frequency];
                    let low = input[row * spec.input_stride + head * dim + pair];
                    let high = input[row * spec.input_stride + head * dim + pair + dim / 2];
                    let out = &mut output[row * spec.output_stride + head * dim..];
                    out[pair] = low * cos - high * sin;
                    out[pair + dim / 2] = high * cos + low * sin;
                }
            }
        }
    }
}
