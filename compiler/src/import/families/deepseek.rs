//! DeepSeek V2 and V3; GLM-4.5 to 4.7, which have the latter's experts, and GLM-4.7-Flash, which has its attention, too.

use super::*;

pub(super) const DEEPSEEK_V2: FamilyDefaults = FamilyDefaults {
    architecture: "DeepseekV2ForCausalLM",
    model_type: "deepseek_v2",
    vocab_size: 102_400,
    folder: FolderLayout::DeepSeek,
    experts: Some(ExpertDefaults {
        count_field: "n_routed_experts",
        count: 64,
        chosen: None,
        // transformers does not read `norm_topk_prob` here.
        normalized: Normalized::Never,
        intermediate_size: Some(1407),
        shared: SharedExpert::Several(2),
        layers: ExpertLayers::AfterDense { field: "first_k_dense_replace", default: 0 },
        routing: RoutingDefaults::ScaledSoftmax(1.0),
        names: ExpertNames::Qwen,
    }),
    latent: Some(LatentDefaults { query_rank: Some(1536), rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128 }),
    ..LLAMA
};

pub(super) const DEEPSEEK_V3: FamilyDefaults = FamilyDefaults {
    architecture: "DeepseekV3ForCausalLM",
    model_type: "deepseek_v3",
    vocab_size: 129_280,
    hidden_size: 7168,
    intermediate_size: 18_432,
    layers: 61,
    heads: 128,
    max_positions: 4096,
    bias: Bias::AttentionAsConfigured,
    experts: Some(ExpertDefaults {
        count_field: "n_routed_experts",
        count: 256,
        chosen: Some(8),
        normalized: Normalized::UnlessForbidden,
        intermediate_size: Some(2048),
        shared: SharedExpert::Several(1),
        layers: ExpertLayers::AfterDense { field: "first_k_dense_replace", default: 3 },
        routing: RoutingDefaults::GroupedSigmoid { factor: 2.5, groups: 8, kept: 4 },
        names: ExpertNames::Qwen,
    }),
    ..DEEPSEEK_V2
};

pub(super) const GLM4_MOE_LITE: FamilyDefaults = FamilyDefaults {
    architecture: "Glm4MoeLiteForCausalLM",
    model_type: "glm4_moe_lite",
    vocab_size: 154_880,
    hidden_size: 2048,
    intermediate_size: 10_240,
    layers: 47,
    heads: 20,
    max_positions: 202_752,
    rms_norm_eps: 1e-5,
    partial_rotary: Some(1.0),
    experts: Some(ExpertDefaults {
        count_field: "n_routed_experts",
        count: 64,
        chosen: Some(4),
        normalized: Normalized::UnlessForbidden,
        intermediate_size: Some(1536),
        shared: SharedExpert::Several(1),
        layers: ExpertLayers::AfterDense { field: "first_k_dense_replace", default: 1 },
        routing: RoutingDefaults::Sigmoid(1.8),
        names: ExpertNames::Qwen,
    }),
    latent: Some(LatentDefaults { query_rank: Some(768), rank: 512, nope_dim: 192, rope_dim: 64, value_dim: 256 }),
    ..DEEPSEEK_V3
};

pub(super) const GLM4_MOE: FamilyDefaults = FamilyDefaults {
    architecture: "Glm4MoeForCausalLM",
    model_type: "glm4_moe",
    vocab_size: 151_552,
    hidden_size: 4096,
    intermediate_size: 10_944,
    layers: 46,
    heads: 96,
    kv_heads: Some(8),
    max_positions: 131_072,
    rms_norm_eps: 1e-5,
    partial_rotary: Some(0.5),
    qk_norm_as_configured: true,
    bias: Bias::QkvAsConfigured(false),
    folder: FolderLayout::DeepSeek,
    experts: Some(ExpertDefaults {
        count_field: "n_routed_experts",
        count: 128,
        chosen: Some(8),
        normalized: Normalized::UnlessForbidden,
        intermediate_size: Some(1408),
        shared: SharedExpert::Several(1),
        layers: ExpertLayers::AfterDense { field: "first_k_dense_replace", default: 1 },
        routing: RoutingDefaults::Sigmoid(1.0),
        names: ExpertNames::Qwen,
    }),
    ..LLAMA
};
