//! [`FAMILIES`]: the one list of model families. Every test that goes through all families goes through this.

use super::Family;

/// Facts of a family that its random model needs, where families differ.
#[derive(Debug)]
pub struct FamilyFacts {
    pub family: Family,
    /// Name of the family in filetests.
    pub name: &'static str,
    /// `architectures[0]` of config.json.
    pub architecture: &'static str,
    pub model_type: &'static str,
    pub slides: Slides,
    /// Scaled embeddings, GELU, norms of 1 + weight.
    pub is_gemma: bool,
    /// Norms of a layer over the stream or what is added to it.
    pub norms: &'static [&'static str],
    /// A norm over each head of query and key.
    pub normed_heads: bool,
    /// A norm over all heads of query, and of key, together.
    pub normed_projections: bool,
    /// Biases of query, key and value.
    pub qkv_bias: bool,
    /// `qkv_proj` in the place of query, key and value.
    pub joined_qkv: bool,
    /// Name of the matrix that holds gate and up, if they are one.
    pub joined_gate_up: Option<&'static str>,
    pub down: &'static str,
    /// Norms are of 1 + weight, as Gemma's.
    pub norms_add_one: bool,
    /// Layers without a rotary embedding: each of this interval.
    pub unrotated_interval: Option<usize>,
    /// Experts in the place of each layer's MLP.
    pub experts: Option<ExpertFacts>,
    /// Attention's sinks, biases of all matrices, and experts in transposed stacks.
    pub is_gpt_oss: bool,
    /// Delta net in the place of the attention of all layers but the last, whose attention has a gate.
    pub delta: Option<DeltaFacts>,
    /// LFM2's names, and a short convolution of this number of taps instead of the attention of all layers but the last.
    pub short_conv_taps: Option<usize>,
    /// Latent attention; whether queries are made of a vector of low rank.
    pub latent: Option<bool>,
}

/// A gated delta net.
#[derive(Debug)]
pub struct DeltaFacts {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub taps: usize,
    /// Whether the projections are `in_proj_qkvz` and `in_proj_ba`.
    pub interleaved: bool,
}

/// A mixture of experts.
#[derive(Debug)]
pub struct ExpertFacts {
    pub count: usize,
    /// Experts of a token.
    pub chosen: usize,
    pub count_field: &'static str,
    /// The weights of a token's experts sum to 1.
    pub normalized: bool,
    /// The shared expert, which every token has.
    pub shared: SharedFacts,
    /// Not by a softmax alone; then the first layer has an MLP, and weights have a factor.
    pub routing: Option<RoutingFacts>,
    pub names: ExpertNames,
}

/// Whether there is a shared expert behind a gate, and of which size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedFacts {
    /// There is none.
    None,
    /// Of that of the others.
    Same,
    /// Of that of two of the others.
    Twice,
}

/// How experts are chosen and weighted, where it is not by a softmax.
#[derive(Debug)]
pub struct RoutingFacts {
    /// The tensor of the bias; `None`: a softmax with a factor.
    pub choice_bias: Option<&'static str>,
    /// Groups of experts, and those among whose experts a token's are chosen.
    pub groups: Option<(usize, usize)>,
}

/// What the tensors of experts are called.
#[derive(Clone, Copy, Debug)]
pub struct ExpertNames {
    pub block: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

/// Which layers have a window, if the model has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slides {
    Never,
    EveryLayer,
    /// With `use_sliding_window`, by `layer_types`.
    OddLayers,
    /// By `layer_types`: all but each of this interval.
    AllBut(usize),
}

