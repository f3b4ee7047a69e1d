//! Where each weight of the model is stored in the GGUF file, by canonical name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unicorn_artifact::MappedFile;
use unicorn_artifact::codebook::CODEBOOK_GROUP;

use super::keys::Architecture;
use super::reader::{Gguf, TensorInfo};
use super::rope::DIVISOR_TENSORS;
use crate::error::{CompileError, Result};
use crate::import::source_layout::StoredAs;
use crate::import::{DeltaConfig, KeptCodes, LatentConfig, ModelConfig, RowOrder, Skipped, SourceDType, Tensor};

/// A row range of a source tensor: a [`Tensor`] before it has a memory map.
#[derive(Clone, Debug)]
pub struct TensorPlace {
    pub source_name: String,
    pub source: TensorInfo,
    pub first_row: usize,
    pub rows: usize,
    pub cols: usize,
    pub row_order: RowOrder,
    pub stored_as: StoredAs,
}

impl TensorPlace {
    /// The tensor in the mapped parts of its model.
    pub fn tensor(self, maps: &[Arc<MappedFile>]) -> Tensor {
        Tensor {
            source_name: self.source_name,
            source_shape: self.source.shape,
            first_row: self.first_row,
            rows: self.rows,
            cols: self.cols,
            dtype: self.source.dtype,
            row_order: self.row_order,
            stored_as: self.stored_as,
            packed: None,
            scales: None,
            added: Vec::new(),
            map: Arc::clone(&maps[self.source.part]),
            offset_bytes: self.source.offset_bytes,
        }
    }

    /// The format that holds it as it is; `None`: it is quantised again, if it is a matrix.
    pub fn kept_codes(&self) -> Option<KeptCodes> {
        let is_matrix = self.source.shape.len() > 1;
        match self.source.dtype {
            SourceDType::MxFp4 => Some(KeptCodes::FP4),
            SourceDType::Iq4Nl | SourceDType::Iq4Xs if is_matrix && self.row_order.keeps_groups(CODEBOOK_GROUP) => {
                Some(KeptCodes::IQ4)
            }
            _ => None,
        }
    }
}

/// Finds every tensor that `config` requires. Returns them by canonical name, with the tensors of a vision tower and of layers that
/// predict further tokens, which are skipped.
///
/// # Errors
/// When a tensor is missing, has another shape than the config gives it, or has no known use.
pub fn locate(
    gguf: &Gguf,
    architecture: Architecture,
    config: &ModelConfig,
) -> Result<(BTreeMap<String, TensorPlace>, Skipped)> {
    let shapes = config.tensor_shapes();
    let mut places = BTreeMap::new();
    for (canonical, shape) in &shapes {
        let wanted = source_of(gguf, architecture, config, &shapes, canonical);
        let Some(source) = gguf.tensors.get(wanted.name.as_str()) else {
            return Err(CompileError::MissingTensor { name: wanted.name, hint: format!(", needed for {canonical}") });
        };
        let source = match wanted.fused {
            Some(fused) => &part_of(source, &wanted.name, fused)?,
            None => source,
        };
        // Filters of channels; transformers has an axis of length 1 between their axes.
        let shape = if let [channels, 1, taps] = shape[..] { vec![channels, taps] } else { shape.clone() };
        let mut expected = shape.clone();
        if wanted.is_transposed {
            expected.reverse();
        }
        expected[0] = wanted.source_rows.unwrap_or(expected[0]);
        if let Some(experts) = wanted.stacked {
            expected.insert(0, experts);
        }
        if expected[0] == 1 && expected.len() > 1 && source.shape.len() == 1 {
            // A matrix of one row is a vector there.
            expected.remove(0);
        }
        if source.shape != expected {
            let found = source.shape.clone();
            return Err(CompileError::TensorShape { name: wanted.name, expected, found });
        }
        let (rows, cols) = if let [rows, cols] = shape[..] { (rows, cols) } else { (1, shape[0]) };
        let place = TensorPlace {
            source_name: wanted.name,
            source: source.clone(),
            first_row: wanted.first_row,
            rows,
            cols,
            row_order: match wanted.is_transposed {
                true => RowOrder::Transposed,
                false => row_order(architecture, config, canonical),
            },
            stored_as: stored_as(architecture, canonical),
        };
        places.insert(canonical.clone(), place);
    }
    let skipped = account_for_the_rest(gguf, architecture, config, &places)?;
    Ok((places, skipped))
}

