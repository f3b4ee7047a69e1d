//! transformers' defaults for fields that config.json does not have: one [`FamilyDefaults`] per architecture.

mod deepseek;
mod gemma;
mod qwen;

use deepseek::{DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE, GLM4_MOE_LITE};
use gemma::{GEMMA2, GEMMA3_MULTIMODAL, GEMMA3_TEXT, GEMMA3N_MULTIMODAL, GEMMA3N_TEXT, GEMMA4_MULTIMODAL, GEMMA4_TEXT};
use qwen::{QWEN2, QWEN2_MOE, QWEN3, QWEN3_5, QWEN3_5_MOE, QWEN3_5_MOE_TEXT, QWEN3_5_TEXT};
use qwen::{QWEN3_MOE, QWEN3_NEXT, QWEN3_VL, QWEN3_VL_MOE};

use super::config::{Activation, FolderLayout, QkNorm};
use super::experts_config::ExpertNames;
use super::json::Fields;
use crate::error::{CompileError, Result};

/// Values of a config class's fields before config.json is read, as in transformers 5.
pub(super) struct FamilyDefaults {
    pub architecture: &'static str,
    /// Names the family where `architectures` is missing.
    pub model_type: &'static str,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_field: &'static str,
    pub intermediate_size: usize,
    pub layers: usize,
    pub heads: usize,
    /// `None`: as many as heads.
    pub kv_heads: Option<usize>,
    /// `None`: hidden_size / heads.
    pub head_dim: Option<usize>,
    pub max_positions: usize,
    pub norm_eps_field: &'static str,
    pub rms_norm_eps: f64,
    pub tied_embeddings: bool,
    pub rope_theta: f64,
    /// RoPE's base in sliding layers, where the family gives them another rotary embedding.
    pub local_rope_theta: Option<f64>,
    /// A rotary embedding for each layer type: `rope_theta` and `rope_scaling` are those of layers that attend to all tokens, and
    /// `rope_theta` above is the default.
    pub rope_by_layer_type: bool,
    /// The share of a head that has a rotary embedding, where that may be less than the whole.
    pub partial_rotary: Option<f64>,
    /// Queries grow with their position, by the rotary embedding's `llama_4_scaling_beta`.
    pub query_growth: bool,
    pub original_positions: Option<usize>,
    pub windows: Windows,
    pub activation_field: &'static str,
    pub activation: Activation,
    pub rotated: Rotated,
    pub qk_norm: QkNorm,
    /// Heads have a norm if `use_qk_norm` is true.
    pub qk_norm_as_configured: bool,
    pub bias: Bias,
    /// Norms before attention and MLP.
    pub pre_norms: bool,
    /// Norms after them.
    pub post_norms: bool,
    pub folder: FolderLayout,
    pub gemma: Option<GemmaDefaults>,
    /// Embedding, residual sum, scores and logits each have a multiplier (Granite).
    pub multipliers: bool,
    /// Layers may be of another kind, and may have experts; without both, it is dense.
    pub is_hybrid: bool,
    /// Some layers have experts in place of the MLP.
    pub experts: Option<ExpertDefaults>,
    /// Most layers have a gated delta net in place of attention, the others gated attention, and norms multiply by 1 + weight.
    pub delta: Option<DeltaDefaults>,
    /// LFM2: some layers have a short convolution of this number of taps (`conv_L_cache`) instead of attention; the intermediate size is
    /// computed by `block_auto_adjust_ff_dim`.
    pub short_conv_taps: Option<usize>,
    /// Query heads have sinks, and the router and experts biases.
    pub sinks_and_expert_bias: bool,
    /// Layers that attend to all tokens have heads of their own, and the last layer is one of them (Gemma 4).
    pub full_heads: Option<FullHeadDefaults>,
    /// The residual has several streams (Gemma 3n).
    pub has_streams: bool,
    /// Attention is over a latent vector of each token.
    pub latent: Option<LatentDefaults>,
    /// The vision tower that we compile, if config.json has one.
    pub vision: Option<VisionTower>,
    /// The default rotary embedding is YaRN by this factor of 4096 positions, with a ramp that is not truncated.
    pub yarn: Option<f64>,
    /// The text model is config.json's `text_config`, and of one of these families if it is a model of its own: the first, if it
    /// does not name one.
    pub text_models: &'static [&'static FamilyDefaults],
}

/// A kind of vision tower.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum VisionTower {
    /// SigLIP with Gemma 3's projector, for images of one size.
    Siglip,
    /// For images of any size.
    Qwen3Vl,
}

