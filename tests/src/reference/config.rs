//! What `config.json` requires, in the older form of transformers 4 (`rope_theta`, `rope_scaling`,
//! `sliding_window_pattern`) and the newer of transformers 5 (`rope_parameters`, `layer_types`).

use std::path::Path;

use serde_json::Value;

use super::gemma3n::normal_quantile;
use super::rope::{Rope, number};

pub struct Config {
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub activation: Activation,
    pub norm_epsilon: f32,
    /// Gemma stores norm weights less one.
    pub norm_weight_offset: f32,
    pub embedding_scale: f32,
    pub embeddings_are_tied: bool,
    pub attention_scale: f32,
    pub attention_softcap: Option<f32>,
    pub final_softcap: Option<f32>,
    pub norms: NormNames,
    pub query_and_key_are_normed: bool,
    /// Granite multiplies what is added to the residual stream, and divides the logits.
    pub residual_multiplier: f32,
    pub logits_divisor: f32,
    /// Queries are multiplied by 1 + beta ln(1 + floor(position / interval)): beta and interval.
    pub query_growth: Option<(f32, usize)>,
    /// GLM rotates dimension 2i with 2i + 1.
    pub rotated_pairs_are_neighbours: bool,
    /// For each layer how many positions a token attends to, itself among them; `None`: all up to itself.
    pub windows: Vec<Option<usize>>,
    /// For each layer whether query and key are rotated; SmolLM3 has layers where they are not.
    pub rotated: Vec<bool>,
    /// In the place of the MLP of the layers that `has_experts` names.
    pub experts: Option<Experts>,
    pub has_experts: Vec<bool>,
    /// Heads of keys, and elements of a head, of layers without a window, if these differ (Gemma 4).
    pub full_heads: Option<(usize, usize)>,
    /// Values have a norm of each head (Gemma 3n and 4).
    pub values_are_normed: bool,
    /// Streams of the residual, if there are several (Gemma 3n).
    pub streams: Option<usize>,
    /// For each layer the standard deviations above the mean from which on gates are kept; `None`: all are.
    pub gate_deviations: Vec<Option<f32>>,
    /// The last layers of this number attend to the keys and values of the last layer before them with the same window or none (Gemma 4).
    pub kv_shared_layers: usize,
    pub full_rope: Rope,
    pub sliding_rope: Rope,
    /// The delta net of the layers that `recurrent` marks, instead of attention; the attention of the others has a gate. Without
    /// it, these layers have a short convolution.
    pub delta: Option<Delta>,
    pub recurrent: Vec<bool>,
    /// Latent attention in place of heads' own keys and values.
    pub latent: Option<Latent>,
}

/// Latent attention.
#[derive(Clone, Copy)]
pub struct Latent {
    pub rank: usize,
    /// Elements of a head's query and key that are not rotated, that are, and of its value.
    pub nope_dim: usize,
    pub rope_dim: usize,
    pub value_dim: usize,
}

/// A gated delta net.
#[derive(Clone, Copy)]
pub struct Delta {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

/// Names of the norms of a layer, around each of its two branches.
pub struct NormNames {
    pub before_attention: Option<&'static str>,
    pub after_attention: Option<&'static str>,
    pub before_feed_forward: Option<&'static str>,
    pub after_feed_forward: Option<&'static str>,
}

/// A mixture of experts.
pub struct Experts {
    pub count: usize,
    /// Experts of a token.
    pub chosen: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalized: bool,
    /// Whether the layer has an MLP beside the experts (Gemma 4).
    pub beside: bool,
    /// Whether an expert's probability is the sigmoid of its logit, and not its share of a softmax.
    pub sigmoid: bool,
    /// Factor of all weights.
    pub factor: f32,
    /// Experts are chosen among those of some groups.
    pub groups: Option<Groups>,
}

/// Groups of experts, one behind the other, that compete by the sum of their best ranks.
#[derive(Clone, Copy)]
pub struct Groups {
    pub count: usize,
    /// Groups whose experts may be chosen.
    pub kept: usize,
    /// Ranks of a group that are added up.
    pub best_of: usize,
}

#[derive(Clone, Copy)]
pub enum Activation {
    Silu,
    GeluTanh,
    ClampedSwiGlu,
}

impl Groups {
    /// The experts of the groups that are kept, of `experts` in all.
    pub fn kept_experts(&self, experts: usize, rank: &dyn Fn(usize) -> f32) -> Vec<usize> {
        let size = experts / self.count;
        let mut groups: Vec<Vec<usize>> = (0..self.count).map(|group| (group * size..).take(size).collect()).collect();
        let sum = |group: &Vec<usize>| -> f32 {
            let mut ranks: Vec<f32> = group.iter().map(|&expert| rank(expert)).collect();
            ranks.sort_by(|a, b| b.total_cmp(a));
            ranks[..self.best_of].iter().sum()
        };
        groups.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
        groups.truncate(self.kept);
        groups.concat()
    }
}

impl Config {
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let root: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let text_part = root.get("text_config").unwrap_or(&root);
        // A multimodal config may have this beside its text part only.
        let tied = text_part["tie_word_embeddings"].as_bool().or(root["tie_word_embeddings"].as_bool());
        Self::new(text_part, tied)
    }

