//! [`ModelConfig`]: a decoder-only transformer as numbers. The rest of the compiler reads these fields and never a
//! family's name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use unicorn_artifact::codebook::{CODEBOOK_GROUP, Codebook};
use unicorn_kernels::StateLayout;
use unicorn_kernels::route::ExpertGroups;

use super::experts_config::{ExpertsConfig, Routing};
use super::latent_config::LatentConfig;
use super::limits;
use super::streams_config::StreamsConfig;
use super::vision_config::VisionConfig;

/// How a folder names, joins and orders a layer's tensors, where this differs from the canonical names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FolderLayout {
    /// Each tensor by its own name.
    Separate,
    /// q, k and v are one matrix, and gate and up are (Phi 3).
    Joined,
    /// As [`FolderLayout::Glm`]; and the four norms of a layer have names of their own (GLM-4-0414).
    Glm4,
    /// Gate and up are `shared_mlp.input_linear`, down is `shared_mlp.output_linear` (Granite 4).
    Granite4,
    /// The query of a head is followed by its gate, both in q (Qwen 3.5).
    Qwen3_5,
    /// The same; and a delta net's projections are two matrices, in which the rows of a key head are contiguous (Qwen3-Next).
    Qwen3Next,
    /// Experts are stacks of transposed matrices, with gate and up in turn; the router is `mlp.router` (gpt-oss).
    GptOss,
    /// Norms, the MLP's matrices and attention's output projection have names of their own (LFM2).
    Lfm2,
    /// Experts are stacks beside the MLP, and their router is `router.proj` (Gemma 4).
    Gemma4,
    /// Gate and up are one matrix; the two elements of a rotary pair are adjacent (GLM-4).
    Glm,
    /// Latent attention's matrices are `kv_a_proj_with_mqa` and `kv_b_proj`, and the shared expert is `shared_experts` (DeepSeek, GLM-4.5
    /// to 4.7).
    DeepSeek,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Activation {
    Silu,
    /// GELU by its tanh approximation (`gelu_pytorch_tanh`).
    GeluTanh,
    /// gpt-oss' SwiGLU, see `unicorn_kernels::Activation`.
    ClampedSwiGlu,
}

/// Rotary embedding of one kind of layer. Angle of pair `i` at position `p` is `p * inv_freq[i]`; cos and sin are
/// multiplied by `attention_factor`. Pair `i` is dimensions `i` and `i + rotary_dim/2` of a head; dimensions from
/// `rotary_dim` on are not rotated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RopeConfig {
    /// rotary_dim / 2 values, computed in f64 as transformers' `rope_utils` does in f32.
    pub(crate) inv_freq: Vec<f64>,
    pub(crate) attention_factor: f64,
    /// LongRoPE only: the frequencies for sequences longer than `long_above` tokens (original context), same length.
    pub(crate) long: Option<LongRope>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LongRope {
    pub(crate) inv_freq: Vec<f64>,
    pub(crate) above_tokens: usize,
}

/// Properties that may differ between layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerConfig {
    /// A row attends to this many tokens, its own included; `None`: all.
    pub(crate) window: Option<usize>,
    /// Index into [`ModelConfig::ropes`]; `None`: queries and keys are not rotated.
    pub rope: Option<usize>,
    /// Its MLP is the mixture of [`ModelConfig::experts`].
    pub(crate) has_experts: bool,
    /// It has the gated delta net of [`ModelConfig::delta`], or the convolution of [`ModelConfig::short_conv_taps`], in place of
    /// attention.
    pub(crate) is_recurrent: bool,
}

/// A gated delta net (Yang, Kautz and Hatamizadeh 2024) in place of attention, as Qwen3-Next and Qwen 3.5 have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeltaConfig {
    /// Heads of queries and keys.
    pub(crate) key_heads: usize,
    /// Heads of values; consecutive ones share a key.
    pub(crate) value_heads: usize,
    /// Elements of a key.
    pub(crate) key_dim: usize,
    /// Elements of a value.
    pub(crate) value_dim: usize,
    /// Taps of the convolution.
    pub(crate) taps: usize,
}

