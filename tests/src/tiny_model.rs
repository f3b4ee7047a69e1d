//! Random models of any shape, written as real Hugging Face folders: the input of random-shape tests, and the sound
//! folder that hostile ones are made from by changing one thing.
//!
//! ```
//! let folder = std::env::temp_dir().join(format!("tiny-model-example-{}", std::process::id()));
//! tests::tiny_model::TinyModel { heads: 6, kv_heads: 3, ..Default::default() }.write(&folder);
//! let logits = tests::reference::Reference::open(&folder).logits(&[1, 65, 66]);
//! assert_eq!(logits.len(), 3 * 320);
//! # std::fs::remove_dir_all(&folder).unwrap();
//! ```

mod families;
pub mod random;
mod tokenizer;

use std::path::Path;

use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

pub use families::{DeltaFacts, FAMILIES, FamilyFacts, SharedFacts, Slides};
use random::Random;

/// What to write. The same value gives the same bytes.
#[derive(Clone, Debug)]
pub struct TinyModel {
    pub family: Family,
    pub seed: u64,
    /// Number of tokens: 0, 1 and 2 are `<pad>`, `<bos>` and `<eos>`, and the next 256 are a byte each.
    pub vocab_size: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Whether the embedding is the output matrix too.
    pub tied: bool,
    /// Positions that a layer with a window attends to; the family decides which layers have one.
    pub sliding_window: Option<usize>,
    pub max_position_embeddings: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma2,
    Gemma3,
    Phi3,
    SmolLm3,
    Mixtral,
    Qwen2Moe,
    Qwen3Moe,
    Olmoe,
    Olmo2,
    Olmo3,
    Glm,
    Glm4,
    GptOss,
    Granite,
    /// Dense, without layers of Mamba.
    Granite4,
    Ministral,
    Ministral3,
    Qwen35,
    Qwen3Next,
    Lfm2,
    Lfm2Moe,
    DeepSeekV2,
    DeepSeekV3,
}

/// A tensor in row order, as it will be stored.
#[derive(Clone, Debug)]
pub struct NamedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<bf16>,
}

/// Sizes of latent attention, whose keys have `head_dim` elements that are not rotated.
struct LatentSizes {
    query_rank: usize,
    rank: usize,
    rope_dim: usize,
    value_dim: usize,
}

/// Experts that every token has, where they are stored as one without a gate.
const SHARED_EXPERTS: usize = 2;

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            family: Family::Llama,
            seed: 1,
            vocab_size: 320,
            hidden: 64,
            intermediate: 128,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            tied: false,
            sliding_window: None,
            max_position_embeddings: 512,
        }
    }
}

impl TinyModel {
    /// The shape of a model that is not tiny: a Llama of ten thousand million weights, for plans and files full of holes.
    pub fn of_ten_thousand_million() -> TinyModel {
        TinyModel {
            family: Family::Llama,
            vocab_size: 32_000,
            hidden: 4096,
            intermediate: 16_384,
            layers: 38,
            heads: 32,
            kv_heads: 32,
            head_dim: 128,
            tied: false,
            max_position_embeddings: 8192,
            ..TinyModel::default()
        }
    }

