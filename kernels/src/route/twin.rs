//! The kernel in plain loops, to check it by.

use super::spec::RouteSpec;

/// One row: its experts by falling logit, of equal ones the first, and their weights. `scale` is empty if experts have none.
pub fn twin_row(spec: &RouteSpec, logits: &[f32], scale: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let mut order: Vec<usize> = (0..spec.experts).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let chosen = &order[..spec.chosen];
    let most = logits[chosen[0]];
    let share = |&expert: &usize| (logits[expert] - most).exp();
    let total: f32 = if spec.normalized { chosen.iter().map(share).sum() } else { order.iter().map(share).sum() };
    let weight = |expert: &usize| share(expert) / total * if spec.scaled { scale[*expert] } else { 1.0 };
    (chosen.iter().map(|&expert| expert as u32).collect(), chosen.iter().map(weight).collect())
}