/// Which layers have a rotary embedding.
pub(super) enum Rotated {
    All,
    /// Without `no_rope_layers`, all layers except each of this interval (`no_rope_layer_interval`).
    AllBut(usize),
    /// All layers or none, by `position_embedding_type`.
    ByType,
}

/// Which layers attend to a window only.
pub(super) enum Windows {
    Never,
    /// Every layer, if `sliding_window` is a number; the value is its default.
    EveryLayer(Option<usize>),
    /// With `use_sliding_window`.
    WhenAsked {
        window: usize,
        layers: AskedWindows,
    },
    /// With `use_sliding_window`, when `sliding_window` is a number: the layers that `layer_types` names, else those without a
    /// rotary embedding.
    Unrotated,
    /// The layers that `layer_types` names, else every layer, if `sliding_window` is a number; the value is its default.
    Named(usize),
    /// The layers that `layer_types` names, else all but each `pattern`-th.
    Alternating {
        window: usize,
        pattern: usize,
    },
}

/// Which layers attend to a window only if `use_sliding_window` is true. The values are defaults of `max_window_layers`.
#[derive(Clone, Copy)]
pub(super) enum AskedWindows {
    All,
    /// The layers that `layer_types` names, else those from `max_window_layers` on.
    From(usize),
    /// The layers that `layer_types` names, else the first, third and so on of those before `max_window_layers`.
    AlternatingUpTo(usize),
}

/// The config class's fields of a mixture of experts.
pub(super) struct ExpertDefaults {
    /// Where the class stores the number of experts.
    pub count_field: &'static str,
    pub count: usize,
    /// `num_experts_per_tok`; `None`: it must be given.
    pub chosen: Option<usize>,
    pub normalized: Normalized,
    /// `moe_intermediate_size`; `None`: it is `intermediate_size`.
    pub intermediate_size: Option<usize>,
    pub shared: SharedExpert,
    pub layers: ExpertLayers,
    pub routing: RoutingDefaults,
    pub names: ExpertNames,
}

/// The expert that every row is given to.
pub(super) enum SharedExpert {
    Absent,
    /// With a gate; `shared_expert_intermediate_size`.
    Gated(usize),
    /// Without a gate; `n_shared_experts` times the width of an expert.
    Several(usize),
}

/// Which layers have experts.
pub(super) enum ExpertLayers {
    All,
    /// Those that `decoder_sparse_step` and `mlp_only_layers` select.
    Selected,
    /// Those that `mlp_layer_types` calls sparse, else all but the first ones, whose number is this field's.
    AfterDense {
        field: &'static str,
        default: usize,
    },
}

/// How experts are chosen and weighted.
pub(super) enum RoutingDefaults {
    /// By a softmax.
    Softmax,
    /// The same; weights are multiplied by `routed_scaling_factor`, which is this by default.
    ScaledSoftmax(f64),
    /// By sigmoids plus a bias, unless `use_expert_bias` is false; with the same factor.
    Sigmoid(f64),
    /// The same, among the experts of some groups: `n_group` and `topk_group` are these by default.
    GroupedSigmoid { factor: f64, groups: usize, kept: usize },
}

/// The config class's fields of latent attention.
pub(super) struct LatentDefaults {
    pub query_rank: Option<usize>,
    pub rank: usize,
    pub nope_dim: usize,
    pub rope_dim: usize,
    pub value_dim: usize,
}

/// The config class's fields of a gated delta net.
pub(super) struct DeltaDefaults {
    pub key_heads: usize,
    pub value_heads: usize,
    pub head_dim: usize,
    pub taps: usize,
    /// Without `layer_types`, every layer of this interval has attention.
    pub attention_interval: usize,
}

/// Whether the weights of a row's experts are divided by their sum.
pub(super) enum Normalized {
    Never,
    Always,
    /// If `norm_topk_prob` is true.
    WhenAsked,
    /// Unless `norm_topk_prob` is false.
    UnlessForbidden,
}

pub(super) enum Bias {
    Never,
    /// q, k and v have biases.
    Qkv,
    /// q, k and v have biases unless `qkv_bias` is false.
    QkvUnlessForbidden,
    /// q, k and v have biases if `attention_bias` is true; the value is its default.
    QkvAsConfigured(bool),
    /// q, k, v and o have biases unless `attention_bias` is false.
    AttentionUnlessForbidden,
    /// q, k, v and o have biases if `attention_bias` is true.
    AttentionAsConfigured,
    /// q, k, v and o have biases if `attention_bias` is true, the MLP if `mlp_bias` is.
    AsConfigured,
}