/// KV heads of layers that attend to all tokens, where they differ from those of other layers (Gemma 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FullHeads {
    pub(crate) n_kv_heads: usize,
    /// Width of a head, of queries as well.
    pub(crate) head_dim: usize,
    /// There is no projection of values: they are the keys, before their norm and rotation.
    pub(crate) values_are_keys: bool,
}

/// Queries are multiplied by `1 + beta ln(1 + floor(position / interval))` (`llama_4_scaling_beta`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct QueryGrowth {
    pub(crate) beta: f32,
    /// In tokens.
    pub(crate) interval: usize,
}

/// RMS norm of queries and keys before RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum QkNorm {
    None,
    /// A norm of each head (Qwen 3, Gemma 3).
    Heads,
    /// One norm of all heads together (OLMoE, OLMo 2 and 3).
    Projection,
}

/// What a model computes, and its sizes, independent of its family. Stored in artifacts: later fields are at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// config.json's `architectures[0]` (GGUF: `general.architecture`).
    pub(crate) architecture: String,
    /// Elements of a row of the residual stream.
    pub hidden_size: usize,
    /// Elements of an MLP's inner row, in layers without a mixture of experts; of Gemma 3n, the most of any layer.
    pub intermediate_size: usize,
    pub(crate) n_heads: usize,
    /// See [`ModelConfig::heads_of`].
    pub(crate) n_kv_heads: usize,
    /// See [`ModelConfig::heads_of`].
    pub(crate) head_dim: usize,
    pub(crate) vocab_size: usize,
    /// Longest context, in tokens.
    pub max_positions: usize,
    /// One entry for each decoder layer, in the order of execution; behind them that of the head of `ModelConfig::predictor`.
    pub layers: Vec<LayerConfig>,
    pub(crate) ropes: Vec<RopeConfig>,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f32,
    /// Every norm multiplies by `norm_offset + weight`: 1 for Gemma, else 0.
    pub(crate) norm_offset: f32,
    pub(crate) activation: Activation,
    pub(crate) tied_embeddings: bool,
    /// Embedding rows are multiplied by this: sqrt(hidden_size) for Gemma, `embedding_multiplier` over `residual_multiplier` for
    /// Granite, else 1.
    pub(crate) embedding_scale: f32,
    /// q·k is multiplied by this: 1/sqrt(head_dim), Gemma's 1/sqrt(query_pre_attn_scalar) or Granite's `attention_multiplier`.
    pub(crate) query_scale: f32,
    /// How q·k grows with the query's position (Ministral 3).
    pub(crate) query_growth: Option<QueryGrowth>,
    /// Scores become `cap * tanh(score / cap)` before the mask.
    pub(crate) attention_softcap: Option<f32>,
    pub(crate) final_softcap: Option<f32>,
    /// Logits are multiplied by this: one over Granite's `logits_scaling`, else 1.
    pub(crate) logits_scale: f32,
    /// Norms before attention and before the MLP (all but OLMo 2 and 3).
    pub(crate) pre_norms: bool,
    /// Norms after attention and after the MLP, before each residual sum (Gemma 2 and 3, GLM-4, OLMo 2 and 3).
    pub(crate) post_norms: bool,
    pub(crate) qk_norm: QkNorm,
    pub(crate) qkv_bias: bool,
    pub(crate) o_bias: bool,
    pub(crate) mlp_bias: bool,
    /// How the source's folder names and joins tensors; an exported folder does the same.
    pub(crate) folder: FolderLayout,
    /// Experts of the layers that have them.
    pub(crate) experts: Option<ExpertsConfig>,
    /// The delta net of the layers that have one.
    pub(crate) delta: Option<DeltaConfig>,
    /// Attention's result is multiplied by the sigmoid of a projection of its input.
    pub(crate) attention_gate: bool,
    /// Matrices that the source has as codes of 4 bits, by canonical name: INT4 artifacts hold them unchanged.
    pub(crate) kept_codes: BTreeMap<String, KeptCodes>,
    /// Each query head has a logit, `self_attn.sinks`, that takes its share of attention's softmax and has no value.
    pub(crate) attention_sinks: bool,
    /// The router and each expert's matrices have biases.
    pub(crate) expert_bias: bool,
    /// KV heads of layers without a window, where they differ from `n_kv_heads` of `head_dim`.
    pub(crate) full_heads: Option<FullHeads>,
    /// Values have an RMS norm of each head, without weights.
    pub(crate) value_norm: bool,
    /// The stream after a layer is multiplied by the layer's `layer_scalar`.
    pub(crate) layer_scalars: bool,
    /// Taps of the gated convolution of hidden_size channels, in layers that have it (LFM2).
    pub(crate) short_conv_taps: Option<usize>,
    /// Experts are beside the MLP and do not replace it (Gemma 4): router and experts each have a norm of the stream of their own,
    /// each branch ends with a norm, and an expert's weight is multiplied by a number of the expert.
    pub(crate) experts_beside_mlp: bool,
    /// The last layers of this number have no keys and values of their own, see [`ModelConfig::cache_owner`] (Gemma 3n and 4).
    pub(crate) kv_shared_layers: usize,
    /// The MLPs of those layers are twice as wide.
    pub(crate) double_wide_mlp: bool,
    /// An input of each layer beside the stream.
    pub(crate) per_layer_inputs: Option<PerLayerInputs>,
    /// How experts are chosen and weighted, where it is not by a softmax alone.
    pub(crate) routing: Option<Routing>,
    /// The shared expert's result is added as it is, without a gate.
    pub(crate) shared_expert_ungated: bool,
    /// Attention over one latent vector of each token (DeepSeek, GLM-4.7-Flash), instead of keys and values of heads.
    pub(crate) latent: Option<LatentConfig>,
    /// What makes rows of the stream of images.
    pub(crate) vision: Option<VisionConfig>,
    /// Experts are chosen among those of the best groups (DeepSeek-V2 and V3).
    pub(crate) expert_groups: Option<ExpertGroups>,
    /// The last layer is that of a head that predicts the token behind the next one, see `predictor`.
    pub(crate) predictor: bool,
    /// Several streams of the residual (Gemma 3n).
    pub(crate) streams: Option<StreamsConfig>,
}