    fn new(json: &Value, embeddings_are_tied: Option<bool>) -> Self {
        let family = json["model_type"].as_str().expect("config.json: model_type is a string");
        let gemma4 = family == "gemma4_text";
        let gemma3n = family == "gemma3n_text";
        let gemma = matches!(family, "gemma2" | "gemma3" | "gemma3_text") || gemma4 || gemma3n;
        let gemma3 = gemma && family != "gemma2";
        assert!(gemma || SUPPORTED.contains(&family), "model_type is {family}, which the reference does not support");
        let hidden = required(json, "hidden_size");
        // A sparse config relies on its family's defaults; only Gemma's are relied on in practice.
        let heads = count(json, "num_attention_heads").or(gemma.then_some(8)).expect("num_attention_heads is given");
        let kv_heads = count(json, "num_key_value_heads").unwrap_or(if gemma { 4 } else { heads });
        let head_dim = count(json, "head_dim").unwrap_or(if gemma { 256 } else { hidden / heads });
        let latent = count(json, "kv_lora_rank").map(|rank| Latent {
            rank,
            nope_dim: required(json, "qk_nope_head_dim"),
            rope_dim: required(json, "qk_rope_head_dim"),
            value_dim: required(json, "v_head_dim"),
        });
        let rotated_dim = latent.map_or(head_dim, |latent| latent.rope_dim);
        let granite = matches!(family, "granite" | "granitemoehybrid");
        let multiplier = |key: &str| number(json, key).filter(|_| granite).unwrap_or(1.0) as f32;
        let score_divisor = match family {
            _ if gemma4 || gemma3n => 1.0,
            _ if gemma => number(json, "query_pre_attn_scalar").unwrap_or(256.0),
            _ => head_dim as f64,
        };
        let full_heads = gemma4.then(|| full_heads(json, kv_heads));
        let full_rope = rope_parameters(json, "full_attention", family);
        let sliding_rope = rope_parameters(json, "sliding_attention", family);
        let softcap = |key: &str| number(json, key).map(|cap| cap as f32);
        let layers = required(json, "num_hidden_layers");
        Self {
            layers,
            heads,
            kv_heads,
            head_dim,
            activation: if family == "gpt_oss" { Activation::ClampedSwiGlu } else { activation(json, gemma) },
            norm_epsilon: number(json, "norm_eps").or(number(json, "rms_norm_eps")).unwrap_or(default_epsilon(family))
                as f32,
            norm_weight_offset: if gemma && !gemma4 && !gemma3n || has_delta_nets(family) { 1.0 } else { 0.0 },
            embedding_scale: if gemma { (hidden as f32).sqrt() } else { multiplier("embedding_multiplier") },
            embeddings_are_tied: embeddings_are_tied
                .unwrap_or(gemma || matches!(family, "smollm3" | "lfm2" | "lfm2_moe")),
            attention_scale: match &latent {
                Some(latent) => latent_scale(latent, &full_rope),
                None if granite => multiplier("attention_multiplier"),
                None => score_divisor.powf(-0.5) as f32,
            },
            attention_softcap: softcap("attn_logit_softcapping"),
            final_softcap: softcap("final_logit_softcapping"),
            norms: norm_names(family),
            query_and_key_are_normed: gemma3
                || matches!(family, "qwen3" | "qwen3_moe" | "olmoe" | "olmo2" | "olmo3" | "lfm2" | "lfm2_moe")
                || matches!(family, "qwen3_vl_text" | "qwen3_vl_moe_text")
                || json["use_qk_norm"] == true
                || has_delta_nets(family),
            residual_multiplier: multiplier("residual_multiplier"),
            logits_divisor: multiplier("logits_scaling"),
            query_growth: query_growth(&full_rope),
            rotated_pairs_are_neighbours: is_glm(family) || latent.is_some() && json["rope_interleave"] != false,
            windows: (0..layers).map(|layer| window(json, family, layer)).collect(),
            experts: experts(json, family),
            has_experts: (0..layers).map(|layer| has_experts(json, family, layer)).collect(),
            rotated: (0..layers).map(|layer| is_rotated(json, family, layer)).collect(),
            delta: has_delta_nets(family).then(|| Delta {
                key_heads: required(json, "linear_num_key_heads"),
                value_heads: required(json, "linear_num_value_heads"),
                key_dim: required(json, "linear_key_head_dim"),
                value_dim: required(json, "linear_value_head_dim"),
            }),
            recurrent: (0..layers).map(|layer| is_recurrent(json, family, layer)).collect(),
            full_heads,
            values_are_normed: gemma4 || gemma3n,
            streams: gemma3n.then(|| required(json, "altup_num_inputs")),
            gate_deviations: (0..layers).map(|layer| gate_deviations(json, layer)).collect(),
            kv_shared_layers: count(json, "num_kv_shared_layers").filter(|_| gemma4 || gemma3n).unwrap_or(0),
            full_rope: Rope::new(json, &full_rope, full_heads.map_or(rotated_dim, |(_, head_dim)| head_dim)),
            sliding_rope: Rope::new(json, &sliding_rope, rotated_dim),
            latent,
        }
    }
}