/// Defaults that all Gemmas share: norms after attention and MLP, scaled embeddings.
pub(super) struct GemmaDefaults {
    /// Norms multiply by 1 + weight.
    pub norms_add_one: bool,
    pub query_pre_attn_scalar: f64,
    pub attention_softcap: Option<f64>,
    pub final_softcap: Option<f64>,
}

/// The config class's heads of layers that attend to all tokens. Models with them also have a proportional rotary embedding, a norm
/// of values, and a scalar for each layer.
pub(super) struct FullHeadDefaults {
    pub head_dim: usize,
    /// Default of the share of pairs that are rotated.
    pub rotated_share: f64,
}

impl FamilyDefaults {
    /// The family of the text model that this one's config.json holds as `text`.
    ///
    /// # Errors
    /// When it is not one of the families that are supported there.
    pub fn text_model(&'static self, text: &Fields) -> Result<&'static FamilyDefaults> {
        let [first, ..] = self.text_models else { return Ok(self) };
        let Some(model_type) = text.text("model_type")? else { return Ok(first) };
        let found = self.text_models.iter().find(|family| family.model_type == model_type).copied();
        found.ok_or_else(|| CompileError::Unsupported {
            what: format!("text_config of model_type {model_type}"),
            detail: format!(
                "the text model of {} is read as {}",
                self.architecture,
                self.text_models.iter().map(|family| family.model_type).collect::<Vec<_>>().join(" or ")
            ),
        })
    }
}

/// The defaults for a config.json, chosen by its first architecture.
pub(super) fn family_of(config: &Fields) -> Result<&'static FamilyDefaults> {
    let architectures = config.texts("architectures")?.unwrap_or_default();
    let found = match (architectures.first(), config.text("model_type")?) {
        (Some(architecture), _) => {
            FAMILIES.iter().find(|family| family.architecture == *architecture).ok_or(*architecture)
        }
        (None, Some(model_type)) => FAMILIES.iter().find(|family| family.model_type == model_type).ok_or(model_type),
        (None, None) => return Err(config.error("architectures", "is missing, expected a list of one name")),
    };
    found.map_err(|found| CompileError::UnsupportedArchitecture {
        found: found.to_owned(),
        supported: FAMILIES.iter().map(|family| family.architecture).collect(),
    })
}

/// `model_type` of a text model on its own: that of the family with its architecture. Qwen3-VL's is a Qwen 3 there.
pub(super) fn model_type_of(text_model: &FamilyDefaults) -> &'static str {
    let found = FAMILIES.iter().find(|family| family.architecture == text_model.architecture);
    found.map_or(text_model.model_type, |family| family.model_type)
}

static FAMILIES: [FamilyDefaults; 40] = [
    LLAMA,
    MISTRAL,
    MISTRAL3_MULTIMODAL,
    MINISTRAL,
    MINISTRAL3,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    GEMMA2,
    GEMMA3_TEXT,
    GEMMA3_MULTIMODAL,
    GEMMA3N_TEXT,
    GEMMA3N_MULTIMODAL,
    GEMMA4_TEXT,
    GEMMA4_MULTIMODAL,
    OLMO2,
    OLMO3,
    OLMOE,
    GLM,
    GLM4,
    GPT_OSS,
    GRANITE,
    GRANITE4,
    LFM2,
    LFM2_MOE,
    PHI3,
    SMOLLM3,
    QWEN3_NEXT,
    QWEN3_5_TEXT,
    QWEN3_5,
    QWEN3_5_MOE_TEXT,
    QWEN3_5_MOE,
    QWEN3_VL,
    QWEN3_VL_MOE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GLM4_MOE,
    GLM4_MOE_LITE,
];

