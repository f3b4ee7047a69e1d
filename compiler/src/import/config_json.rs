//! From a Hugging Face config.json to a [`ModelConfig`], in either dialect: what transformers 4 writes and what
//! transformers 5 does. Fields that are missing take the family's defaults.

mod experts;
pub(super) mod gemma3n;
mod gemma4;
mod latent;
mod lfm2;
#[cfg(test)]
mod tests;
mod vision;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use unicorn_kernels::activation::{SWIGLU_ALPHA, SWIGLU_LIMIT};

use super::config::{Activation, DeltaConfig, LayerConfig, ModelConfig, QkNorm, RopeConfig};
use super::families::{AskedWindows, Bias, FamilyDefaults, Rotated, Windows, family_of, model_type_of};
use super::full_heads;
use super::json::Fields;
use super::limits;
use super::packed_int4::Scheme;
use super::predictor::Head;
use super::rope_json::{
    CONVOLUTION, FULL_ATTENTION, LINEAR_ATTENTION, LayerRope, SLIDING_ATTENTION, layer_rope, query_growth,
};
use crate::error::{CompileError, Result};

pub(super) use vision::{GRID_PIXELS, read_processor, rope_sections};

/// Reads the whole model from config.json's parsed `config`; `path` is for messages.
pub(super) fn model_config(path: &Path, config: &Value) -> Result<ModelConfig> {
    let root = Fields::root(path, config)?;
    let family = family_of(&root)?;
    let text = if family.text_models.is_empty() {
        Fields::root(path, config)?
    } else {
        root.object("text_config")?.ok_or_else(|| root.error("text_config", "is missing, expected an object"))?
    };
    let defaults = family.text_model(&text)?;
    refuse_what_we_do_not_do(&root)?;
    refuse_what_we_do_not_do(&text)?;
    if defaults.is_hybrid {
        refuse_hybrids(&text, defaults)?;
    }

    let size = |name: &str, max: usize, default: usize| Ok(text.size(name, max)?.unwrap_or(default));
    let hidden_size = size("hidden_size", limits::HIDDEN_SIZE, defaults.hidden_size)?;
    let n_heads = size("num_attention_heads", limits::HEADS, defaults.heads)?;
    let latent = latent::latent(&text, defaults)?;
    let n_kv_heads = match text.size("num_key_value_heads", limits::HEADS)? {
        // All heads share a token's latent vector.
        _ if latent.is_some() => 1,
        Some(n_kv_heads) => n_kv_heads,
        None if text.is_written("num_key_value_heads") => n_heads,
        None => defaults.kv_heads.unwrap_or(n_heads),
    };
    let head_dim = match &latent {
        Some(latent) => latent.cached_dim(),
        None => head_dim(&text, defaults, hidden_size, n_heads)?,
    };
    let n_layers = size("num_hidden_layers", limits::LAYERS, defaults.layers)?;
    let max_positions = size("max_position_embeddings", limits::POSITIONS, defaults.max_positions)?;

    let streams = gemma3n::streams(&text, defaults, n_layers)?;
    let mut intermediate_size = match &streams {
        Some(streams) => streams.mlp_widths.iter().copied().max().unwrap_or(defaults.intermediate_size),
        None => size(defaults.intermediate_field, limits::INTERMEDIATE_SIZE, defaults.intermediate_size)?,
    };
    if defaults.short_conv_taps.is_some() && defaults.experts.is_none() {
        intermediate_size = lfm2::intermediate_size(&text, intermediate_size)?;
    }
    let full_heads = full_heads::full_heads(&text, defaults, n_kv_heads, head_dim)?;
    let experts = match full_heads {
        Some(_) => gemma4::experts(&text)?,
        None => experts::experts(&text, defaults, intermediate_size)?,
    };
    let rotated_dim = latent.map_or(head_dim, |latent| latent.rope_dim);
    let head_dims = HeadDims { windowed: rotated_dim, full: full_heads.map_or(rotated_dim, |heads| heads.head_dim) };
    let Layers { mut layers, ropes, max_positions } = read_layers(&text, defaults, n_layers, head_dims, max_positions)?;
    let (mut kv_shared_layers, mut double_wide_mlp, mut per_layer_inputs) = (0, false, None);
    if full_heads.is_some() {
        full_heads::check_layers(&text, &layers)?;
        gemma4::refuse_no_window(&text)?;
        per_layer_inputs = gemma4::per_layer_inputs(&text)?;
        (kv_shared_layers, double_wide_mlp) = gemma4::shared_layers(&text, n_layers)?;
        layers.iter_mut().for_each(|layer| layer.has_experts = experts.is_some());
    }
    if streams.is_some() {
        gemma4::refuse_no_window(&text)?;
        per_layer_inputs = Some(gemma3n::per_layer_inputs(&text)?);
        kv_shared_layers = gemma3n::shared_layers(&text, n_layers)?;
    }

    let delta = delta(&text, defaults)?;
    let short_conv_taps = lfm2::short_conv_taps(&text, defaults)?;
    let gemma = defaults.gemma.as_ref();
    let multipliers = Multipliers::read(&text, defaults)?;
    let query_scale = match (gemma, &multipliers) {
        // Configs of Gemma 3n have a scalar that transformers does not read.
        (Some(_), _) if streams.is_some() => 1.0,
        (Some(gemma), _) => 1.0 / text.number("query_pre_attn_scalar")?.unwrap_or(gemma.query_pre_attn_scalar).sqrt(),
        (None, Some(multipliers)) => multipliers.attention,
        (None, None) => match &latent {
            Some(latent) => latent::query_scale(&text, latent)?,
            None => 1.0 / (head_dim as f64).sqrt(),
        },
    };
    let embedding_scale = match (gemma, &multipliers) {
        (Some(_), _) => (hidden_size as f32).sqrt(),
        (None, Some(multipliers)) => (multipliers.embedding / multipliers.residual) as f32,
        (None, None) => 1.0,
    };
    let rms_norm_eps = text.number(defaults.norm_eps_field)?.unwrap_or(defaults.rms_norm_eps);
    let residual = multipliers.as_ref().map_or(1.0, |multipliers| multipliers.residual);
    let softcap = |name: &str, default: Option<f64>| {
        let cap = if text.is_written(name) { text.number(name)? } else { default };
        Ok(cap.map(|cap| cap as f32).filter(|_| gemma.is_some()))
    };
    let (qkv_bias, o_bias, mlp_bias) = match defaults.bias {
        Bias::Never => (false, false, false),
        Bias::Qkv => (true, false, false),
        Bias::QkvUnlessForbidden => (text.flag("qkv_bias")?.unwrap_or(true), false, false),
        Bias::QkvAsConfigured(default) => (text.flag("attention_bias")?.unwrap_or(default), false, false),
        Bias::AttentionUnlessForbidden => {
            let attention = text.flag("attention_bias")?.unwrap_or(true);
            (attention, attention, false)
        }
        Bias::AttentionAsConfigured => {
            let attention = text.flag("attention_bias")?.unwrap_or(false);
            (attention, attention, false)
        }
        Bias::AsConfigured => {
            let attention = text.flag("attention_bias")?.unwrap_or(false);
            (attention, attention, text.flag("mlp_bias")?.unwrap_or(false))
        }
    };
    let of_text = text.flag(lfm2::tie_field(&text, defaults))?;
    let tied_embeddings = match root.flag("tie_word_embeddings")?.filter(|_| !family.text_models.is_empty()) {
        // The head is beside a multimodal model's text part, and so is what states whether it is the embedding. But transformers adds a true
        // to configs that state nothing there, and ties no head that the folder has and that is another one.
        Some(true) => of_text.unwrap_or(true),
        Some(false) => false,
        None => of_text.unwrap_or(defaults.tied_embeddings),
    };

    let model = ModelConfig {
        architecture: family.architecture.to_owned(),
        hidden_size,
        intermediate_size,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab_size: size("vocab_size", limits::VOCAB_SIZE, defaults.vocab_size)?,
        max_positions,
        layers,
        ropes,
        rms_norm_eps: (rms_norm_eps / (residual * residual)) as f32,
        norm_offset: if gemma.is_some_and(|gemma| gemma.norms_add_one) || delta.is_some() { 1.0 } else { 0.0 },
        activation: activation(&text, defaults)?,
        tied_embeddings,
        embedding_scale,
        query_scale: query_scale as f32,
        query_growth: if defaults.query_growth { query_growth(&text)? } else { None },
        attention_softcap: softcap("attn_logit_softcapping", gemma.and_then(|gemma| gemma.attention_softcap))?
            .filter(|_| streams.is_none()),
        final_softcap: softcap("final_logit_softcapping", gemma.and_then(|gemma| gemma.final_softcap))?,
        logits_scale: multipliers.as_ref().map_or(1.0, |multipliers| 1.0 / multipliers.logits) as f32,
        pre_norms: defaults.pre_norms,
        post_norms: defaults.post_norms,
        qk_norm: match defaults.qk_norm_as_configured && text.flag("use_qk_norm")?.unwrap_or(false) {
            true => QkNorm::Heads,
            false => defaults.qk_norm,
        },
        qkv_bias,
        o_bias,
        mlp_bias,
        folder: defaults.folder,
        experts_beside_mlp: full_heads.is_some() && experts.is_some(),
        experts,
        delta,
        attention_gate: delta.is_some(),
        attention_sinks: defaults.sinks_and_expert_bias,
        expert_bias: defaults.sinks_and_expert_bias,
        short_conv_taps,
        kept_codes: BTreeMap::new(),
        full_heads,
        value_norm: full_heads.is_some() || streams.is_some(),
        layer_scalars: full_heads.is_some(),
        kv_shared_layers,
        double_wide_mlp,
        per_layer_inputs,
        routing: experts::routing(&text, defaults)?,
        shared_expert_ungated: experts::shared_is_ungated(defaults),
        latent,
        vision: vision::vision(&root, &text, family)?,
        expert_groups: experts::groups(&text, defaults)?,
        predictor: false,
        streams,
    };
    model.check().map_err(|what| CompileError::malformed(path, what))?;
    Ok(model)
}