/// A new family is a variant of [`Family`] and a row here.
pub const FAMILIES: &[FamilyFacts] = &[
    LLAMA,
    FamilyFacts {
        family: Family::Mistral,
        name: "mistral",
        architecture: "MistralForCausalLM",
        model_type: "mistral",
        slides: Slides::EveryLayer,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Qwen2,
        name: "qwen2",
        architecture: "Qwen2ForCausalLM",
        model_type: "qwen2",
        slides: Slides::OddLayers,
        qkv_bias: true,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Qwen3,
        name: "qwen3",
        architecture: "Qwen3ForCausalLM",
        model_type: "qwen3",
        slides: Slides::OddLayers,
        normed_heads: true,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Gemma2,
        name: "gemma2",
        architecture: "Gemma2ForCausalLM",
        model_type: "gemma2",
        slides: Slides::AllBut(2),
        is_gemma: true,
        norms: GEMMA_NORMS,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Gemma3,
        name: "gemma3",
        architecture: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        slides: Slides::AllBut(6),
        is_gemma: true,
        norms: GEMMA_NORMS,
        normed_heads: true,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Phi3,
        name: "phi3",
        architecture: "Phi3ForCausalLM",
        model_type: "phi3",
        slides: Slides::EveryLayer,
        joined_qkv: true,
        joined_gate_up: Some("mlp.gate_up_proj"),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::SmolLm3,
        name: "smollm3",
        architecture: "SmolLM3ForCausalLM",
        model_type: "smollm3",
        unrotated_interval: Some(2),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Mixtral,
        name: "mixtral",
        architecture: "MixtralForCausalLM",
        model_type: "mixtral",
        slides: Slides::EveryLayer,
        experts: Some(ExpertFacts {
            count_field: "num_local_experts",
            normalized: true,
            names: ExpertNames { block: "block_sparse_moe", gate: "w1", up: "w3", down: "w2" },
            ..EXPERTS
        }),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Qwen2Moe,
        name: "qwen2-moe",
        architecture: "Qwen2MoeForCausalLM",
        model_type: "qwen2_moe",
        slides: Slides::OddLayers,
        qkv_bias: true,
        experts: Some(ExpertFacts { shared: SharedFacts::Twice, ..EXPERTS }),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Qwen3Moe,
        name: "qwen3-moe",
        architecture: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        slides: Slides::OddLayers,
        normed_heads: true,
        experts: Some(ExpertFacts { count: 7, chosen: 3, normalized: true, ..EXPERTS }),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Olmoe,
        name: "olmoe",
        architecture: "OlmoeForCausalLM",
        model_type: "olmoe",
        normed_projections: true,
        experts: Some(EXPERTS),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Olmo2,
        name: "olmo2",
        architecture: "Olmo2ForCausalLM",
        model_type: "olmo2",
        norms: &["post_attention_layernorm", "post_feedforward_layernorm"],
        normed_projections: true,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Olmo3,
        name: "olmo3",
        architecture: "Olmo3ForCausalLM",
        model_type: "olmo3",
        slides: Slides::AllBut(4),
        norms: &["post_attention_layernorm", "post_feedforward_layernorm"],
        normed_projections: true,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Glm,
        name: "glm",
        architecture: "GlmForCausalLM",
        model_type: "glm",
        qkv_bias: true,
        joined_gate_up: Some("mlp.gate_up_proj"),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Glm4,
        name: "glm4",
        architecture: "Glm4ForCausalLM",
        model_type: "glm4",
        norms: &["input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"],
        qkv_bias: true,
        joined_gate_up: Some("mlp.gate_up_proj"),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::GptOss,
        name: "gpt-oss",
        architecture: "GptOssForCausalLM",
        model_type: "gpt_oss",
        slides: Slides::AllBut(2),
        qkv_bias: true,
        experts: Some(ExpertFacts { count_field: "num_local_experts", normalized: true, ..EXPERTS }),
        is_gpt_oss: true,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Granite,
        name: "granite",
        architecture: "GraniteForCausalLM",
        model_type: "granite",
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Granite4,
        name: "granite4",
        architecture: "GraniteMoeHybridForCausalLM",
        model_type: "granitemoehybrid",
        joined_gate_up: Some("shared_mlp.input_linear"),
        down: "shared_mlp.output_linear",
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Ministral,
        name: "ministral",
        architecture: "MinistralForCausalLM",
        model_type: "ministral",
        slides: Slides::AllBut(2),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Ministral3,
        name: "ministral3",
        architecture: "Ministral3ForCausalLM",
        model_type: "ministral3",
        slides: Slides::EveryLayer,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Lfm2,
        name: "lfm2",
        architecture: "Lfm2ForCausalLM",
        model_type: "lfm2",
        norms: &["operator_norm", "ffn_norm"],
        normed_heads: true,
        short_conv_taps: Some(3),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Lfm2Moe,
        name: "lfm2-moe",
        architecture: "Lfm2MoeForCausalLM",
        model_type: "lfm2_moe",
        norms: &["operator_norm", "ffn_norm"],
        normed_heads: true,
        short_conv_taps: Some(3),
        experts: Some(ExpertFacts {
            normalized: true,
            routing: Some(RoutingFacts { choice_bias: Some("feed_forward.expert_bias"), groups: None }),
            names: ExpertNames { block: "feed_forward", gate: "w1", up: "w3", down: "w2" },
            ..EXPERTS
        }),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::DeepSeekV2,
        name: "deepseek-v2",
        architecture: "DeepseekV2ForCausalLM",
        model_type: "deepseek_v2",
        experts: Some(ExpertFacts {
            count_field: "n_routed_experts",
            routing: Some(RoutingFacts { choice_bias: None, groups: None }),
            ..EXPERTS
        }),
        latent: Some(false),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::DeepSeekV3,
        name: "deepseek-v3",
        architecture: "DeepseekV3ForCausalLM",
        model_type: "deepseek_v3",
        experts: Some(ExpertFacts {
            count: 6,
            count_field: "n_routed_experts",
            normalized: true,
            routing: Some(RoutingFacts { choice_bias: Some("mlp.gate.e_score_correction_bias"), groups: Some((3, 2)) }),
            ..EXPERTS
        }),
        latent: Some(true),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Qwen35,
        name: "qwen35",
        architecture: "Qwen3_5ForCausalLM",
        model_type: "qwen3_5_text",
        normed_heads: true,
        norms_add_one: true,
        delta: Some(DELTA),
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Qwen3Next,
        name: "qwen3-next",
        architecture: "Qwen3NextForCausalLM",
        model_type: "qwen3_next",
        normed_heads: true,
        norms_add_one: true,
        experts: Some(ExpertFacts { shared: SharedFacts::Same, normalized: true, ..EXPERTS }),
        delta: Some(DeltaFacts { key_heads: 2, value_heads: 6, key_dim: 8, taps: 2, interleaved: true, ..DELTA }),
        ..LLAMA
    },
];