/// The source tensor of a canonical one, and the first of its rows.
#[derive(Default)]
struct Source {
    name: String,
    first_row: usize,
    /// Where the source, or a matrix of its stack, has other rows than the canonical tensor: gate and up, or heads of two kinds.
    source_rows: Option<usize>,
    /// The part of a fused tensor that is the source.
    fused: Option<Fused>,
    /// Number of experts whose matrices the source stacks; `None`: it is not a stack.
    stacked: Option<usize>,
    /// Whether the source's rows are columns of ours.
    is_transposed: bool,
}

/// Rows of a matrix, or elements of a vector, in a tensor that has those of several projections.
#[derive(Clone, Copy)]
struct Fused {
    first: usize,
    count: usize,
    /// Of the whole tensor; `None`: behind the part are keys and values that are not read.
    of: Option<usize>,
}

/// The tensor that would hold a part of a fused one alone.
///
/// # Errors
/// When the whole has another size, or a block of its type has elements of two parts.
fn part_of(whole: &TensorInfo, name: &str, part: Fused) -> Result<TensorInfo> {
    let mut shape = whole.shape.clone();
    shape[0] = part.of.unwrap_or(shape[0].max(part.count));
    if whole.shape != shape {
        return Err(CompileError::TensorShape { name: name.to_owned(), expected: shape, found: whole.shape.clone() });
    }
    let row = shape[1..].iter().product::<usize>();
    let bytes = |rows: usize| {
        whole.dtype.row_bytes(rows * row).ok_or_else(|| CompileError::Unsupported {
            what: format!("tensor {name} of {}", whole.dtype),
            detail: format!("{} elements from {} on are no whole blocks of that type", part.count, part.first),
        })
    };
    let (offset_bytes, len_bytes) = (whole.offset_bytes + bytes(part.first)?, bytes(part.count)?);
    shape[0] = part.count;
    Ok(TensorInfo { shape, offset_bytes, len_bytes, ..whole.clone() })
}