/// A row for each token and layer, by which the layer's last gate is multiplied (Gemma 3n, Gemma 4 E2B and E4B): the sum of a row of a second
/// embedding and of a projection of the first one, after a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PerLayerInputs {
    /// Rows of the second embedding, each of `width` for each layer.
    pub(crate) vocab_size: usize,
    /// Elements of one layer's input.
    pub(crate) width: usize,
}

/// The format that holds a matrix of the source without quantising it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptCodes {
    /// Weights that share a scale and a zero point: the largest of 32, 64 and 128 that is inside the source's.
    pub(crate) group: u32,
    pub(crate) codes: Codes,
}

impl KeptCodes {
    /// A matrix of MXFP4.
    pub(crate) const FP4: KeptCodes = KeptCodes { group: CODEBOOK_GROUP as u32, codes: Codes::Fp4 };
    /// A matrix of IQ4_NL or IQ4_XS.
    pub(crate) const IQ4: KeptCodes = KeptCodes { group: CODEBOOK_GROUP as u32, codes: Codes::Iq4 };
}

/// Numbers of 4 bits; a byte of an artifact's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub(crate) enum Codes {
    Int4,
    /// INT4 with scales of more bits than `Int4` has.
    WideInt4,
    /// MXFP4.
    Fp4,
    /// IQ4_NL and IQ4_XS.
    Iq4,
}