/// config.json of the text model: `config` itself, or the part of a multimodal one, in the form that transformers reads for a
/// text model alone.
pub(super) fn text_config(path: &Path, config: &Value, model: &ModelConfig) -> Result<Value> {
    let root = Fields::root(path, config)?;
    let family = family_of(&root)?;
    let Some(text) = root.object("text_config")?.filter(|_| !family.text_models.is_empty()) else {
        return Ok(config.clone());
    };
    let text_model = family.text_model(&text)?;
    let mut text = config["text_config"].clone();
    text["architectures"] = json!([text_model.architecture]);
    text["model_type"] = json!(model_type_of(text_model));
    text["tie_word_embeddings"] = json!(model.tied_embeddings);
    if let Some(experts) = &model.experts {
        // Qwen3-VL's class has no such field, that of its text model another default.
        text["norm_topk_prob"] = json!(experts.normalized);
    }
    Ok(text)
}

/// Whether the head is the embedding if the folder has no head: transformers ties them in a multimodal model unless its config.json
/// forbids it outside the text part.
pub(super) fn head_may_be_missing(path: &Path, config: &Value) -> Result<bool> {
    let root = Fields::root(path, config)?;
    Ok(!family_of(&root)?.text_models.is_empty() && root.flag("tie_word_embeddings")? != Some(false))
}