fn source_of(
    gguf: &Gguf,
    architecture: Architecture,
    config: &ModelConfig,
    shapes: &BTreeMap<String, Vec<usize>>,
    canonical: &str,
) -> Source {
    let whole = |name: String| Source { name, ..Source::default() };
    if let Some((name, other)) = stream_part(canonical) {
        let others = config.streams.as_ref().map_or(1, |streams| streams.count - 1);
        let first_row = other * config.hidden_size;
        return Source { name: format!("{name}.weight"), first_row, stacked: Some(others), ..Source::default() };
    }
    let Some((layer, part, suffix)) = split_layer_name(canonical) else {
        return whole(match canonical {
            "embed_tokens.weight" => "token_embd.weight".to_string(),
            "embed_tokens_per_layer.weight" => "per_layer_token_embd.weight".to_string(),
            "per_layer_model_projection.weight" => "per_layer_model_proj.weight".to_string(),
            "per_layer_projection_norm.weight" => "per_layer_proj_norm.weight".to_string(),
            "norm.weight" if architecture.is_lfm2() => "token_embd_norm.weight".to_string(),
            "norm.weight" => "output_norm.weight".to_string(),
            "lm_head.weight" => "output.weight".to_string(),
            _ => unreachable!("{canonical} is no canonical name"),
        });
    };
    let renamed = match (part, suffix) {
        ("self_attn", "sinks") => Some("attn_sinks.weight"),
        ("mlp.gate", "choice_bias") => Some("exp_probs_b.bias"),
        ("", "layer_scalar") => Some("layer_output_scale.weight"),
        ("altup", "correct_output_scale") => Some("altup_correct_scale.weight"),
        ("router", "scale") => Some("ffn_gate_inp.scale"),
        ("router", "per_expert_scale") => Some("ffn_down_exps.scale"),
        _ => None,
    };
    if let Some(theirs) = renamed {
        return whole(format!("blk.{layer}.{theirs}"));
    }
    let in_layer = |part: &str| format!("blk.{layer}.{part}.{suffix}");
    if let Some(latent) = &config.latent {
        let heads_are_joined = gguf.tensors.contains_key(in_layer(JOINED_HEADS).as_str());
        if let Some(source) = latent_part(latent, config.n_heads, heads_are_joined, part) {
            return Source { name: in_layer(&source.name), ..source };
        }
    }
    if let (Some(experts), Some((expert, name))) = (&config.experts, expert_part(part)) {
        let rows = match (suffix, name) {
            // An expert's biases are one row.
            ("bias", _) => 1,
            (_, "down") => config.hidden_size,
            _ => experts.intermediate_size,
        };
        let stacked = Some(experts.count);
        let joined = in_layer("ffn_gate_up_exps");
        if name != "down" && gguf.tensors.contains_key(joined.as_str()) {
            let first_row = 2 * expert * rows + if name == "gate" { 0 } else { rows };
            return Source { name: joined, first_row, source_rows: Some(2 * rows), stacked, ..Source::default() };
        }
        let name = in_layer(&format!("ffn_{name}_exps"));
        return Source { name, first_row: expert * rows, stacked, ..Source::default() };
    }
    if let Some(part) = part.strip_prefix("linear_attn") {
        return delta_net(gguf, config, layer, part, suffix);
    }
    let own = in_layer(source_part(architecture, config, part));
    let has = |part: &str| gguf.tensors.contains_key(in_layer(part).as_str());
    let rows = |name: &str| shapes.get(&format!("layers.{layer}.{name}.weight")).map_or(0, |shape| shape[0]);
    match part {
        "self_attn.q_proj" | "self_attn.k_proj" | "self_attn.v_proj" | "self_attn.gate_proj" => {
            // Rows of a gate lie between those of queries.
            let q_rows = rows("self_attn.q_proj") + rows("self_attn.gate_proj");
            // As many of values, also where keys are the values.
            let k_rows = rows("self_attn.k_proj");
            let (first, count) = match part {
                "self_attn.k_proj" => (q_rows, k_rows),
                "self_attn.v_proj" => (q_rows + k_rows, k_rows),
                _ => (0, q_rows),
            };
            let of = (k_rows > 0).then_some(q_rows + 2 * k_rows);
            let fused = has("attn_qkv").then_some(Fused { first, count, of });
            let name = if fused.is_some() { in_layer("attn_qkv") } else { own };
            return Source { name, source_rows: Some(count), fused, ..Source::default() };
        }
        // A file without a gate has it in the first half of ffn_up's rows.
        "mlp.gate_proj" | "mlp.up_proj" if suffix == "weight" && !has("ffn_gate") && has("ffn_up") => {
            let count = rows(part);
            let first = if part == "mlp.up_proj" { count } else { 0 };
            let fused = Some(Fused { first, count, of: Some(2 * count) });
            return Source { name: in_layer("ffn_up"), fused, ..Source::default() };
        }
        _ => {}
    }
    if part == "norm" && !gguf.tensors.contains_key(own.as_str()) {
        // llama.cpp then takes the model's last norm for the head's.
        return whole("output_norm.weight".to_owned());
    }
    whole(own)
}

/// Heads' matrices of latent attention in files that llama.cpp wrote before April 2025: of each head, the rows that make a key of the
/// latent vector, then those that make a value.
const JOINED_HEADS: &str = "attn_kv_b";

/// The source of a matrix of latent attention, without its layer: heads' matrices are stacks, or joined.
fn latent_part(latent: &LatentConfig, n_heads: usize, heads_are_joined: bool, part: &str) -> Option<Source> {
    let part = part.strip_prefix("self_attn.")?;
    let rows_of = |name: &str, first_row, rows| Source {
        name: name.into(),
        first_row,
        source_rows: Some(rows),
        ..Source::default()
    };
    match part {
        "kv_a_proj" => return Some(rows_of("attn_kv_a_mqa", 0, latent.cached_dim())),
        "k_rope_proj" => return Some(rows_of("attn_kv_a_mqa", latent.rank, latent.cached_dim())),
        _ => {}
    }
    let (name, head) = part.rsplit_once('.')?;
    let (head, is_key): (usize, _) = (head.parse().ok()?, name == "k_b_proj");
    if heads_are_joined {
        let rows = latent.nope_dim + latent.value_dim;
        let first_row = head * rows + if is_key { 0 } else { latent.nope_dim };
        return Some(Source { is_transposed: is_key, ..rows_of(JOINED_HEADS, first_row, n_heads * rows) });
    }
    let (name, rows) = if is_key { ("attn_k_b", latent.rank) } else { ("attn_v_b", latent.value_dim) };
    Some(Source { name: name.into(), first_row: head * rows, stacked: Some(n_heads), ..Source::default() })
}