/// One over the root of a query, and for a stretched context what DeepSeek's `softmax_scale` adds.
fn latent_scale(latent: &Latent, rope: &Value) -> f32 {
    let plain = ((latent.nope_dim + latent.rope_dim) as f64).powf(-0.5);
    let is_stretched = rope["rope_type"].as_str().or(rope["type"].as_str()).is_some_and(|kind| kind != "default");
    let mscale = number(rope, "mscale_all_dim").filter(|_| is_stretched).unwrap_or(0.0);
    let stretched = 1.0 + 0.1 * mscale * number(rope, "factor").unwrap_or(1.0).ln();
    (plain * stretched * stretched) as f32
}

const SUPPORTED: [&str; 30] = [
    "glm4_moe",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "lfm2_moe",
    "llama",
    "mistral",
    "ministral",
    "ministral3",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
    "olmoe",
    "gpt_oss",
    "olmo2",
    "olmo3",
    "glm",
    "glm4",
    "granite",
    "granitemoehybrid",
    "lfm2",
    "phi3",
    "smollm3",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
];

fn default_epsilon(family: &str) -> f64 {
    match family {
        "phi3" | "ministral3" | "olmo2" | "olmo3" | "gpt_oss" => 1e-5,
        "glm" | "glm4" => 1.5625e-7,
        _ => 1e-6,
    }
}

