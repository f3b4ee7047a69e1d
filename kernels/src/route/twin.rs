//! The kernel in plain loops, to check it by.

use super::spec::RouteSpec;

/// One row: its experts by falling logit, of equal ones the first, and their weights.
pub fn twin_row(spec: &RouteSpec, logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let mut order: Vec<usize> = (0..spec.experts).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let chosen = &order[..spec.chosen];
    let most = logits[chosen[0]];
    let share = |&expert: &usize| (logits[expert] - most).exp();
    let total: f32 = if spec.normalized { chosen.iter().map(share).sum() } else { order.iter().map(share).sum() };
    (chosen.iter().map(|&expert| expert as u32).collect(), chosen.iter().map(|expert| share(expert) / total).collect())
}