/// How weights are packed, if they are.
pub(super) fn packing(path: &Path, config: &Value) -> Result<Option<Scheme>> {
    Scheme::read(&Fields::root(path, config)?)
}

/// The head that predicts the token behind the next one, where config.json states its layers.
pub(super) fn predictor(path: &Path, config: &Value) -> Result<Option<Head>> {
    let root = Fields::root(path, config)?;
    let of_text = root.object("text_config")?.filter(|_| !family_of(&root).is_ok_and(|one| one.text_models.is_empty()));
    let text = of_text.unwrap_or(root);
    let n_layers = text.number("mtp_num_hidden_layers")?.map_or(0, |n_layers| n_layers as usize);
    let has_own_embedding = text.flag("mtp_use_dedicated_embeddings")?.unwrap_or(false);
    Ok((n_layers > 0).then_some(Head { n_layers, has_own_embedding }))
}

/// `eos_token_id` of config.json or, failing that, of its `text_config`.
pub(super) fn stop_ids(path: &Path, config: &Value) -> Result<Option<Vec<u32>>> {
    let root = Fields::root(path, config)?;
    match (root.token_ids("eos_token_id")?, root.object("text_config")?) {
        (None, Some(text)) => text.token_ids("eos_token_id"),
        (stop_ids, _) => Ok(stop_ids),
    }
}

