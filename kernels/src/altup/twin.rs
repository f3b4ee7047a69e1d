//! The kernel in plain loops, to check it by.

use super::spec::AltUpSpec;

/// The streams in front of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// (width)
    pub active: Vec<f32>,
    /// (streams - 1, width)
    pub others: Vec<Vec<f32>>,
}

/// The streams behind a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Corrected {
    /// (width)
    pub active: Vec<f32>,
    /// The same times the factors of the weights: (width)
    pub scaled: Vec<f32>,
    /// (streams - 1, width)
    pub others: Vec<Vec<f32>>,
}

/// One row of a prediction from the streams before: `active` (width), `others` (streams - 1, width), and `weights` as
/// [`AltUpSpec`] has them: norm (width), router (streams, width), coefficients (streams², streams).
pub fn predict_row(spec: &AltUpSpec, active: &[f32], others: &[&[f32]], weights: &[f32]) -> Predicted {
    let modalities = modalities(spec, active, weights);
    let streams: Vec<&[f32]> = [active].into_iter().chain(others.iter().copied()).collect();
    let predicted = |stream: usize| {
        let coefs: Vec<f32> = (0..spec.streams)
            .map(|from| coefficient(spec, weights, spec.streams * stream + from, &modalities))
            .collect();
        let element = |column: usize| {
            let added: f32 = coefs.iter().zip(&streams).map(|(coef, from)| coef * from[column]).sum();
            streams[stream][column] + added
        };
        (0..spec.width).map(element).collect::<Vec<f32>>()
    };
    Predicted { active: predicted(0), others: (1..spec.streams).map(predicted).collect() }
}

/// One row of a correction by the layer's result `activated` (width) of the predicted streams `active` (width) and `others`
/// (streams - 1, width); `weights`: norm (width), router (streams, width), coefficients (streams, streams), factors (width).
pub fn correct_row(
    spec: &AltUpSpec,
    activated: &[f32],
    active: &[f32],
    others: &[&[f32]],
    weights: &[f32],
) -> Corrected {
    let modalities = modalities(spec, activated, weights);
    let corrected = |stream: usize, predicted: &[f32]| {
        let coef = 1.0 + coefficient(spec, weights, stream, &modalities);
        let element = |column: usize| predicted[column] + coef * (activated[column] - active[column]);
        (0..spec.width).map(element).collect::<Vec<f32>>()
    };
    let first = corrected(0, active);
    let scaled = first.iter().zip(&weights[spec.scale_at()..]).map(|(value, factor)| value * factor).collect();
    let others = others.iter().enumerate().map(|(other, predicted)| corrected(other + 1, predicted)).collect();
    Corrected { active: first, scaled, others }
}

/// The router's numbers of a row, one a stream.
fn modalities(spec: &AltUpSpec, row: &[f32], weights: &[f32]) -> Vec<f32> {
    let row = &row[..spec.width];
    let squares: f32 = row.iter().map(|x| x * x).sum();
    let scale = 1.0 / (squares / spec.width as f32 + spec.eps.get()).sqrt();
    let normed: Vec<f32> = row.iter().zip(weights).map(|(x, weight)| x * scale * weight).collect();
    let router = weights[spec.router_at()..].chunks_exact(spec.width).take(spec.streams);
    router.map(|weights| weights.iter().zip(&normed).map(|(weight, x)| weight * x).sum::<f32>().tanh()).collect()
}

/// Row `row` of the coefficients' matrix times the router's numbers.
fn coefficient(spec: &AltUpSpec, weights: &[f32], row: usize, modalities: &[f32]) -> f32 {
    let of_row = &weights[spec.coefs_at() + spec.streams * row..][..spec.streams];
    of_row.iter().zip(modalities).map(|(weight, modality)| weight * modality).sum()
}