impl Codes {
    /// The table that codes are places in; `None`: they are INT4.
    pub(crate) fn codebook(self) -> Option<Codebook> {
        match self {
            Codes::Int4 | Codes::WideInt4 => None,
            Codes::Fp4 => Some(Codebook::Fp4),
            Codes::Iq4 => Some(Codebook::Iq4),
        }
    }
}

impl From<Codes> for u8 {
    fn from(codes: Codes) -> u8 {
        codes as u8
    }
}

impl TryFrom<u8> for Codes {
    type Error = String;

    fn try_from(byte: u8) -> Result<Codes, String> {
        let all = [Codes::Int4, Codes::WideInt4, Codes::Fp4, Codes::Iq4];
        all.get(usize::from(byte)).copied().ok_or_else(|| format!("codes are of kind {byte}, expected at most 3"))
    }
}

impl ModelConfig {
    /// Checks relations between fields. Sizes are already within [`limits`], because layers and ropes have been allocated
    /// from them. The message begins with the field.
    pub(super) fn check(&self) -> Result<(), String> {
        let full_heads = self.full_heads.map(|heads| (heads.n_kv_heads, "num_global_key_value_heads"));
        for (n_kv_heads, name) in [(self.n_kv_heads, "num_key_value_heads")].into_iter().chain(full_heads) {
            if !self.n_heads.is_multiple_of(n_kv_heads) {
                return Err(format!(
                    "num_attention_heads is {}, expected a multiple of {name}, {n_kv_heads}",
                    self.n_heads
                ));
            }
        }
        for (name, value) in [
            ("rms_norm_eps", self.rms_norm_eps),
            ("the scale of q·k", self.query_scale),
            ("the scale of embeddings", self.embedding_scale),
            ("the scale of logits", self.logits_scale),
            ("the soft cap of attention", self.attention_softcap.unwrap_or(1.0)),
            ("the soft cap of the logits", self.final_softcap.unwrap_or(1.0)),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("{name} is {value}, expected a finite number above 0"));
            }
        }
        for rope in &self.ropes {
            rope.check()?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let head_dim = self.heads_of(index).head_dim;
            let rotary_dim = layer.rope.map_or(0, |rope| self.ropes[rope].rotary_dim());
            if rotary_dim > head_dim {
                return Err(format!("rotary dimension is {rotary_dim}, expected 2 to head_dim, {head_dim}"));
            }
        }
        let first_shared = self.layers.len().saturating_sub(self.kv_shared_layers);
        let has_owner = |layer: &LayerConfig| self.layers[..first_shared].iter().any(|own| own.window == layer.window);
        if !self.layers[first_shared..].iter().all(has_owner) {
            return Err(format!(
                "num_kv_shared_layers is {} of {} layers, expected a layer of each attention type before those",
                self.kv_shared_layers,
                self.layers.len()
            ));
        }
        if let Some(Routing { factor, .. }) = self.routing
            && !(factor.is_finite() && factor > 0.0)
        {
            return Err(format!("routed_scaling_factor is {factor}, expected a finite number above 0"));
        }
        if let Some(groups) = self.expert_groups {
            let experts = self.experts.as_ref().ok_or("n_group is given, expected none without experts")?;
            experts.check_groups(groups)?;
        }
        if let Some(inputs) = self.per_layer_inputs {
            if !(1..=limits::HEAD_DIM).contains(&inputs.width) {
                return Err(format!("input of a layer is {} wide, expected 1 to {}", inputs.width, limits::HEAD_DIM));
            }
            // Only Gemma 3n defines what tokens beyond the second embedding have of it.
            let least = if self.streams.is_some() { 1 } else { self.vocab_size };
            if !(least..=limits::VOCAB_SIZE).contains(&inputs.vocab_size) {
                return Err(format!(
                    "vocab_size_per_layer_input is {}, expected at least vocab_size, {}",
                    inputs.vocab_size, self.vocab_size
                ));
            }
        }
        if let Some(streams) = &self.streams {
            streams.check(self.layers.len())?;
            self.per_layer_inputs
                .ok_or("hidden_size_per_layer_input is 0, expected a number beside altup_num_inputs")?;
            let has_others = self.experts.is_some() || self.latent.is_some() || self.vision.is_some() || self.predictor;
            let is_plain = self.layers.iter().all(|layer| !layer.is_recurrent) && self.pre_norms && self.post_norms;
            if has_others || !is_plain {
                return Err(
                    "altup_num_inputs is given, expected none beside layers of another kind than Gemma 3n's".into()
                );
            }
        }
        if let Some(growth) = self.query_growth
            && !(growth.beta.is_finite() && growth.beta >= 0.0 && (1..=limits::POSITIONS).contains(&growth.interval))
        {
            return Err(format!(
                "llama_4_scaling_beta is {} for each {} tokens, expected numbers from 0 and 1 on",
                growth.beta, growth.interval
            ));
        }
        if let Some((name, kept)) = self.kept_codes.iter().find(|(_, kept)| ![32, 64, 128].contains(&kept.group)) {
            return Err(format!("{name} has codes in groups of {}, expected 32, 64 or 128", kept.group));
        }
        match &self.delta {
            Some(delta) => delta.check()?,
            None if self.short_conv_taps.is_none() && self.layers.iter().any(|layer| layer.is_recurrent) => {
                return Err("a layer has a delta net of no size".into());
            }
            None => {}
        }
        if let Some(taps) = self.short_conv_taps.filter(|taps| !(2..=limits::TAPS).contains(taps)) {
            return Err(format!("conv_L_cache is {taps}, expected 2 to {}", limits::TAPS));
        }
        if let Some(latent) = &self.latent {
            latent.check()?;
        }
        if let Some(vision) = &self.vision {
            vision.check()?;
            if vision.begin_token.max(vision.row_token).max(vision.end_token) as usize >= self.vocab_size {
                return Err(format!("tokens of images are beyond vocab_size, {}", self.vocab_size));
            }
        }
        match &self.experts {
            Some(experts) => experts.check(),
            None if self.layers.iter().any(|layer| layer.has_experts) => Err("a layer has experts of no size".into()),
            None => Ok(()),
        }
    }

    /// The heads of a layer's attention.
    pub(crate) fn heads_of(&self, layer: usize) -> FullHeads {
        let same = FullHeads { n_kv_heads: self.n_kv_heads, head_dim: self.head_dim, values_are_keys: false };
        self.full_heads.filter(|_| self.layers[layer].window.is_none()).unwrap_or(same)
    }

    /// The layer whose keys and values a layer's attention reads: itself or, for one of [`ModelConfig::kv_shared_layers`], the last
    /// layer before all of those with the same window.
    pub(crate) fn cache_owner(&self, layer: usize) -> usize {
        let first_shared = self.layers.len() - self.kv_shared_layers;
        let is_owner = |&owner: &usize| self.layers[owner].window == self.layers[layer].window;
        if layer < first_shared { layer } else { (0..first_shared).rfind(is_owner).expect("checked") }
    }

    /// Whether a layer writes keys and values of its own.
    pub(crate) fn has_own_cache(&self, layer: usize) -> bool {
        layer + self.kv_shared_layers < self.layers.len()
    }

    /// Elements of the inner row of a layer's MLP.
    pub(crate) fn mlp_width(&self, layer: usize) -> usize {
        if let Some(streams) = &self.streams {
            return streams.mlp_widths[layer];
        }
        let is_double = self.double_wide_mlp && !self.has_own_cache(layer);
        if is_double { 2 * self.intermediate_size } else { self.intermediate_size }
    }

    /// Standard deviations above the mean from which on the gates of a layer's MLP are kept; `None`: all are.
    pub(crate) fn gate_deviations(&self, layer: usize) -> Option<f32> {
        self.streams.as_ref().and_then(|streams| streams.gate_deviations[layer])
    }

    /// Whether a tensor is one of keys or values in a layer that reads those of another: files have them and nothing reads them.
    pub(crate) fn is_of_shared_cache(&self, canonical: &str) -> bool {
        let layer_and_name = canonical.strip_prefix("layers.").and_then(|rest| rest.split_once(".self_attn."));
        let Some((layer, name)) = layer_and_name else { return false };
        let is_shared = |layer: usize| layer < self.layers.len() && !self.has_own_cache(layer);
        ["k_proj.", "v_proj.", "k_norm.", "v_norm."].iter().any(|part| name.starts_with(part))
            && layer.parse().is_ok_and(is_shared)
    }

    /// Whether a tensor belongs to a layer behind the last: DeepSeek and GLM have one there that predicts a further token.
    pub(crate) fn is_behind_the_layers(&self, canonical: &str) -> bool {
        let layer = canonical.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        self.folder == FolderLayout::DeepSeek && layer.is_some_and(|layer| layer >= self.layers.len())
    }

    /// Channels of the convolution in a recurrent layer.
    pub(crate) fn conv_channels(&self) -> usize {
        self.delta.map_or(self.hidden_size, |delta| delta.channels())
    }

    /// A recurrent layer's state.
    ///
    /// # Panics
    /// If the model has no such layers.
    pub(crate) fn state_layout(&self) -> StateLayout {
        let (heads, key_dim, value_dim, taps) = match (&self.delta, self.short_conv_taps) {
            (Some(delta), _) => (delta.value_heads, delta.key_dim, delta.value_dim, delta.taps),
            (None, taps) => (0, 0, 0, taps.expect("recurrent layers have their sizes")),
        };
        StateLayout { heads, key_dim, value_dim, channels: self.conv_channels(), taps }
    }

    /// Numbers in all of the model's tensors.
    pub(crate) fn parameters(&self) -> u64 {
        self.tensor_shapes().values().map(|shape| shape.iter().product::<usize>() as u64).sum()
    }

    /// Canonical name to shape, outermost axis first, of every tensor of [`super::Checkpoint::tensors`].
    pub fn tensor_shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let hidden = self.hidden_size;
        let mut shapes = BTreeMap::from([
            ("embed_tokens.weight".to_owned(), vec![self.vocab_size, hidden]),
            ("norm.weight".to_owned(), vec![hidden]),
        ]);
        if !self.tied_embeddings {
            shapes.insert("lm_head.weight".to_owned(), vec![self.vocab_size, hidden]);
        }
        if let Some(vision) = &self.vision {
            vision.add_shapes(hidden, &mut shapes);
        }
        let has_qk_norm = self.qk_norm != QkNorm::None;
        if let Some(PerLayerInputs { vocab_size, width }) = self.per_layer_inputs {
            let all = self.layers.len() * width;
            shapes.insert("embed_tokens_per_layer.weight".to_owned(), vec![vocab_size, all]);
            shapes.insert("per_layer_model_projection.weight".to_owned(), vec![all, hidden]);
            shapes.insert("per_layer_projection_norm.weight".to_owned(), vec![width]);
            for layer in 0..self.layers.len() {
                shapes.insert(format!("layers.{layer}.per_layer_input_gate.weight"), vec![width, hidden]);
                shapes.insert(format!("layers.{layer}.per_layer_projection.weight"), vec![hidden, width]);
                shapes.insert(format!("layers.{layer}.post_per_layer_input_norm.weight"), vec![hidden]);
            }
        }
        for (layer, config) in self.layers.iter().enumerate() {
            let FullHeads { n_kv_heads, head_dim, values_are_keys } = self.heads_of(layer);
            let (q_rows, kv_rows) = (self.n_heads * head_dim, n_kv_heads * head_dim);
            let (intermediate, has_cache) = (self.mlp_width(layer), self.has_own_cache(layer));
            let mlp = [
                ("mlp.gate_proj", intermediate, hidden, self.mlp_bias),
                ("mlp.up_proj", intermediate, hidden, self.mlp_bias),
                ("mlp.down_proj", hidden, intermediate, self.mlp_bias),
            ];
            let attention = [
                ("self_attn.q_proj", q_rows, hidden, self.qkv_bias),
                ("self_attn.gate_proj", if self.attention_gate { q_rows } else { 0 }, hidden, self.qkv_bias),
                ("self_attn.k_proj", if has_cache { kv_rows } else { 0 }, hidden, self.qkv_bias),
                ("self_attn.v_proj", if values_are_keys || !has_cache { 0 } else { kv_rows }, hidden, self.qkv_bias),
                ("self_attn.o_proj", hidden, q_rows, self.o_bias),
            ];
            // The width of a norm of q or k is that of a head, or of the projection.
            let qk_width = |rows| if self.qk_norm == QkNorm::Projection { rows } else { head_dim };
            let norms = [
                ("input_layernorm", hidden, self.pre_norms),
                ("post_attention_layernorm", hidden, true),
                ("pre_feedforward_layernorm", hidden, self.pre_norms && self.post_norms),
                ("post_feedforward_layernorm", hidden, self.post_norms),
                ("self_attn.q_norm", qk_width(q_rows), has_qk_norm),
                ("self_attn.k_norm", qk_width(kv_rows), has_qk_norm && has_cache),
            ];
            if self.layer_scalars {
                shapes.insert(format!("layers.{layer}.layer_scalar"), vec![1]);
            }
            let experts = self.experts.as_ref().filter(|_| config.has_experts);
            let has_mlp = experts.is_none() || self.experts_beside_mlp;
            if let Some(experts) = experts {
                experts.add_shapes(layer, hidden, self.expert_bias, &mut shapes);
                if experts.shared_intermediate_size.is_some() && !self.shared_expert_ungated {
                    shapes.insert(format!("layers.{layer}.mlp.shared_expert_gate.weight"), vec![1, hidden]);
                }
                if self.routing.is_some_and(|routing| routing.choice_bias) {
                    shapes.insert(format!("layers.{layer}.mlp.gate.choice_bias"), vec![experts.count]);
                }
                if self.experts_beside_mlp {
                    for norm in
                        ["post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"]
                    {
                        shapes.insert(format!("layers.{layer}.{norm}.weight"), vec![hidden]);
                    }
                    shapes.insert(format!("layers.{layer}.router.scale"), vec![hidden]);
                    shapes.insert(format!("layers.{layer}.router.per_expert_scale"), vec![experts.count]);
                }
            }
            match (&self.delta, self.short_conv_taps) {
                (Some(delta), _) if config.is_recurrent => delta.add_shapes(layer, hidden, &mut shapes),
                (None, Some(taps)) if config.is_recurrent => shapes.extend([
                    (format!("layers.{layer}.conv.in_proj.weight"), vec![3 * hidden, hidden]),
                    (format!("layers.{layer}.conv.conv.weight"), vec![hidden, 1, taps]),
                    (format!("layers.{layer}.conv.out_proj.weight"), vec![hidden, hidden]),
                ]),
                _ => {}
            }
            if self.attention_sinks {
                shapes.insert(format!("layers.{layer}.self_attn.sinks"), vec![self.n_heads]);
            }
            let mlp = mlp.iter().filter(|_| has_mlp);
            if let Some(latent) = &self.latent {
                latent.add_shapes(layer, hidden, self.n_heads, &mut shapes);
            }
            let has_heads = !config.is_recurrent && self.latent.is_none();
            let attention = attention.iter().filter(|(_, rows, ..)| has_heads && *rows > 0);
            for &(name, rows, cols, has_bias) in attention.chain(mlp) {
                shapes.insert(format!("layers.{layer}.{name}.weight"), vec![rows, cols]);
                if has_bias {
                    shapes.insert(format!("layers.{layer}.{name}.bias"), vec![rows]);
                }
            }
            let is_here = |name: &str, present| present && !(config.is_recurrent && name.starts_with("self_attn."));
            for (name, size, _) in norms.iter().filter(|(name, _, present)| is_here(name, *present)) {
                shapes.insert(format!("layers.{layer}.{name}.weight"), vec![*size]);
            }
        }
        if let Some(streams) = &self.streams {
            streams.add_shapes(hidden, &mut shapes);
        }
        self.add_predictor_shapes(&mut shapes);
        shapes
    }
}