fn norm_names(family: &str) -> NormNames {
    // A second norm is called after what it follows, even where it is the one before the feed-forward.
    let [before_attention, after_attention, before_feed_forward, after_feed_forward] = match family {
        "gemma2" | "gemma3" | "gemma3_text" | "gemma3n_text" | "gemma4_text" => [
            Some("input_layernorm"),
            Some("post_attention_layernorm"),
            Some("pre_feedforward_layernorm"),
            Some("post_feedforward_layernorm"),
        ],
        "glm4" => [
            Some("input_layernorm"),
            Some("post_self_attn_layernorm"),
            Some("post_attention_layernorm"),
            Some("post_mlp_layernorm"),
        ],
        "olmo2" | "olmo3" => [None, Some("post_attention_layernorm"), None, Some("post_feedforward_layernorm")],
        _ => [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
    };
    NormNames { before_attention, after_attention, before_feed_forward, after_feed_forward }
}

/// Both generations of GLM-4.
fn is_glm(family: &str) -> bool {
    matches!(family, "glm" | "glm4")
}

fn is_rotated(json: &Value, family: &str, layer: usize) -> bool {
    match family {
        "granitemoehybrid" => json["position_embedding_type"] == "rope",
        _ => json["no_rope_layers"][layer] != 0,
    }
}

fn query_growth(parameters: &Value) -> Option<(f32, usize)> {
    let beta = number(parameters, "llama_4_scaling_beta")?;
    Some((beta as f32, required(parameters, "original_max_position_embeddings")))
}

/// Heads of keys, and elements of a head, of global-attention layers.
fn full_heads(json: &Value, kv_heads: usize) -> (usize, usize) {
    let written = json["per_layer_config"].as_object().and_then(|layers| layers.values().next());
    match written {
        Some(layer) => (count(layer, "num_key_value_heads").unwrap_or(kv_heads), required(layer, "head_dim")),
        None => {
            let own = count(json, "num_global_key_value_heads").filter(|_| json["attention_k_eq_v"] == true);
            (own.unwrap_or(kv_heads), count(json, "global_head_dim").unwrap_or(512))
        }
    }
}

/// By the share of a layer's gates that become 0.
fn gate_deviations(json: &Value, layer: usize) -> Option<f32> {
    let share = json["activation_sparsity_pattern"][layer].as_f64().filter(|share| *share > 0.0)?;
    Some(normal_quantile(share) as f32)
}

fn has_delta_nets(family: &str) -> bool {
    matches!(family, "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text")
}

fn is_recurrent(json: &Value, family: &str, layer: usize) -> bool {
    if matches!(family, "lfm2" | "lfm2_moe") {
        let written = json["layer_types"][layer].as_str().map(|kind| kind == "conv");
        let has_attention = |layers: &Vec<Value>| layers.iter().any(|other| *other == layer);
        return written.unwrap_or(!json["full_attn_idxs"].as_array().is_none_or(has_attention));
    }
    if !has_delta_nets(family) {
        return false;
    }
    let interval = count(json, "full_attention_interval").unwrap_or(4);
    let listed = json["layer_types"][layer].as_str().map(|kind| kind == "linear_attention");
    listed.unwrap_or(!(layer + 1).is_multiple_of(interval))
}

fn experts(json: &Value, family: &str) -> Option<Experts> {
    let count_field = match family {
        "gemma4_text" if json["enable_moe_block"] == true => "num_experts",
        "mixtral" | "gpt_oss" => "num_local_experts",
        "qwen2_moe" | "qwen3_moe" | "olmoe" | "qwen3_next" | "qwen3_5_moe_text" | "lfm2_moe" => "num_experts",
        "qwen3_vl_moe_text" => "num_experts",
        "deepseek_v2" | "deepseek_v3" | "glm4_moe" | "glm4_moe_lite" => "n_routed_experts",
        _ => return None,
    };
    Some(Experts {
        count: required(json, count_field),
        chosen: required(json, if family == "gemma4_text" { "top_k_experts" } else { "num_experts_per_tok" }),
        beside: family == "gemma4_text",
        sigmoid: matches!(family, "lfm2_moe" | "deepseek_v3" | "glm4_moe" | "glm4_moe_lite"),
        factor: match family {
            "lfm2_moe" | "deepseek_v2" | "deepseek_v3" | "glm4_moe" | "glm4_moe_lite" => {
                number(json, "routed_scaling_factor").expect("routed_scaling_factor is given") as f32
            }
            _ => 1.0,
        },
        groups: groups(json, family),
        normalized: match family {
            "gemma4_text" | "mixtral" | "qwen3_5_moe_text" | "qwen3_vl_moe_text" | "gpt_oss" => true,
            "qwen3_next" | "lfm2_moe" | "deepseek_v3" | "glm4_moe" | "glm4_moe_lite" => json["norm_topk_prob"] != false,
            "deepseek_v2" => false,
            _ => json["norm_topk_prob"] == true,
        },
    })
}

fn groups(json: &Value, family: &str) -> Option<Groups> {
    let best_of = match family {
        "deepseek_v2" if json["topk_method"] == "group_limited_greedy" => 1,
        "deepseek_v3" | "glm4_moe" | "glm4_moe_lite" => 2,
        _ => return None,
    };
    let count = count(json, "n_group").filter(|count| *count > 1)?;
    Some(Groups { count, kept: required(json, "topk_group"), best_of })
}

fn has_experts(json: &Value, family: &str, layer: usize) -> bool {
    let without = json["mlp_only_layers"].as_array().is_some_and(|layers| layers.iter().any(|other| *other == layer));
    match family {
        "lfm2_moe" => layer >= count(json, "num_dense_layers").unwrap_or(2),
        "deepseek_v2" | "deepseek_v3" | "glm4_moe" => layer >= required(json, "first_k_dense_replace"),
        "glm4_moe_lite" => json["mlp_layer_types"][layer] == "sparse",
        "mixtral" | "olmoe" | "qwen3_5_moe_text" | "gpt_oss" => true,
        "qwen2_moe" | "qwen3_moe" | "qwen3_next" | "qwen3_vl_moe_text" => {
            !without && (layer + 1).is_multiple_of(count(json, "decoder_sparse_step").unwrap_or(1))
        }
        _ => false,
    }
}

fn activation(json: &Value, gemma: bool) -> Activation {
    // Gemma reads only `hidden_activation`; its older files have `hidden_act` too, not always the same.
    let name = if gemma { json["hidden_activation"].as_str() } else { json["hidden_act"].as_str() };
    match name.unwrap_or(if gemma { "gelu_pytorch_tanh" } else { "silu" }) {
        "silu" => Activation::Silu,
        "gelu_pytorch_tanh" => Activation::GeluTanh,
        other => panic!("activation is {other}, which the reference does not support"),
    }
}

fn window(json: &Value, family: &str, layer: usize) -> Option<usize> {
    let listed = json["layer_types"][layer].as_str().map(|kind| kind == "sliding_attention");
    let slides = match family {
        "mistral" | "ministral3" | "mixtral" | "phi3" => true,
        "ministral" => listed.unwrap_or(true),
        "olmo3" => listed.unwrap_or(layer % 4 != 3),
        "gemma2" | "gpt_oss" => listed.unwrap_or(layer % 2 != 1),
        "gemma3" | "gemma3_text" | "gemma3n_text" | "gemma4_text" => {
            let pattern = count(json, "sliding_window_pattern").unwrap_or(6);
            listed.unwrap_or(layer % pattern != pattern - 1)
        }
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => {
            let first = count(json, "max_window_layers").unwrap_or(28);
            json["use_sliding_window"] == true && listed.unwrap_or(layer >= first)
        }
        _ => false,
    };
    let family_default = family.starts_with("gemma").then_some(if family == "gemma4_text" { 512 } else { 4096 });
    if slides { count(json, "sliding_window").or(family_default) } else { None }
}

/// The rope of the layers of this `kind`, in the newer form: one object with `rope_type` and `rope_theta`.
fn rope_parameters(json: &Value, kind: &str, family: &str) -> Value {
    let gemma3 = matches!(family, "gemma3" | "gemma3_text");
    if family == "olmo3" && json["rope_parameters"].get(kind).is_none() {
        // Parameters outside of these objects are those of the global-attention layers.
        let mut parameters = serde_json::Map::new();
        let is_full = kind == "full_attention";
        if let (true, Value::Object(scaling)) = (is_full, &json["rope_scaling"]) {
            parameters.extend(scaling.clone());
        }
        let theta = number(json, "rope_theta").filter(|_| is_full).unwrap_or(5e5);
        parameters.insert("rope_theta".into(), theta.into());
        return Value::Object(parameters);
    }
    if let Value::Object(parameters) = &json["rope_parameters"] {
        let mut parameters = parameters.get(kind).unwrap_or(&json["rope_parameters"]).clone();
        if is_glm(family) && number(&parameters, "partial_rotary_factor").is_none() {
            parameters["partial_rotary_factor"] = number(json, "partial_rotary_factor").unwrap_or(0.5).into();
        }
        return parameters;
    }
    let mut parameters = serde_json::Map::new();
    if gemma3 && kind == "sliding_attention" {
        parameters.insert("rope_theta".into(), number(json, "rope_local_base_freq").unwrap_or(1e4).into());
        return Value::Object(parameters);
    }
    if let Value::Object(scaling) = &json["rope_scaling"] {
        parameters.extend(scaling.clone());
    }
    let default_theta = if gemma3 { 1e6 } else { 1e4 };
    parameters.insert("rope_theta".into(), number(json, "rope_theta").unwrap_or(default_theta).into());
    if is_glm(family) {
        let share = number(json, "partial_rotary_factor").unwrap_or(0.5);
        parameters.insert("partial_rotary_factor".into(), share.into());
    }
    Value::Object(parameters)
}

fn count(json: &Value, key: &str) -> Option<usize> {
    json[key].as_u64().map(|value| value as usize)
}

fn required(json: &Value, key: &str) -> usize {
    count(json, key).unwrap_or_else(|| panic!("config.json: {key} is missing or no count"))
}