    /// Writes `config.json`, `model.safetensors` (bf16), `tokenizer.json` and `tokenizer_config.json`, and makes the
    /// folder where it is missing.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn write(&self, folder: impl AsRef<Path>) {
        write_folder(folder.as_ref(), &self.config(), &self.tensors());
        let (tokenizer, tokenizer_config) = tokenizer::one_token_a_byte(self.vocab_size);
        write_json(&folder.as_ref().join("tokenizer.json"), &tokenizer);
        write_json(&folder.as_ref().join("tokenizer_config.json"), &tokenizer_config);
    }

    /// `config.json`, in the newer form of transformers 5.
    pub fn config(&self) -> Value {
        let facts = self.family.facts();
        let mut config = json!({
            "architectures": [facts.architecture],
            "bos_token_id": 1,
            "dtype": "bfloat16",
            "eos_token_id": 2,
            "head_dim": self.head_dim,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.max_position_embeddings,
            "model_type": facts.model_type,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "sliding_window": self.sliding_window,
            "tie_word_embeddings": self.tied,
            "vocab_size": self.vocab_size,
        });
        if facts.is_gemma {
            config["hidden_activation"] = json!("gelu_pytorch_tanh");
            config["query_pre_attn_scalar"] = json!(self.head_dim);
        } else {
            config["hidden_act"] = json!("silu");
        }
        if facts.slides == Slides::OddLayers {
            config["use_sliding_window"] = json!(self.sliding_window.is_some());
        }
        if matches!(facts.slides, Slides::OddLayers | Slides::AllBut(_)) {
            config["layer_types"] = (0..self.layers).map(|layer| self.layer_type(layer)).collect();
        }
        if let Some(interval) = facts.unrotated_interval {
            config["no_rope_layers"] = (0..self.layers).map(|layer| u8::from((layer + 1) % interval != 0)).collect();
        }
        if let Some(experts) = &facts.experts {
            config[experts.count_field] = json!(experts.count);
            config["num_experts_per_tok"] = json!(experts.chosen);
            config["moe_intermediate_size"] = json!(self.intermediate);
            config["norm_topk_prob"] = json!(experts.normalized);
            config["shared_expert_intermediate_size"] = json!(self.shared_intermediate());
            if let Some((groups, kept)) = experts.routing.as_ref().and_then(|routing| routing.groups) {
                (config["n_group"], config["topk_group"]) = (json!(groups), json!(kept));
            }
            if experts.routing.is_some() {
                config["routed_scaling_factor"] = json!(1.3);
                config["n_shared_experts"] = json!(SHARED_EXPERTS);
                config["num_dense_layers"] = json!(1);
                config["first_k_dense_replace"] = json!(1);
            }
        }
        if let Some(has_query_rank) = facts.latent {
            let sizes = self.latent_sizes();
            config["q_lora_rank"] = json!(has_query_rank.then_some(sizes.query_rank));
            config["kv_lora_rank"] = json!(sizes.rank);
            config["qk_nope_head_dim"] = json!(self.head_dim);
            config["qk_rope_head_dim"] = json!(sizes.rope_dim);
            config["v_head_dim"] = json!(sizes.value_dim);
            config["n_group"] = json!(1);
            config["topk_group"] = json!(1);
        }
        if let Some(delta) = &facts.delta {
            config["linear_num_key_heads"] = json!(delta.key_heads);
            config["linear_num_value_heads"] = json!(delta.value_heads);
            config["linear_key_head_dim"] = json!(delta.key_dim);
            config["linear_value_head_dim"] = json!(delta.value_dim);
            config["linear_conv_kernel_dim"] = json!(delta.taps);
            config["layer_types"] = (0..self.layers).map(|layer| self.layer_type(layer)).collect();
            // An even number of elements, rounded down.
            let rotated = (2 * (self.head_dim / 4)) as f64;
            config["rope_parameters"]["partial_rotary_factor"] = json!((rotated + 0.5) / self.head_dim as f64);
        }
        if let Some(taps) = facts.short_conv_taps {
            config["conv_L_cache"] = json!(taps);
            config["block_auto_adjust_ff_dim"] = json!(false);
            config["norm_eps"] = config["rms_norm_eps"].take();
            config["layer_types"] = (0..self.layers).map(|layer| self.layer_type(layer)).collect();
        }
        match self.family {
            Family::Gemma2 => {
                config["attn_logit_softcapping"] = json!(50.0);
                config["final_logit_softcapping"] = json!(30.0);
            }
            Family::Gemma3 | Family::Olmo3 => {
                config["rope_parameters"] = json!({
                    "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
                    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
                });
            }
            Family::Glm | Family::Glm4 => {
                config["attention_bias"] = json!(true);
                // The half, or two dimensions less; any share in between is rounded down.
                let rotary_dim = self.head_dim / 4 * 2;
                let share = (rotary_dim as f64 + 0.5) / self.head_dim as f64;
                config["rope_parameters"]["partial_rotary_factor"] = json!(share);
            }
            Family::GptOss => {
                config["attention_bias"] = json!(true);
                config["rope_parameters"] = json!({
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
                    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                });
            }
            Family::Granite | Family::Granite4 => {
                config["attention_multiplier"] = json!(0.3);
                config["embedding_multiplier"] = json!(6.0);
                config["residual_multiplier"] = json!(0.22);
                config["logits_scaling"] = json!(2.0);
            }
            Family::Ministral3 => {
                // Short, so that queries grow within a test's text.
                config["rope_parameters"] = json!({
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
                    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.1,
                });
            }
            _ => {}
        }
        if self.family == Family::Granite4 {
            config["layer_types"] = json!(vec!["attention"; self.layers]);
            config["num_local_experts"] = json!(0);
            config["shared_intermediate_size"] = json!(self.intermediate);
            config["position_embedding_type"] = json!("rope");
        }
        config
    }

    /// All tensors, in the order they are stored in.
    pub fn tensors(&self) -> Vec<NamedTensor> {
        let mut random = Random::new(self.seed);
        self.shapes().into_iter().map(|(name, shape)| self.fill(&mut random, name, shape)).collect()
    }

    fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let Self { hidden, intermediate, .. } = *self;
        let facts = self.family.facts();
        let (query, key_value) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, hidden])];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: Vec<usize>| shapes.push((format!("model.layers.{layer}.{name}"), shape));
            facts.norms.iter().for_each(|norm| add(&format!("{norm}.weight"), vec![hidden]));
            let delta = facts.delta.as_ref().filter(|_| self.is_recurrent(layer));
            if let Some(taps) = facts.short_conv_taps {
                self.lfm2_shapes(layer, taps, &mut add);
                continue;
            }
            if let Some(has_query_rank) = facts.latent {
                self.latent_shapes(has_query_rank, &mut add);
                self.expert_shapes(layer, &mut add);
                continue;
            }
            if let Some(delta) = delta {
                self.delta_shapes(delta, &mut add);
            } else if facts.normed_heads || facts.normed_projections {
                let width = |of_projection| if facts.normed_heads { self.head_dim } else { of_projection };
                add("self_attn.q_norm.weight", vec![width(query)]);
                add("self_attn.k_norm.weight", vec![width(key_value)]);
            }
            if facts.joined_qkv {
                add("self_attn.qkv_proj.weight", vec![query + 2 * key_value, hidden]);
            } else if delta.is_none() {
                let gated = if facts.delta.is_some() { 2 * query } else { query };
                for (name, rows) in [("q_proj", gated), ("k_proj", key_value), ("v_proj", key_value)] {
                    add(&format!("self_attn.{name}.weight"), vec![rows, hidden]);
                    if facts.qkv_bias {
                        add(&format!("self_attn.{name}.bias"), vec![rows]);
                    }
                }
            }
            if delta.is_none() {
                add("self_attn.o_proj.weight", vec![hidden, query]);
            }
            if facts.is_gpt_oss {
                add("self_attn.o_proj.bias", vec![hidden]);
                add("self_attn.sinks", vec![self.heads]);
            }
            let Some(experts) = &facts.experts else {
                match facts.joined_gate_up {
                    Some(name) => add(&format!("{name}.weight"), vec![2 * intermediate, hidden]),
                    None => {
                        add("mlp.gate_proj.weight", vec![intermediate, hidden]);
                        add("mlp.up_proj.weight", vec![intermediate, hidden]);
                    }
                }
                add(&format!("{}.weight", facts.down), vec![hidden, intermediate]);
                continue;
            };
            if facts.is_gpt_oss {
                add("mlp.router.weight", vec![experts.count, hidden]);
                add("mlp.router.bias", vec![experts.count]);
                add("mlp.experts.gate_up_proj", vec![experts.count, hidden, 2 * intermediate]);
                add("mlp.experts.gate_up_proj_bias", vec![experts.count, 2 * intermediate]);
                add("mlp.experts.down_proj", vec![experts.count, intermediate, hidden]);
                add("mlp.experts.down_proj_bias", vec![experts.count, hidden]);
                continue;
            }
            self.expert_shapes(layer, &mut add);
            if experts.shared != SharedFacts::None {
                let shared = self.shared_intermediate();
                add("mlp.shared_expert.gate_proj.weight", vec![shared, hidden]);
                add("mlp.shared_expert.up_proj.weight", vec![shared, hidden]);
                add("mlp.shared_expert.down_proj.weight", vec![hidden, shared]);
                add("mlp.shared_expert_gate.weight", vec![1, hidden]);
            }
        }
        let last_norm = if facts.short_conv_taps.is_some() { "embedding_norm" } else { "norm" };
        shapes.push((format!("model.{last_norm}.weight"), vec![hidden]));
        if !self.tied {
            shapes.push(("lm_head.weight".to_owned(), vec![self.vocab_size, hidden]));
        }
        shapes
    }

    /// Values large enough that every part of a layer affects the logits: norms near the identity, matrices that keep the
    /// size of their input.
    fn fill(&self, random: &mut Random, name: String, shape: Vec<usize>) -> NamedTensor {
        let facts = self.family.facts();
        let adds_one = facts.is_gemma || facts.norms_add_one;
        let (centre, deviation) = match (shape.len(), name.ends_with("bias")) {
            (_, true) => (0.0, 0.3),
            // Rates of decay from a fraction of a token to many.
            (1, false) if name.ends_with("A_log") => (-1.0, 1.5),
            (1, false) if adds_one && !name.contains("linear_attn") => (0.0, 0.3),
            (1, false) => (1.0, 0.3),
            _ if name.contains("embed_tokens") => (0.0, 0.1),
            _ if name.contains("conv1d") || name.contains("conv.conv") => (0.0, 0.6),
            _ => (0.0, 1.2 / (shape[1] as f32).sqrt()),
        };
        let values = (0..shape.iter().product()).map(|_| bf16::from_f32(centre + deviation * random.normal()));
        NamedTensor { name, values: values.collect(), shape }
    }

    fn delta_shapes(&self, delta: &DeltaFacts, add: &mut impl FnMut(&str, Vec<usize>)) {
        let (keys, values) = (delta.key_heads * delta.key_dim, delta.value_heads * delta.value_dim);
        let mut projection = |name: &str, rows| add(&format!("linear_attn.{name}.weight"), vec![rows, self.hidden]);
        if delta.interleaved {
            projection("in_proj_qkvz", 2 * keys + 2 * values);
            projection("in_proj_ba", 2 * delta.value_heads);
        } else {
            projection("in_proj_qkv", 2 * keys + values);
            projection("in_proj_z", values);
            projection("in_proj_b", delta.value_heads);
            projection("in_proj_a", delta.value_heads);
        }
        add("linear_attn.conv1d.weight", vec![2 * keys + values, 1, delta.taps]);
        add("linear_attn.A_log", vec![delta.value_heads]);
        add("linear_attn.dt_bias", vec![delta.value_heads]);
        add("linear_attn.norm.weight", vec![delta.value_dim]);
        add("linear_attn.out_proj.weight", vec![self.hidden, values]);
    }

    /// A layer of LFM2, but for its norms over the stream.
    fn lfm2_shapes(&self, layer: usize, taps: usize, add: &mut impl FnMut(&str, Vec<usize>)) {
        let (hidden, query, key_value) = (self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim);
        if self.is_recurrent(layer) {
            add("conv.in_proj.weight", vec![3 * hidden, hidden]);
            add("conv.conv.weight", vec![hidden, 1, taps]);
            add("conv.out_proj.weight", vec![hidden, hidden]);
        } else {
            add("self_attn.q_layernorm.weight", vec![self.head_dim]);
            add("self_attn.k_layernorm.weight", vec![self.head_dim]);
            for (name, rows) in [("q_proj", query), ("k_proj", key_value), ("v_proj", key_value)] {
                add(&format!("self_attn.{name}.weight"), vec![rows, hidden]);
            }
            add("self_attn.out_proj.weight", vec![hidden, query]);
        }
        if self.family.facts().experts.is_some() {
            return self.expert_shapes(layer, add);
        }
        add("feed_forward.w1.weight", vec![self.intermediate, hidden]);
        add("feed_forward.w3.weight", vec![self.intermediate, hidden]);
        add("feed_forward.w2.weight", vec![hidden, self.intermediate]);
    }

    /// Experts of a layer and their router; the MLP of a first layer that has none.
    fn expert_shapes(&self, layer: usize, add: &mut impl FnMut(&str, Vec<usize>)) {
        let (hidden, inner) = (self.hidden, self.intermediate);
        let experts = self.family.facts().experts.as_ref().expect("a family with experts");
        let names = experts.names;
        let mut block = |block: &str, inner: usize| {
            for (name, rows, cols) in
                [(names.gate, inner, hidden), (names.up, inner, hidden), (names.down, hidden, inner)]
            {
                add(&format!("{block}.{name}.weight"), vec![rows, cols]);
            }
        };
        if layer == 0 && experts.routing.is_some() {
            return block(names.block, inner);
        }
        (0..experts.count).for_each(|expert| block(&format!("{}.experts.{expert}", names.block), inner));
        if self.family.facts().latent.is_some() {
            block(&format!("{}.shared_experts", names.block), SHARED_EXPERTS * inner);
        }
        add(&format!("{}.gate.weight", names.block), vec![experts.count, hidden]);
        if let Some(bias) = experts.routing.as_ref().and_then(|routing| routing.choice_bias) {
            add(bias, vec![experts.count]);
        }
    }

    fn latent_sizes(&self) -> LatentSizes {
        let rope_dim = (self.head_dim / 4 * 2).max(2);
        LatentSizes {
            query_rank: self.hidden / 2 + 4,
            rank: (2 * self.head_dim + 5).min(512),
            rope_dim,
            value_dim: self.head_dim + 3,
        }
    }

    /// Latent attention's tensors.
    fn latent_shapes(&self, has_query_rank: bool, add: &mut impl FnMut(&str, Vec<usize>)) {
        let LatentSizes { query_rank, rank, rope_dim, value_dim } = self.latent_sizes();
        let (hidden, queries) = (self.hidden, self.heads * (self.head_dim + rope_dim));
        if has_query_rank {
            add("self_attn.q_a_proj.weight", vec![query_rank, hidden]);
            add("self_attn.q_a_layernorm.weight", vec![query_rank]);
            add("self_attn.q_b_proj.weight", vec![queries, query_rank]);
        } else {
            add("self_attn.q_proj.weight", vec![queries, hidden]);
        }
        add("self_attn.kv_a_proj_with_mqa.weight", vec![rank + rope_dim, hidden]);
        add("self_attn.kv_a_layernorm.weight", vec![rank]);
        add("self_attn.kv_b_proj.weight", vec![self.heads * (self.head_dim + value_dim), rank]);
        add("self_attn.o_proj.weight", vec![hidden, self.heads * value_dim]);
    }

    /// Whether the layer has a delta net or a short convolution: all but the last have, in families with either.
    fn is_recurrent(&self, layer: usize) -> bool {
        let facts = self.family.facts();
        (facts.delta.is_some() || facts.short_conv_taps.is_some()) && layer + 1 < self.layers
    }

    /// Intermediate size of the shared expert, which every token has.
    fn shared_intermediate(&self) -> usize {
        match self.family.facts().experts.as_ref().map(|experts| experts.shared) {
            Some(SharedFacts::Twice) => 2 * self.intermediate,
            _ => self.intermediate,
        }
    }

    fn layer_type(&self, layer: usize) -> &'static str {
        if self.is_recurrent(layer) {
            return if self.family.facts().delta.is_some() { "linear_attention" } else { "conv" };
        }
        let slides = match self.family.facts().slides {
            Slides::Never => false,
            Slides::EveryLayer => true,
            Slides::OddLayers => layer % 2 == 1,
            Slides::AllBut(interval) => !(layer + 1).is_multiple_of(interval),
        };
        if slides && self.sliding_window.is_some() { "sliding_attention" } else { "full_attention" }
    }
}

/// Writes `config.json` and `model.safetensors` only, from parts that a test may have changed.
///
/// # Panics
/// If a file cannot be written, or the number of a tensor's values does not match its shape.
pub fn write_folder(folder: &Path, config: &Value, tensors: &[NamedTensor]) {
    std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    write_json(&folder.join("config.json"), config);
    let little_endian = |values: &[bf16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|tensor| little_endian(&tensor.values)).collect();
    let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        let view = TensorView::new(Dtype::BF16, tensor.shape.clone(), bytes);
        (tensor.name.as_str(), view.unwrap_or_else(|error| panic!("{}: {error}", tensor.name)))
    });
    let file = folder.join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

fn write_json(file: &Path, value: &Value) {
    let text = serde_json::to_string_pretty(value).expect("a JSON value has a text form");
    std::fs::write(file, text + "\n").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}
