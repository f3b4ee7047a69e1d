//! What transformers assumes of a family where config.json is silent: one [`FamilyDefaults`] per architecture.

use super::config::{Activation, ExpertNames, QkNorm};
use super::json::Fields;
use crate::error::{CompileError, Result};

/// Values of a config class's fields before config.json is read, as in transformers 5.
pub(super) struct FamilyDefaults {
    pub architecture: &'static str,
    /// Names the family where `architectures` is missing.
    pub model_type: &'static str,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub layers: usize,
    pub heads: usize,
    /// `None`: as many as heads.
    pub kv_heads: Option<usize>,
    /// `None`: hidden_size / heads.
    pub head_dim: Option<usize>,
    pub max_positions: usize,
    pub rms_norm_eps: f64,
    pub tied_embeddings: bool,
    pub rope_theta: f64,
    /// Of sliding layers, where the family gives them another rotary embedding.
    pub local_rope_theta: Option<f64>,
    /// Rotary embedding may cover a part of the head only.
    pub partial_rotary: bool,
    pub original_positions: Option<usize>,
    pub windows: Windows,
    pub activation_field: &'static str,
    pub activation: Activation,
    /// Every layer of this interval has no rotary embedding (where `no_rope_layers` is silent); `None`: all layers have one.
    pub unrotated_interval: Option<usize>,
    pub qk_norm: QkNorm,
    pub bias: Bias,
    /// Stored as `qkv_proj` and `gate_up_proj`.
    pub fused_projections: bool,
    pub gemma: Option<GemmaDefaults>,
    /// Some layers have experts in the place of the MLP.
    pub experts: Option<ExpertDefaults>,
    /// The text model is config.json's `text_config`, and this family when it stands alone.
    pub text_model: Option<&'static FamilyDefaults>,
}

/// Which layers see a window only.
pub(super) enum Windows {
    Never,
    /// Every layer, when `sliding_window` is a number. Holds its default.
    EveryLayer(Option<usize>),
    /// With `use_sliding_window`: the layers that `layer_types` names, else those from `max_window_layers` on.
    WhenAsked {
        window: usize,
        max_window_layers: usize,
    },
    /// With `use_sliding_window`, when `sliding_window` is a number: the layers that `layer_types` names, else those without a
    /// rotary embedding.
    Unrotated,
    /// The layers that `layer_types` names, else all but each `pattern`-th.
    Alternating {
        window: usize,
        pattern: usize,
    },
}

/// A mixture of experts, as the config class has it.
pub(super) struct ExpertDefaults {
    pub count_field: &'static str,
    pub count: usize,
    pub chosen: usize,
    pub normalized: Normalized,
    /// `moe_intermediate_size`; `None`: it is `intermediate_size`.
    pub intermediate_size: Option<usize>,
    /// `shared_expert_intermediate_size`.
    pub shared_intermediate_size: Option<usize>,
    /// `decoder_sparse_step` and `mlp_only_layers` say which layers have experts. Otherwise all have.
    pub some_layers: bool,
    pub names: ExpertNames,
}

/// Whether the weights of a row's experts are divided by their sum.
pub(super) enum Normalized {
    Always,
    /// With `norm_topk_prob`.
    WhenAsked,
}

pub(super) enum Bias {
    Never,
    /// Of q, k and v, always.
    Qkv,
    /// Of q, k, v and o with `attention_bias`; of the MLP with `mlp_bias`.
    AsConfigured,
}

/// What the Gemmas share beyond their sizes: norms of 1 + weight, norms after attention and MLP, scaled embeddings.
pub(super) struct GemmaDefaults {
    pub query_pre_attn_scalar: f64,
    pub attention_softcap: Option<f64>,
    pub final_softcap: Option<f64>,
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
        supported: FAMILIES.iter().map(|family| family.architecture).collect::<Vec<_>>().join(", "),
    })
}

const FAMILIES: [FamilyDefaults; 13] = [
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    GEMMA2,
    GEMMA3_TEXT,
    GEMMA3_MULTIMODAL,
    OLMOE,
    PHI3,
    SMOLLM3,
];