fn refuse_what_we_do_not_do(fields: &Fields) -> Result<()> {
    let unsupported =
        |what: &str, detail: &str| Err(CompileError::Unsupported { what: what.to_owned(), detail: detail.to_owned() });
    Scheme::read(fields)?;
    if fields.number("clip_qkv")?.is_some() {
        return unsupported("clip_qkv", "queries, keys and values are not clipped");
    }
    // Gemma 4's attention is bidirectional only among the tokens of an image.
    let is_causal = |value: &Value| *value == Value::Bool(false) || *value == "vision";
    if fields.value("use_bidirectional_attention").is_some_and(|value| !is_causal(value)) {
        return unsupported("use_bidirectional_attention", "text is generated with causal attention");
    }
    Ok(())
}

/// Refuses layers without attention, and experts beside the MLP.
fn refuse_hybrids(text: &Fields, defaults: &FamilyDefaults) -> Result<()> {
    let unsupported = |what: String, detail: &str| Err(CompileError::Unsupported { what, detail: detail.to_owned() });
    let experts = if text.is_written("num_local_experts") { text.number("num_local_experts")? } else { Some(8.0) };
    if experts.is_some_and(|experts| experts > 0.0) {
        return unsupported(
            format!("num_local_experts {} of {}", experts.unwrap_or_default(), defaults.architecture),
            "expected 0: its dense models are compiled",
        );
    }
    if text.texts("layer_types")?.is_none() {
        return unsupported(
            format!("layers of Mamba in {}", defaults.architecture),
            "layer_types is missing, and then all are; its models with attention alone are compiled",
        );
    }
    Ok(())
}

/// Granite's factors, each of which must be above 0.
///
/// The residual stream is stored divided by `residual`, so that a sum needs no factor. The result of a norm is the same if its
/// epsilon is divided by the factor's square.
struct Multipliers {
    embedding: f64,
    residual: f64,
    attention: f64,
    /// Divides the logits.
    logits: f64,
}

impl Multipliers {
    fn read(text: &Fields, defaults: &FamilyDefaults) -> Result<Option<Multipliers>> {
        if !defaults.multipliers {
            return Ok(None);
        }
        let factor = |name: &str| match text.number(name)?.unwrap_or(1.0) {
            factor if factor.is_finite() && factor > 0.0 => Ok(factor),
            factor => Err(text.error(name, &format!("is {factor}, expected a finite number above 0"))),
        };
        Ok(Some(Multipliers {
            embedding: factor("embedding_multiplier")?,
            residual: factor("residual_multiplier")?,
            attention: factor("attention_multiplier")?,
            logits: factor("logits_scaling")?,
        }))
    }
}

fn head_dim(text: &Fields, defaults: &FamilyDefaults, hidden_size: usize, n_heads: usize) -> Result<usize> {
    let written = text.size("head_dim", limits::HEAD_DIM)?.or(defaults.head_dim);
    let head_dim = match written {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
        None => {
            let what = format!("is {hidden_size}, expected a multiple of num_attention_heads, {n_heads}");
            return Err(text.error("hidden_size", &what));
        }
    };
    if !head_dim.is_multiple_of(2) || head_dim > limits::HEAD_DIM {
        let what = format!("is {head_dim}, expected an even number up to {}", limits::HEAD_DIM);
        return Err(text.error("head_dim", &what));
    }
    Ok(head_dim)
}

