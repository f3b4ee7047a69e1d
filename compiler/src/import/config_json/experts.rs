//! The fields of a mixture of experts.

use unicorn_kernels::route::ExpertGroups;

use super::super::experts_config::{ExpertsConfig, Routing};
use super::super::families::{ExpertDefaults, ExpertLayers, FamilyDefaults, Normalized, RoutingDefaults, SharedExpert};
use super::super::json::Fields;
use super::super::limits;
use crate::error::Result;

/// The experts of the layers that have them.
pub(super) fn experts(
    text: &Fields,
    defaults: &FamilyDefaults,
    intermediate_size: usize,
) -> Result<Option<ExpertsConfig>> {
    let Some(defaults) = &defaults.experts else { return Ok(None) };
    let size = |name: &str, default: usize| Ok(text.size(name, limits::INTERMEDIATE_SIZE)?.unwrap_or(default));
    let intermediate_size = match defaults.intermediate_size {
        Some(default) => size("moe_intermediate_size", default)?,
        None => intermediate_size,
    };
    let chosen = text.size("num_experts_per_tok", limits::EXPERTS)?.or(defaults.chosen);
    Ok(Some(ExpertsConfig {
        count: count(text, defaults)?,
        chosen: chosen.ok_or_else(|| text.error("num_experts_per_tok", "is missing, expected a number"))?,
        normalized: match defaults.normalized {
            Normalized::Never => false,
            Normalized::Always => true,
            Normalized::WhenAsked => text.flag("norm_topk_prob")?.unwrap_or(false),
            Normalized::UnlessForbidden => text.flag("norm_topk_prob")?.unwrap_or(true),
        },
        intermediate_size,
        shared_intermediate_size: match defaults.shared {
            SharedExpert::Absent => None,
            SharedExpert::Gated(default) => Some(size("shared_expert_intermediate_size", default)?),
            SharedExpert::Several(default) => {
                Some(intermediate_size * text.size("n_shared_experts", limits::EXPERTS)?.unwrap_or(default))
            }
        },
        names: defaults.names,
    }))
}

/// The number of experts. Most of transformers' classes read two or three names of it, and which one they write has changed.
fn count(text: &Fields, defaults: &ExpertDefaults) -> Result<usize> {
    for name in [defaults.count_field, "num_experts", "num_local_experts"] {
        if let Some(count) = text.size(name, limits::EXPERTS)? {
            return Ok(count);
        }
    }
    Ok(defaults.count)
}

/// Whether the shared expert, if there is one, has no gate.
pub(super) fn shared_is_ungated(defaults: &FamilyDefaults) -> bool {
    defaults.experts.as_ref().is_some_and(|experts| matches!(experts.shared, SharedExpert::Several(_)))
}

/// How experts are weighted, and by what they are chosen; `None`: by a softmax alone.
pub(super) fn routing(text: &Fields, defaults: &FamilyDefaults) -> Result<Option<Routing>> {
    let Some(experts) = &defaults.experts else { return Ok(None) };
    let (sigmoid, factor) = match experts.routing {
        RoutingDefaults::Softmax => return Ok(None),
        RoutingDefaults::ScaledSoftmax(factor) => (false, factor),
        RoutingDefaults::Sigmoid(factor) | RoutingDefaults::GroupedSigmoid { factor, .. } => (true, factor),
    };
    Ok(Some(Routing {
        sigmoid,
        choice_bias: sigmoid && text.flag("use_expert_bias")?.unwrap_or(true),
        factor: text.number("routed_scaling_factor")?.unwrap_or(factor) as f32,
    }))
}

/// The groups among whose best a row's experts are chosen; `None`: among all.
pub(super) fn groups(text: &Fields, defaults: &FamilyDefaults) -> Result<Option<ExpertGroups>> {
    let Some(experts) = &defaults.experts else { return Ok(None) };
    // A group's rank is its best expert's, or the sum of those of its two best.
    let (best_of, default) = match experts.routing {
        RoutingDefaults::ScaledSoftmax(_) if text.text("topk_method")? == Some("group_limited_greedy") => (1, None),
        RoutingDefaults::Softmax | RoutingDefaults::ScaledSoftmax(_) => return Ok(None),
        RoutingDefaults::Sigmoid(_) => (2, None),
        RoutingDefaults::GroupedSigmoid { groups, kept, .. } => (2, Some((groups, kept))),
    };
    let count = text.size("n_group", limits::EXPERTS)?.or(default.map(|(groups, _)| groups)).unwrap_or(1);
    let kept = text.size("topk_group", limits::EXPERTS)?.or(default.map(|(_, kept)| kept)).unwrap_or(count);
    Ok((kept < count).then_some(ExpertGroups { count, kept, best_of }))
}

/// Whether each layer has experts.
pub(super) fn layers(text: &Fields, defaults: &FamilyDefaults, n_layers: usize) -> Result<Vec<bool>> {
    let Some(experts) = &defaults.experts else { return Ok(vec![false; n_layers]) };
    match experts.layers {
        ExpertLayers::All => Ok(vec![true; n_layers]),
        ExpertLayers::Selected => {
            let step = text.size("decoder_sparse_step", limits::LAYERS)?.unwrap_or(1);
            let without = text.numbers("mlp_only_layers")?.unwrap_or_default();
            let is_sparse = |layer: usize| (layer + 1).is_multiple_of(step) && !without.contains(&(layer as f64));
            Ok((0..n_layers).map(is_sparse).collect())
        }
        ExpertLayers::AfterDense { field, default } => {
            let Some(types) = text.texts("mlp_layer_types")? else {
                // 0 is allowed here: every layer has experts.
                let dense = text.number(field)?.map_or(default, |dense| dense as usize);
                return Ok((0..n_layers).map(|layer| layer >= dense).collect());
            };
            if types.len() != n_layers {
                let what = format!("has {} entries, expected num_hidden_layers, {n_layers}", types.len());
                return Err(text.error("mlp_layer_types", &what));
            }
            let is_sparse = |kind: &str| match kind {
                "sparse" => Ok(true),
                "dense" => Ok(false),
                other => Err(text.error("mlp_layer_types", &format!("has {other:?}, expected sparse or dense"))),
            };
            types.into_iter().map(is_sparse).collect()
        }
    }
}
