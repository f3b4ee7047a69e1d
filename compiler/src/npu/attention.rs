//! Attention of a model's steps, as far as NPU programs compute it.

use std::collections::BTreeMap;

use unicorn_npu::attention::AttentionProblem;

use super::cost::attention_on_gpu;
use super::options::NpuOptions;
use crate::import::{FullHeads, ModelConfig};

/// The attention of each layer that has it, by shape, with its layers. `context_tokens`: the longest sequence.
///
/// # Errors
/// What the model's attention computes and NPU programs do not.
pub fn attention(
    config: &ModelConfig,
    options: &NpuOptions,
    context_tokens: usize,
) -> Result<BTreeMap<AttentionProblem, Vec<usize>>, &'static str> {
    if config.attention_softcap.is_some() {
        return Err("its scores have a soft cap");
    }
    if config.attention_sinks {
        return Err("its heads have sinks");
    }
    if config.latent.is_some() {
        return Err("its keys and values are latent vectors");
    }
    let mut found: BTreeMap<AttentionProblem, Vec<usize>> = BTreeMap::new();
    for (index, layer) in config.layers.iter().enumerate().filter(|(_, layer)| !layer.is_recurrent) {
        let FullHeads { n_kv_heads, head_dim, .. } = config.heads_of(index);
        // The first row of a step sees a window of keys, and each of the others one more.
        let visible = layer.window.map_or(context_tokens, |window| window.saturating_add(options.rows - 1));
        let problem = AttentionProblem {
            heads: n_kv_heads,
            rows: options.rows * (config.n_heads / n_kv_heads),
            keys: visible.min(context_tokens),
            depth: head_dim,
            columns: options.columns,
        };
        found.entry(problem).or_default().push(index);
    }
    Ok(found)
}

/// Seconds of each layer's attention on the GPU, by layer; none of a model whose attention no program computes.
pub fn attention_of_layers(config: &ModelConfig, options: &NpuOptions, context_tokens: usize) -> BTreeMap<usize, f64> {
    let by_shape = attention(config, options, context_tokens.max(options.rows)).unwrap_or_default();
    let of_shape = |(problem, layers): (AttentionProblem, Vec<usize>)| {
        let s = attention_on_gpu(&problem).s;
        layers.into_iter().map(move |layer| (layer, s))
    };
    by_shape.into_iter().flat_map(of_shape).collect()
}

/// A shape such as `attention-8x2048x8192x128`: heads of keys, query rows of each, keys, and values of a head.
pub fn name(problem: &AttentionProblem) -> String {
    let AttentionProblem { heads, rows, keys, depth, .. } = problem;
    format!("attention-{heads}x{rows}x{keys}x{depth}")
}