const LLAMA: FamilyDefaults = FamilyDefaults {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    vocab_size: 32000,
    hidden_size: 4096,
    intermediate_size: 11008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    max_positions: 2048,
    rms_norm_eps: 1e-6,
    tied_embeddings: false,
    rope_theta: 10_000.0,
    local_rope_theta: None,
    partial_rotary: false,
    original_positions: None,
    windows: Windows::Never,
    activation_field: "hidden_act",
    activation: Activation::Silu,
    unrotated_interval: None,
    qk_norm: QkNorm::None,
    bias: Bias::AsConfigured,
    fused_projections: false,
    gemma: None,
    experts: None,
    text_model: None,
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

const MIXTRAL: FamilyDefaults = FamilyDefaults {
    architecture: "MixtralForCausalLM",
    model_type: "mixtral",
    rms_norm_eps: 1e-5,
    windows: Windows::EveryLayer(None),
    rope_theta: 1e6,
    experts: Some(ExpertDefaults {
        count_field: "num_local_experts",
        count: 8,
        chosen: 2,
        normalized: Normalized::Always,
        intermediate_size: None,
        shared_intermediate_size: None,
        some_layers: false,
        names: ExpertNames::Mixtral,
    }),
    ..MISTRAL
};

const QWEN2: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen2ForCausalLM",
    model_type: "qwen2",
    vocab_size: 151_936,
    intermediate_size: 22016,
    kv_heads: Some(32),
    max_positions: 32768,
    windows: Windows::WhenAsked { window: 4096, max_window_layers: 28 },
    bias: Bias::Qkv,
    ..LLAMA
};

const QWEN3: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    head_dim: Some(128),
    qk_norm: QkNorm::Heads,
    bias: Bias::AsConfigured,
    ..QWEN2
};

const QWEN2_MOE: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen2MoeForCausalLM",
    model_type: "qwen2_moe",
    hidden_size: 2048,
    intermediate_size: 5632,
    layers: 24,
    heads: 16,
    kv_heads: Some(16),
    experts: Some(ExpertDefaults {
        count_field: "num_experts",
        count: 60,
        chosen: 4,
        normalized: Normalized::WhenAsked,
        intermediate_size: Some(1408),
        shared_intermediate_size: Some(5632),
        some_layers: true,
        names: ExpertNames::Qwen,
    }),
    ..QWEN2
};

const QWEN3_MOE: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    hidden_size: 2048,
    intermediate_size: 6144,
    layers: 24,
    kv_heads: Some(4),
    head_dim: None,
    experts: Some(ExpertDefaults {
        count_field: "num_experts",
        count: 128,
        chosen: 8,
        normalized: Normalized::WhenAsked,
        intermediate_size: Some(768),
        shared_intermediate_size: None,
        some_layers: true,
        names: ExpertNames::Qwen,
    }),
    ..QWEN3
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
        chosen: 8,
        normalized: Normalized::WhenAsked,
        intermediate_size: None,
        shared_intermediate_size: None,
        some_layers: false,
        names: ExpertNames::Qwen,
    }),
    ..LLAMA
};

const GEMMA2: FamilyDefaults = FamilyDefaults {
    architecture: "Gemma2ForCausalLM",
    model_type: "gemma2",
    vocab_size: 256_000,
    hidden_size: 2304,
    intermediate_size: 9216,
    layers: 26,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    max_positions: 8192,
    tied_embeddings: true,
    windows: Windows::Alternating { window: 4096, pattern: 2 },
    activation_field: "hidden_activation",
    activation: Activation::GeluTanh,
    gemma: Some(GemmaDefaults {
        query_pre_attn_scalar: 256.0,
        attention_softcap: Some(50.0),
        final_softcap: Some(30.0),
    }),
    ..LLAMA
};

const GEMMA3_TEXT: FamilyDefaults = FamilyDefaults {
    architecture: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    vocab_size: 262_208,
    max_positions: 131_072,
    rope_theta: 1_000_000.0,
    local_rope_theta: Some(10_000.0),
    windows: Windows::Alternating { window: 4096, pattern: 6 },
    qk_norm: QkNorm::Heads,
    gemma: Some(GemmaDefaults { query_pre_attn_scalar: 256.0, attention_softcap: None, final_softcap: None }),
    ..GEMMA2
};

const GEMMA3_MULTIMODAL: FamilyDefaults = FamilyDefaults {
    architecture: "Gemma3ForConditionalGeneration",
    model_type: "gemma3",
    text_model: Some(&GEMMA3_TEXT),
    ..GEMMA3_TEXT
};

const PHI3: FamilyDefaults = FamilyDefaults {
    architecture: "Phi3ForCausalLM",
    model_type: "phi3",
    vocab_size: 32064,
    hidden_size: 3072,
    intermediate_size: 8192,
    max_positions: 4096,
    rms_norm_eps: 1e-5,
    partial_rotary: true,
    original_positions: Some(4096),
    windows: Windows::EveryLayer(None),
    bias: Bias::Never,
    fused_projections: true,
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
    unrotated_interval: Some(4),
    ..LLAMA
};