impl DeltaConfig {
    /// Channels of the convolution: q and k of all key heads, then v.
    pub(crate) fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_width()
    }

    /// Elements of all values of a token.
    pub(crate) fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    fn check(&self) -> Result<(), String> {
        for (name, value, least, most) in [
            ("linear_num_key_heads", self.key_heads, 1, limits::HEADS),
            ("linear_num_value_heads", self.value_heads, 1, limits::HEADS),
            ("linear_key_head_dim", self.key_dim, 4, limits::DELTA_KEY_DIM),
            ("linear_value_head_dim", self.value_dim, 1, limits::HEAD_DIM),
            ("linear_conv_kernel_dim", self.taps, 2, limits::TAPS),
        ] {
            if !(least..=most).contains(&value) {
                return Err(format!("{name} is {value}, expected {least} to {most}"));
            }
        }
        if !self.key_dim.is_multiple_of(4) {
            return Err(format!("linear_key_head_dim is {}, expected a multiple of 4", self.key_dim));
        }
        if !self.value_heads.is_multiple_of(self.key_heads) {
            return Err(format!(
                "linear_num_value_heads is {}, expected a multiple of linear_num_key_heads, {}",
                self.value_heads, self.key_heads
            ));
        }
        Ok(())
    }

    /// The tensors of layer `layer` in [`ModelConfig::tensor_shapes`].
    fn add_shapes(&self, layer: usize, hidden: usize, shapes: &mut BTreeMap<String, Vec<usize>>) {
        let (channels, width, heads) = (self.channels(), self.value_width(), self.value_heads);
        for (name, shape) in [
            ("in_proj_qkv.weight", vec![channels, hidden]),
            ("in_proj_z.weight", vec![width, hidden]),
            ("in_proj_b.weight", vec![heads, hidden]),
            ("in_proj_a.weight", vec![heads, hidden]),
            ("conv1d.weight", vec![channels, 1, self.taps]),
            ("A_log", vec![heads]),
            ("dt_bias", vec![heads]),
            ("norm.weight", vec![self.value_dim]),
            ("out_proj.weight", vec![hidden, width]),
        ] {
            shapes.insert(format!("layers.{layer}.linear_attn.{name}"), shape);
        }
    }
}

impl RopeConfig {
    /// Dimensions of a head that are rotated.
    pub(crate) fn rotary_dim(&self) -> usize {
        2 * self.inv_freq.len()
    }

    fn check(&self) -> Result<(), String> {
        if self.inv_freq.is_empty() {
            return Err("rotary dimension is 0, expected 2 to head_dim".into());
        }
        let long = self.long.iter().flat_map(|long| &long.inv_freq);
        if let Some(frequency) = self.inv_freq.iter().chain(long).find(|f| !(f.is_finite() && **f >= 0.0)) {
            return Err(format!(
                "rotary frequency is {frequency}, expected a finite number from rope_theta and factors"
            ));
        }
        if !(self.attention_factor.is_finite() && self.attention_factor > 0.0) {
            return Err(format!("attention_factor is {}, expected a finite number above 0", self.attention_factor));
        }
        Ok(())
    }
}