fn activation(text: &Fields, defaults: &FamilyDefaults) -> Result<Activation> {
    if defaults.activation == Activation::ClampedSwiGlu {
        return clamped_swiglu(text);
    }
    match text.text(defaults.activation_field)? {
        None => Ok(defaults.activation),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some(other) => Err(CompileError::Unsupported {
            what: format!("{} {other}", defaults.activation_field),
            detail: "supported are silu and gelu_pytorch_tanh".to_owned(),
        }),
    }
}

/// gpt-oss' SwiGLU, whose constants are the same in all models.
fn clamped_swiglu(text: &Fields) -> Result<Activation> {
    for (name, expected) in [("swiglu_alpha", SWIGLU_ALPHA), ("swiglu_limit", SWIGLU_LIMIT)] {
        if let Some(found) = text.number(name)?.filter(|found| *found as f32 != expected) {
            return Err(text.error(name, &format!("is {found}, expected {expected}, which is compiled")));
        }
    }
    match text.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(Activation::ClampedSwiGlu),
        Some(other) => Err(CompileError::Unsupported {
            what: format!("hidden_act {other}"),
            detail: "supported is silu, which is clamped here".to_owned(),
        }),
    }
}

/// The gated delta net of the layers that have one.
fn delta(text: &Fields, defaults: &FamilyDefaults) -> Result<Option<DeltaConfig>> {
    let Some(defaults) = &defaults.delta else { return Ok(None) };
    let size = |name: &str, default: usize| Ok(text.size(name, limits::HEADS)?.unwrap_or(default));
    Ok(Some(DeltaConfig {
        key_heads: size("linear_num_key_heads", defaults.key_heads)?,
        value_heads: size("linear_num_value_heads", defaults.value_heads)?,
        key_dim: size("linear_key_head_dim", defaults.head_dim)?,
        value_dim: size("linear_value_head_dim", defaults.head_dim)?,
        taps: size("linear_conv_kernel_dim", defaults.taps)?,
    }))
}

/// The layers, the rotary embeddings that they share, and the longest context, in tokens, that those were made for.
struct Layers {
    layers: Vec<LayerConfig>,
    ropes: Vec<RopeConfig>,
    max_positions: usize,
}

/// Elements of a head, by a layer's window.
#[derive(Clone, Copy)]
struct HeadDims {
    windowed: usize,
    full: usize,
}

/// Reads the facts of each layer in config.json; equal rotary embeddings are kept once.
fn read_layers(
    text: &Fields,
    defaults: &FamilyDefaults,
    n_layers: usize,
    head_dims: HeadDims,
    max_positions: usize,
) -> Result<Layers> {
    let mut found = Layers { layers: Vec::with_capacity(n_layers), ropes: Vec::new(), max_positions };
    // There are few kinds of layers; each is read once.
    let mut rope_of_type: BTreeMap<&str, usize> = BTreeMap::new();
    for LayerFacts { layer_type, window, is_rotated, has_experts, is_recurrent } in
        layer_facts(text, defaults, n_layers)?
    {
        if is_rotated && !rope_of_type.contains_key(layer_type) {
            let head_dim = if layer_type == SLIDING_ATTENTION { head_dims.windowed } else { head_dims.full };
            let LayerRope { rope, max_positions } = layer_rope(text, defaults, layer_type, head_dim, max_positions)?;
            found.max_positions = found.max_positions.max(max_positions);
            let known = found.ropes.iter().position(|known| *known == rope);
            rope_of_type.insert(layer_type, known.unwrap_or(found.ropes.len()));
            found.ropes.extend(known.is_none().then_some(rope));
        }
        let rope = is_rotated.then(|| rope_of_type[layer_type]);
        found.layers.push(LayerConfig { window, rope, has_experts, is_recurrent });
    }
    Ok(found)
}

