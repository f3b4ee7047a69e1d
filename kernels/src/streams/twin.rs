//! The kernel in plain loops, to check it by.

use super::spec::{LEAST_SQUARE, StreamsForm, StreamsSpec};

/// What is made of one row of the input (width) and its rows of streams (others, width): rows of streams, or one row. `weight` is (width)
/// of [`StreamsForm::Add`], else empty.
pub fn twin_row(spec: &StreamsSpec, row: &[f32], streams: &[&[f32]], weight: &[f32]) -> Vec<Vec<f32>> {
    let mean_square = |row: &[f32]| row[..spec.width].iter().map(|x| x * x).sum::<f32>() / spec.width as f32;
    let alike = |stream: &&[f32]| {
        let factor = mean_square(row).sqrt() / mean_square(stream).max(LEAST_SQUARE).sqrt();
        stream[..spec.width].iter().map(|x| x * factor).collect::<Vec<f32>>()
    };
    match spec.form {
        StreamsForm::Begin => streams.iter().map(alike).collect(),
        StreamsForm::Add => {
            let scale = 1.0 / (mean_square(row) + spec.eps.get()).sqrt();
            let sum = |stream: &&[f32]| {
                let pairs = stream.iter().zip(row).zip(weight);
                pairs.take(spec.width).map(|((of_stream, x), weight)| of_stream + x * scale * weight).collect()
            };
            streams.iter().map(sum).collect()
        }
        StreamsForm::End => {
            let streams: Vec<Vec<f32>> = streams.iter().map(alike).collect();
            let mean = |column: usize| {
                let sum: f32 = row[column] + streams.iter().map(|stream| stream[column]).sum::<f32>();
                sum / (spec.others + 1) as f32
            };
            vec![(0..spec.width).map(mean).collect()]
        }
    }
}
