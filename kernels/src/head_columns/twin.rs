//! The kernel in plain loops, to check it by.

use super::spec::HeadColumnsSpec;

/// All rows of `output`, from rows of the sources.
pub fn twin(spec: &HeadColumnsSpec, sources: &[&[f32]], n_rows: usize, output: &mut [f32]) {
    for row in 0..n_rows {
        let mut head = 0;
        for block in &spec.blocks {
            for of_block in 0..block.n_heads {
                let mut at = row * spec.output_stride + head * spec.head_stride;
                for part in &block.parts {
                    let begin = row * spec.source_strides[part.source] + of_block * part.head_stride + part.first;
                    output[at..at + part.width].copy_from_slice(&sources[part.source][begin..begin + part.width]);
                    at += part.width;
                }
                head += 1;
            }
        }
    }
}
