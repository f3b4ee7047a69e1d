//! The kernel in plain loops, to check it by.

use super::spec::{RouteSpec, Scores};

/// One row: its experts by falling score, of equal ones the first, and their weights. `scale` and `choice_bias` are empty if the spec has
/// none.
pub fn twin_row(spec: &RouteSpec, logits: &[f32], scale: &[f32], choice_bias: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let logits = &logits[..spec.experts];
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let score = |logit: &f32| match spec.scores {
        Scores::Softmax => (logit - most).exp(),
        Scores::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
    };
    let scores: Vec<f32> = logits.iter().map(score).collect();
    let rank = |expert: usize| choice_bias.get(expert).map_or(logits[expert], |bias| scores[expert] + bias);
    let mut order: Vec<usize> = (0..spec.experts).collect();
    order.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)).then(a.cmp(&b)));
    let chosen = &order[..spec.chosen];
    let total: f32 = match spec.scores {
        _ if spec.normalized => chosen.iter().map(|&expert| scores[expert]).sum(),
        Scores::Softmax => scores.iter().sum(),
        Scores::Sigmoid => 1.0,
    };
    let weight =
        |&expert: &usize| scores[expert] / total * spec.factor.get() * if spec.scaled { scale[expert] } else { 1.0 };
    (chosen.iter().map(|&expert| expert as u32).collect(), chosen.iter().map(weight).collect())
}