/// The facts of one layer in config.json.
struct LayerFacts {
    /// The layer's type in `layer_types`, which decides which rotary embedding it has.
    layer_type: &'static str,
    /// Tokens that it attends to, its own included; `None`: all.
    window: Option<usize>,
    /// Whether queries and keys are rotated.
    is_rotated: bool,
    /// Whether experts replace the MLP.
    has_experts: bool,
    /// Whether a gated delta net or a short convolution replaces attention.
    is_recurrent: bool,
}

fn layer_facts(text: &Fields, defaults: &FamilyDefaults, n_layers: usize) -> Result<Vec<LayerFacts>> {
    // Read for every family, so that an unsupported type is refused even where transformers ignores the field.
    let written_types = layer_types(text, n_layers)?;
    let sliding_window = |default: Option<usize>| {
        let window = text.size("sliding_window", limits::POSITIONS)?;
        Ok(if text.is_written("sliding_window") { window } else { default })
    };
    let types = written_types.as_deref();
    let rotated = rotated_layers(text, defaults, n_layers)?;
    let has_experts = experts::layers(text, defaults, n_layers)?;
    // The window of sliding layers; which layers those are without `layer_types`; and `layer_types`, where the family reads it.
    type Slides = Box<dyn Fn(usize) -> bool>;
    let (window, slides, types): (Option<usize>, Slides, _) = match defaults.windows {
        Windows::Never => (None, Box::new(|_| false), None),
        Windows::EveryLayer(window) => (sliding_window(window)?, Box::new(|_| true), None),
        Windows::WhenAsked { .. } | Windows::Unrotated if !text.flag("use_sliding_window")?.unwrap_or(false) => {
            (None, Box::new(|_| false), None)
        }
        Windows::Unrotated => {
            let rotated = rotated.clone();
            (sliding_window(None)?, Box::new(move |layer| !rotated[layer]), types)
        }
        Windows::WhenAsked { window, layers } => {
            let window = sliding_window(Some(window))?;
            // 0 is allowed here.
            let written = text.number("max_window_layers")?.map(|layers| layers as usize);
            match layers {
                AskedWindows::All => (window, Box::new(|_| true), None),
                AskedWindows::From(default) => {
                    let first = written.unwrap_or(default);
                    (window, Box::new(move |layer| layer >= first), types)
                }
                AskedWindows::AlternatingUpTo(default) => {
                    let end = written.unwrap_or(default);
                    (window, Box::new(move |layer| layer < end && layer.is_multiple_of(2)), types)
                }
            }
        }
        Windows::Named(window) => (sliding_window(Some(window))?, Box::new(|_| true), types),
        Windows::Alternating { window, pattern } => {
            let pattern = match text.size("sliding_window_pattern", usize::MAX)? {
                Some(pattern) => pattern,
                None => text.size("_sliding_window_pattern", usize::MAX)?.unwrap_or(pattern),
            };
            (sliding_window(Some(window))?, Box::new(move |layer| !(layer + 1).is_multiple_of(pattern)), types)
        }
    };
    let recurrent = recurrent_layers(text, defaults, written_types.as_deref(), n_layers)?;
    let facts = |layer: usize| {
        let is_sliding = types.map_or_else(|| slides(layer), |types| types[layer] == SLIDING_ATTENTION);
        // transformers uses this value for any config.
        let is_sliding = is_sliding && !(defaults.full_heads.is_some() && layer + 1 == n_layers);
        LayerFacts {
            layer_type: if is_sliding { SLIDING_ATTENTION } else { FULL_ATTENTION },
            window: window.filter(|_| is_sliding),
            is_rotated: rotated[layer] && !recurrent[layer],
            has_experts: has_experts[layer],
            is_recurrent: recurrent[layer],
        }
    };
    Ok((0..n_layers).map(facts).collect())
}