const GEMMA_NORMS: &[&str] =
    &["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"];

const DELTA: DeltaFacts =
    DeltaFacts { key_heads: 3, value_heads: 3, key_dim: 12, value_dim: 7, taps: 4, interleaved: false };

const EXPERTS: ExpertFacts = ExpertFacts {
    count: 5,
    chosen: 2,
    count_field: "num_experts",
    normalized: false,
    shared: SharedFacts::None,
    routing: None,
    names: ExpertNames { block: "mlp", gate: "gate_proj", up: "up_proj", down: "down_proj" },
};

const LLAMA: FamilyFacts = FamilyFacts {
    family: Family::Llama,
    name: "llama",
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    slides: Slides::Never,
    is_gemma: false,
    norms: &["input_layernorm", "post_attention_layernorm"],
    normed_heads: false,
    normed_projections: false,
    qkv_bias: false,
    joined_qkv: false,
    joined_gate_up: None,
    down: "mlp.down_proj",
    unrotated_interval: None,
    norms_add_one: false,
    experts: None,
    is_gpt_oss: false,
    delta: None,
    short_conv_taps: None,
    latent: None,
};

impl Family {
    /// All of them, in the order of [`FAMILIES`].
    pub fn all() -> impl Iterator<Item = Family> {
        FAMILIES.iter().map(|facts| facts.family)
    }

    /// # Panics
    /// If the family has no row in [`FAMILIES`].
    pub fn facts(self) -> &'static FamilyFacts {
        let found = FAMILIES.iter().find(|facts| facts.family == self);
        found.unwrap_or_else(|| panic!("{self:?} has no row in tests/src/tiny_model/families.rs"))
    }
}