const LLAMA: FamilyDefaults = FamilyDefaults {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    vocab_size: 32000,
    hidden_size: 4096,
    intermediate_field: "intermediate_size",
    intermediate_size: 11008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    max_positions: 2048,
    norm_eps_field: "rms_norm_eps",
    rms_norm_eps: 1e-6,
    tied_embeddings: false,
    rope_theta: 10_000.0,
    local_rope_theta: None,
    rope_by_layer_type: false,
    partial_rotary: None,
    query_growth: false,
    original_positions: None,
    windows: Windows::Never,
    activation_field: "hidden_act",
    activation: Activation::Silu,
    rotated: Rotated::All,
    qk_norm: QkNorm::None,
    qk_norm_as_configured: false,
    bias: Bias::AsConfigured,
    pre_norms: true,
    post_norms: false,
    folder: FolderLayout::Separate,
    gemma: None,
    multipliers: false,
    is_hybrid: false,
    experts: None,
    delta: None,
    short_conv_taps: None,
    sinks_and_expert_bias: false,
    full_heads: None,
    has_streams: false,
    latent: None,
    vision: None,
    yarn: None,
    text_models: &[],
};

const LFM2: FamilyDefaults = FamilyDefaults {
    architecture: "Lfm2ForCausalLM",
    model_type: "lfm2",
    vocab_size: 65_536,
    hidden_size: 2560,
    intermediate_size: 12_288,
    kv_heads: Some(8),
    max_positions: 128_000,
    norm_eps_field: "norm_eps",
    rms_norm_eps: 1e-5,
    tied_embeddings: true,
    rope_theta: 1e6,
    qk_norm: QkNorm::Heads,
    bias: Bias::Never,
    folder: FolderLayout::Lfm2,
    short_conv_taps: Some(3),
    ..LLAMA
};

const LFM2_MOE: FamilyDefaults = FamilyDefaults {
    architecture: "Lfm2MoeForCausalLM",
    model_type: "lfm2_moe",
    hidden_size: 2048,
    intermediate_size: 7168,
    experts: Some(ExpertDefaults {
        count_field: "num_experts",
        count: 32,
        chosen: Some(4),
        normalized: Normalized::UnlessForbidden,
        intermediate_size: Some(1792),
        shared: SharedExpert::Absent,
        layers: ExpertLayers::AfterDense { field: "num_dense_layers", default: 2 },
        routing: RoutingDefaults::Sigmoid(1.0),
        names: ExpertNames::Lfm2,
    }),
    short_conv_taps: Some(3),
    ..LFM2
};

const MISTRAL: FamilyDefaults = FamilyDefaults {
    architecture: "MistralForCausalLM",
    model_type: "mistral",
    intermediate_size: 14336,
    kv_heads: Some(8),
    max_positions: 4096 * 32,
    windows: Windows::EveryLayer(Some(4096)),
    bias: Bias::Never,
    ..LLAMA
};

const MINISTRAL: FamilyDefaults = FamilyDefaults {
    architecture: "MinistralForCausalLM",
    model_type: "ministral",
    windows: Windows::Named(4096),
    ..MISTRAL
};

const MINISTRAL3: FamilyDefaults = FamilyDefaults {
    architecture: "Ministral3ForCausalLM",
    model_type: "ministral3",
    vocab_size: 131_072,
    layers: 34,
    head_dim: Some(128),
    max_positions: 262_144,
    rms_norm_eps: 1e-5,
    windows: Windows::EveryLayer(None),
    query_growth: true,
    ..MISTRAL
};

const MISTRAL3_MULTIMODAL: FamilyDefaults = FamilyDefaults {
    architecture: "Mistral3ForConditionalGeneration",
    model_type: "mistral3",
    text_models: &[&MISTRAL, &MINISTRAL3, &MINISTRAL],
    ..MISTRAL
};

const MIXTRAL: FamilyDefaults = FamilyDefaults {
    architecture: "MixtralForCausalLM",
    model_type: "mixtral",
    rms_norm_eps: 1e-5,
    windows: Windows::EveryLayer(None),
    rope_theta: 1e6,
    experts: Some(ExpertDefaults {
        count_field: "num_local_experts",
        count: 8,
        chosen: Some(2),
        normalized: Normalized::Always,
        intermediate_size: None,
        shared: SharedExpert::Absent,
        layers: ExpertLayers::All,
        routing: RoutingDefaults::Softmax,
        names: ExpertNames::Mixtral,
    }),
    ..MISTRAL
};

const OLMOE: FamilyDefaults = FamilyDefaults {
    architecture: "OlmoeForCausalLM",
    model_type: "olmoe",
    vocab_size: 50304,
    hidden_size: 2048,
    intermediate_size: 2048,
    layers: 16,
    heads: 16,
    max_positions: 4096,
    rms_norm_eps: 1e-5,
    qk_norm: QkNorm::Projection,
    experts: Some(ExpertDefaults {
        count_field: "num_experts",
        count: 64,
        chosen: Some(8),
        normalized: Normalized::WhenAsked,
        intermediate_size: None,
        shared: SharedExpert::Absent,
        layers: ExpertLayers::All,
        routing: RoutingDefaults::Softmax,
        names: ExpertNames::Qwen,
    }),
    ..LLAMA
};