/// Whether each layer has a rotary embedding: by `no_rope_layers`, which has a 1 for those that do, or by the kind of positions.
fn rotated_layers(text: &Fields, defaults: &FamilyDefaults, n_layers: usize) -> Result<Vec<bool>> {
    let interval = match defaults.rotated {
        Rotated::All => return Ok(vec![true; n_layers]),
        Rotated::ByType => {
            return match text.text("position_embedding_type")? {
                Some("rope") => Ok(vec![true; n_layers]),
                None | Some("nope") => Ok(vec![false; n_layers]),
                Some(other) => Err(CompileError::Unsupported {
                    what: format!("position_embedding_type {other}"),
                    detail: "supported are rope and nope".to_owned(),
                }),
            };
        }
        Rotated::AllBut(interval) => interval,
    };
    let interval = text.size("no_rope_layer_interval", limits::LAYERS)?.unwrap_or(interval);
    let Some(written) = text.numbers("no_rope_layers")? else {
        return Ok((0..n_layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect());
    };
    if written.len() < n_layers {
        let what = format!("has {} entries, expected num_hidden_layers, {n_layers}", written.len());
        return Err(text.error("no_rope_layers", &what));
    }
    Ok(written[..n_layers].iter().map(|written| *written != 0.0).collect())
}

/// Whether each layer has a gated delta net or a short convolution: those that `layer_types` names so, else all but each of an interval,
/// or all but those of `full_attn_idxs`.
fn recurrent_layers(
    text: &Fields,
    defaults: &FamilyDefaults,
    types: Option<&[&'static str]>,
    n_layers: usize,
) -> Result<Vec<bool>> {
    let own = match (&defaults.delta, defaults.short_conv_taps) {
        (Some(_), _) => Some(LINEAR_ATTENTION),
        (None, Some(_)) => Some(CONVOLUTION),
        (None, None) => None,
    };
    let other = |layer_type: &&&str| [LINEAR_ATTENTION, CONVOLUTION].contains(*layer_type) && own != Some(**layer_type);
    if let Some(other) = types.unwrap_or_default().iter().find(other) {
        return Err(CompileError::Unsupported {
            what: format!("layer type {other}"),
            detail: format!(
                "layers of {} have {}",
                defaults.architecture,
                own.map_or("attention".into(), |own| format!("attention or {own}"))
            ),
        });
    }
    let Some(own) = own else { return Ok(vec![false; n_layers]) };
    match (types, &defaults.delta) {
        (Some(types), _) => Ok(types.iter().map(|layer_type| *layer_type == own).collect()),
        (None, Some(delta)) => {
            let written = text.size("full_attention_interval", limits::LAYERS)?;
            let interval = written.unwrap_or(delta.attention_interval);
            Ok((0..n_layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect())
        }
        (None, None) => {
            let Some(attention) = text.numbers("full_attn_idxs")? else { return Ok(vec![false; n_layers]) };
            Ok((0..n_layers).map(|layer| !attention.contains(&(layer as f64))).collect())
        }
    }
}

fn layer_types(text: &Fields, n_layers: usize) -> Result<Option<Vec<&'static str>>> {
    let Some(written) = text.texts("layer_types")? else { return Ok(None) };
    if written.len() != n_layers {
        let what = format!("has {} entries, expected num_hidden_layers, {n_layers}", written.len());
        return Err(text.error("layer_types", &what));
    }
    let known = |written: &str| match written {
        FULL_ATTENTION | "attention" => Ok(FULL_ATTENTION),
        SLIDING_ATTENTION => Ok(SLIDING_ATTENTION),
        LINEAR_ATTENTION => Ok(LINEAR_ATTENTION),
        CONVOLUTION => Ok(CONVOLUTION),
        other => Err(CompileError::Unsupported {
            what: format!("layer type {other}"),
            detail: format!(
                "supported are {FULL_ATTENTION}, {SLIDING_ATTENTION}, {LINEAR_ATTENTION} and {CONVOLUTION}"
            ),
        }),
    };
    written.into_iter().map(known).collect::<Result<_>>().map(Some)
}