/// The source of a tensor of a delta net, `part` and `suffix` of whose name follow `linear_attn`.
fn delta_net(gguf: &Gguf, config: &ModelConfig, layer: &str, part: &str, suffix: &str) -> Source {
    let joined = format!("blk.{layer}.ssm_ba.weight");
    let name = match (part, suffix) {
        (".in_proj_a" | ".in_proj_b", _) if gguf.tensors.contains_key(joined.as_str()) => {
            let heads = config.delta.map_or(0, |delta| delta.value_heads);
            return Source { name: joined, source_rows: Some(2 * heads), ..Source::default() };
        }
        ("", "A_log") => "ssm_a",
        ("", "dt_bias") => "ssm_dt.bias",
        (".in_proj_qkv", _) => "attn_qkv.weight",
        (".in_proj_z", _) => "attn_gate.weight",
        (".in_proj_a", _) => "ssm_alpha.weight",
        (".in_proj_b", _) => "ssm_beta.weight",
        (".conv1d", _) => "ssm_conv1d.weight",
        (".norm", _) => "ssm_norm.weight",
        (".out_proj", _) => "ssm_out.weight",
        _ => unreachable!("{part} is no part of a delta net"),
    };
    Source { name: format!("blk.{layer}.{name}"), ..Source::default() }
}

fn stored_as(architecture: Architecture, canonical: &str) -> StoredAs {
    match canonical {
        _ if canonical.ends_with("linear_attn.A_log") => StoredAs::NegatedExponential,
        _ if canonical.ends_with("linear_attn.norm.weight") => StoredAs::Itself,
        _ if architecture.adds_one_to_norms() && is_norm(canonical) => StoredAs::Plus(1.0),
        _ => StoredAs::Itself,
    }
}

/// Whether a tensor is the weight of a norm; the names of those in front of a head's `fc` end in what they are of.
fn is_norm(canonical: &str) -> bool {
    canonical.ends_with("norm.weight") || canonical.contains(".pre_fc_norm_")
}

fn source_part(architecture: Architecture, config: &ModelConfig, part: &str) -> &'static str {
    match part {
        "post_attention_layernorm" if config.post_norms || architecture.has_post_attention_norm() => {
            "post_attention_norm"
        }
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "input_layernorm" => "attn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "self_attn.q_proj" | "self_attn.gate_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.q_a_proj" => "attn_q_a",
        "self_attn.q_a_layernorm" => "attn_q_a_norm",
        "self_attn.q_b_proj" => "attn_q_b",
        "self_attn.kv_a_layernorm" => "attn_kv_a_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "conv.conv" => "shortconv.conv",
        "conv.in_proj" => "shortconv.in_proj",
        "conv.out_proj" => "shortconv.out_proj",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "mlp.gate" => "ffn_gate_inp",
        "post_feedforward_layernorm_1" => "post_ffw_norm_1",
        "pre_feedforward_layernorm_2" => "pre_ffw_norm_2",
        "post_feedforward_layernorm_2" => "post_ffw_norm_2",
        "altup.router_norm" => "altup_router_norm",
        "altup.modality_router" => "altup_router",
        "altup.prediction_coefs" => "altup_predict_coef",
        "altup.correction_coefs" => "altup_correct_coef",
        "laurel.linear_left" => "laurel_l",
        "laurel.linear_right" => "laurel_r",
        "laurel.post_laurel_norm" => "laurel_post_norm",
        "per_layer_input_gate" => "inp_gate",
        "per_layer_projection" => "proj",
        "post_per_layer_input_norm" => "post_norm",
        "mlp.shared_expert_gate" => "ffn_gate_inp_shexp",
        "mlp.shared_expert.gate_proj" => "ffn_gate_shexp",
        "mlp.shared_expert.up_proj" => "ffn_up_shexp",
        "mlp.shared_expert.down_proj" => "ffn_down_shexp",
        "fc" => "nextn.eh_proj",
        "pre_fc_norm_embedding" => "nextn.enorm",
        "pre_fc_norm_hidden" => "nextn.hnorm",
        "norm" => "nextn.shared_head_norm",
        _ => unreachable!("{part} is no part of a layer"),
    }
}

/// The stack that has the matrix of a stream, and the matrix' place in it.
fn stream_part(canonical: &str) -> Option<(&'static str, usize)> {
    let stacks = [("altup_projections.", "altup_proj"), ("altup_unembed_projections.", "altup_unembd_proj")];
    let of_stack =
        |(ours, theirs)| Some((theirs, canonical.strip_prefix(ours)?.strip_suffix(".weight")?.parse().ok()?));
    stacks.into_iter().find_map(of_stack)
}