const OLMO2: FamilyDefaults = FamilyDefaults {
    architecture: "Olmo2ForCausalLM",
    model_type: "olmo2",
    vocab_size: 50304,
    rms_norm_eps: 1e-5,
    qk_norm: QkNorm::Projection,
    bias: Bias::AttentionAsConfigured,
    pre_norms: false,
    post_norms: true,
    ..LLAMA
};

const OLMO3: FamilyDefaults = FamilyDefaults {
    architecture: "Olmo3ForCausalLM",
    model_type: "olmo3",
    windows: Windows::Alternating { window: 4096, pattern: 4 },
    rope_theta: 500_000.0,
    rope_by_layer_type: true,
    ..OLMO2
};

const GLM: FamilyDefaults = FamilyDefaults {
    architecture: "GlmForCausalLM",
    model_type: "glm",
    vocab_size: 151_552,
    intermediate_size: 13696,
    layers: 40,
    kv_heads: Some(2),
    head_dim: Some(128),
    max_positions: 131_072,
    rms_norm_eps: 1.5625e-7,
    partial_rotary: Some(0.5),
    bias: Bias::QkvAsConfigured(true),
    folder: FolderLayout::Glm,
    ..LLAMA
};

const GLM4: FamilyDefaults = FamilyDefaults {
    architecture: "Glm4ForCausalLM",
    model_type: "glm4",
    post_norms: true,
    folder: FolderLayout::Glm4,
    ..GLM
};

const GPT_OSS: FamilyDefaults = FamilyDefaults {
    architecture: "GptOssForCausalLM",
    model_type: "gpt_oss",
    vocab_size: 201_088,
    hidden_size: 2880,
    intermediate_size: 2880,
    layers: 36,
    heads: 64,
    kv_heads: Some(8),
    head_dim: Some(64),
    max_positions: 131_072,
    rms_norm_eps: 1e-5,
    rope_theta: 150_000.0,
    windows: Windows::Alternating { window: 128, pattern: 2 },
    activation: Activation::ClampedSwiGlu,
    bias: Bias::AttentionUnlessForbidden,
    folder: FolderLayout::GptOss,
    experts: Some(ExpertDefaults {
        count_field: "num_local_experts",
        count: 128,
        chosen: Some(4),
        normalized: Normalized::Always,
        intermediate_size: None,
        shared: SharedExpert::Absent,
        layers: ExpertLayers::All,
        routing: RoutingDefaults::Softmax,
        names: ExpertNames::GptOss,
    }),
    sinks_and_expert_bias: true,
    yarn: Some(32.0),
    ..LLAMA
};

const GRANITE: FamilyDefaults =
    FamilyDefaults { architecture: "GraniteForCausalLM", model_type: "granite", multipliers: true, ..LLAMA };

const GRANITE4: FamilyDefaults = FamilyDefaults {
    architecture: "GraniteMoeHybridForCausalLM",
    model_type: "granitemoehybrid",
    intermediate_field: "shared_intermediate_size",
    intermediate_size: 1024,
    rotated: Rotated::ByType,
    bias: Bias::AttentionAsConfigured,
    folder: FolderLayout::Granite4,
    is_hybrid: true,
    ..GRANITE
};

const PHI3: FamilyDefaults = FamilyDefaults {
    architecture: "Phi3ForCausalLM",
    model_type: "phi3",
    vocab_size: 32064,
    hidden_size: 3072,
    intermediate_size: 8192,
    max_positions: 4096,
    rms_norm_eps: 1e-5,
    partial_rotary: Some(1.0),
    original_positions: Some(4096),
    windows: Windows::EveryLayer(None),
    bias: Bias::Never,
    folder: FolderLayout::Joined,
    ..LLAMA
};

const SMOLLM3: FamilyDefaults = FamilyDefaults {
    architecture: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    vocab_size: 128_256,
    hidden_size: 2048,
    layers: 36,
    heads: 16,
    kv_heads: Some(4),
    max_positions: 32768,
    tied_embeddings: true,
    rope_theta: 2_000_000.0,
    windows: Windows::Unrotated,
    rotated: Rotated::AllBut(4),
    ..LLAMA
};
