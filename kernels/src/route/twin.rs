//! The kernel in plain loops, to check it by.

use super::spec::{ExpertGroups, RouteSpec, Scores};

/// One row: its experts by falling score, of equal ones the first, then shared experts, and their weights. `scale` and `choice_bias` are empty if the spec has
/// none.
pub fn twin_row(spec: &RouteSpec, logits: &[f32], scale: &[f32], choice_bias: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let (logits, gate) = logits.split_at(spec.experts);
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let score = |logit: &f32| match spec.scores {
        Scores::Softmax => (logit - most).exp(),
        Scores::Sigmoid => sigmoid(*logit),
    };
    let scores: Vec<f32> = logits.iter().map(score).collect();
    let rank = |expert: usize| choice_bias.get(expert).map_or(logits[expert], |bias| scores[expert] + bias);
    let mut order: Vec<usize> = match spec.groups {
        None => (0..spec.experts).collect(),
        Some(groups) => experts_of_kept_groups(spec.experts, groups, rank),
    };
    order.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)).then(a.cmp(&b)));
    let chosen = &order[..spec.chosen];
    let total: f32 = match spec.scores {
        _ if spec.normalized => chosen.iter().map(|&expert| scores[expert]).sum(),
        Scores::Softmax => scores.iter().sum(),
        Scores::Sigmoid => 1.0,
    };
    let weight =
        |&expert: &usize| scores[expert] / total * spec.factor.get() * if spec.scaled { scale[expert] } else { 1.0 };
    let shared = spec.experts as u32..(spec.experts + spec.shared.count) as u32;
    let shared_weight = if spec.shared.gated { sigmoid(gate[0]) } else { 1.0 };
    let weights = chosen.iter().map(weight).chain(shared.clone().map(|_| shared_weight));
    (chosen.iter().map(|&expert| expert as u32).chain(shared).collect(), weights.collect())
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// The experts of the groups with the highest sums.
fn experts_of_kept_groups(experts: usize, groups: ExpertGroups, rank: impl Fn(usize) -> f32) -> Vec<usize> {
    let size = experts / groups.count;
    let sum = |group: usize| -> f32 {
        let mut ranks: Vec<f32> = (group * size..(group + 1) * size).map(&rank).collect();
        ranks.sort_by(|a, b| b.total_cmp(a));
        ranks[..groups.best_of].iter().sum()
    };
    let mut order: Vec<usize> = (0..groups.count).collect();
    order.sort_by(|&a, &b| sum(b).total_cmp(&sum(a)).then(a.cmp(&b)));
    order[..groups.kept].iter().flat_map(|group| group * size..(group + 1) * size).collect()
}