/// `mlp.experts.5.up_proj` as 5 and `up`.
fn expert_part(part: &str) -> Option<(usize, &str)> {
    let (expert, name) = part.strip_prefix("mlp.experts.")?.split_once('.')?;
    Some((expert.parse().ok()?, name.strip_suffix("_proj")?))
}

/// `layers.3.mlp.up_proj.weight` as `3`, `mlp.up_proj`, `weight`, and `layers.3.layer_scalar` with an empty part; `None` for names
/// outside of the layers.
fn split_layer_name(canonical: &str) -> Option<(&str, &str, &str)> {
    let (layer, rest) = canonical.strip_prefix("layers.")?.split_once('.')?;
    let (part, suffix) = rest.rsplit_once('.').unwrap_or(("", rest));
    Some((layer, part, suffix))
}

fn row_order(architecture: Architecture, config: &ModelConfig, canonical: &str) -> RowOrder {
    let is_rotated = canonical.contains(".q_proj.") || canonical.contains(".k_proj.");
    if architecture.interleaves_heads() && is_rotated {
        RowOrder::InterleavedHeads { head_dim: config.head_dim, plain: 0, rotary_dim: config.head_dim }
    } else if architecture == Architecture::GptOss || is_of_head(canonical) {
        // Their folders transpose experts, or matrices of heads, the files do not.
        RowOrder::Plain
    } else if let (Some(delta), Some((_, part))) = (&config.delta, canonical.split_once(".linear_attn.")) {
        delta_row_order(architecture, config, delta, canonical, part)
    } else {
        config.folder.row_order(config, canonical)
    }
}

/// Whether a matrix is one of those that latent attention has for each head.
fn is_of_head(canonical: &str) -> bool {
    [".k_b_proj.", ".v_b_proj."].iter().any(|name| canonical.contains(name))
}

/// Qwen3-Next's converter splits the folder's fused tensors, except b and a; Qwen 3.5's stores heads of values in tiles.
fn delta_row_order(
    architecture: Architecture,
    config: &ModelConfig,
    delta: &DeltaConfig,
    canonical: &str,
    part: &str,
) -> RowOrder {
    let (key_heads, shared) = (delta.key_heads, delta.value_heads / delta.key_heads);
    let tiled = |plain, width| RowOrder::TiledHeads { plain, key_heads, shared, width };
    match (architecture, part) {
        (Architecture::Qwen3Next, "in_proj_a.weight" | "in_proj_b.weight") => {
            config.folder.row_order(config, canonical)
        }
        (Architecture::Qwen3Next, _) | (_, "norm.weight") => RowOrder::Plain,
        (_, "in_proj_qkv.weight" | "conv1d.weight") => tiled(2 * key_heads * delta.key_dim, delta.value_dim),
        (_, "in_proj_z.weight") => tiled(0, delta.value_dim),
        (_, "out_proj.weight") => RowOrder::TiledColumns { key_heads, shared, width: delta.value_dim },
        _ => tiled(0, 1),
    }
}

/// Refuses tensors that would not be read, unless their use is known: without them the graph would be wrong.
fn account_for_the_rest(
    gguf: &Gguf,
    architecture: Architecture,
    config: &ModelConfig,
    places: &BTreeMap<String, TensorPlace>,
) -> Result<Skipped> {
    /// Vision tower and projector, where they are in the same file.
    const VISION_PREFIXES: [&str; 2] = ["v.", "mm."];
    let used: BTreeSet<&str> = places.values().map(|place| place.source_name.as_str()).collect();
    let mut skipped = Skipped::default();
    for (name, info) in &gguf.tensors {
        if used.contains(name) || DIVISOR_TENSORS.contains(name) {
            continue;
        }
        let in_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let in_layer = in_layer.and_then(|(layer, part)| Some((layer.parse::<usize>().ok()?, part)));
        let is_known = in_layer.is_some_and(|(layer, part)| match config.layers.len() {
            // After the layers come those that predict further tokens and are not compiled.
            layers if layer >= layers => architecture.predicts_further(),
            // Keys and values of layers that read the cache of another.
            _ => {
                ["attn_k.", "attn_v.", "attn_k_norm."].iter().any(|name| part.starts_with(name))
                    && !config.has_own_cache(layer)
            }
        });
        if !is_known && !VISION_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(CompileError::Unsupported {
                what: format!("tensor {name}"),
                detail: format!("this compiler has no use for it in a {} model", architecture.name()),
            });
        }
        skipped.tensors += 1;
        skipped.bytes += info.len_bytes as u64;
    }
    Ok(skipped)
}
