//! The kernel in plain loops, to check it by.

use unicorn_artifact::step::IMAGE_ROW;

use super::spec::EmbedSpec;

/// The kernel in plain loops: `output` is (tokens, output_stride), `input_rows`, which may be empty, (tokens, image_stride); rows of tokens
/// outside the table stay as they are.
pub fn twin(spec: &EmbedSpec, packed: &[u8], tokens: &[u32], input_rows: &[f32], output: &mut [f32]) {
    let mut weights = vec![0f32; spec.layout.cols];
    for (row, &token) in tokens.iter().enumerate() {
        if let Some(image_stride) = spec.image_stride.filter(|_| token >= IMAGE_ROW) {
            let of_row = &input_rows[row * image_stride..][..spec.layout.cols];
            output[row * spec.output_stride..][..spec.layout.cols].copy_from_slice(of_row);
            continue;
        }
        let token = if spec.table_tokens.is_some_and(|tokens| token as usize >= tokens) { 0 } else { token };
        let Some(table_row) = (token as usize).checked_sub(spec.first_token).filter(|&row| row < spec.layout.rows)
        else {
            continue;
        };
        spec.layout.decode_row(packed, table_row, &mut weights);
        for (out, weight) in output[row * spec.output_stride..].iter_mut().zip(&weights) {
            *out = weight * spec.scale.get();
        }
    }
}
