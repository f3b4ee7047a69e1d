//! Gemma 2, 3, 3n and 4.

use super::*;

pub(super) const GEMMA2: FamilyDefaults = FamilyDefaults {
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
    post_norms: true,
    activation_field: "hidden_activation",
    activation: Activation::GeluTanh,
    gemma: Some(GemmaDefaults {
        norms_add_one: true,
        query_pre_attn_scalar: 256.0,
        attention_softcap: Some(50.0),
        final_softcap: Some(30.0),
    }),
    ..LLAMA
};

pub(super) const GEMMA3_TEXT: FamilyDefaults = FamilyDefaults {
    architecture: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    vocab_size: 262_208,
    max_positions: 131_072,
    rope_theta: 1_000_000.0,
    local_rope_theta: Some(10_000.0),
    windows: Windows::Alternating { window: 4096, pattern: 6 },
    qk_norm: QkNorm::Heads,
    gemma: Some(GemmaDefaults {
        norms_add_one: true,
        query_pre_attn_scalar: 256.0,
        attention_softcap: None,
        final_softcap: None,
    }),
    ..GEMMA2
};

pub(super) const GEMMA3_MULTIMODAL: FamilyDefaults = FamilyDefaults {
    architecture: "Gemma3ForConditionalGeneration",
    model_type: "gemma3",
    text_models: &[&GEMMA3_TEXT],
    vision: Some(VisionTower::Siglip),
    ..GEMMA3_TEXT
};

pub(super) const GEMMA3N_TEXT: FamilyDefaults = FamilyDefaults {
    architecture: "Gemma3nForCausalLM",
    model_type: "gemma3n_text",
    vocab_size: 262_400,
    hidden_size: 2048,
    intermediate_size: 16_384,
    layers: 35,
    kv_heads: Some(2),
    max_positions: 32_768,
    windows: Windows::Alternating { window: 512, pattern: 5 },
    bias: Bias::AttentionAsConfigured,
    gemma: Some(GemmaDefaults {
        norms_add_one: false,
        // Scores are the products themselves.
        query_pre_attn_scalar: 1.0,
        attention_softcap: None,
        final_softcap: Some(30.0),
    }),
    has_streams: true,
    ..GEMMA3_TEXT
};

pub(super) const GEMMA3N_MULTIMODAL: FamilyDefaults = FamilyDefaults {
    architecture: "Gemma3nForConditionalGeneration",
    model_type: "gemma3n",
    text_models: &[&GEMMA3N_TEXT],
    ..GEMMA3N_TEXT
};

pub(super) const GEMMA4_TEXT: FamilyDefaults = FamilyDefaults {
    architecture: "Gemma4ForCausalLM",
    model_type: "gemma4_text",
    vocab_size: 262_144,
    layers: 30,
    max_positions: 131_072,
    local_rope_theta: Some(10_000.0),
    partial_rotary: Some(1.0),
    windows: Windows::Alternating { window: 512, pattern: 6 },
    bias: Bias::AttentionAsConfigured,
    folder: FolderLayout::Gemma4,
    gemma: Some(GemmaDefaults {
        norms_add_one: false,
        // Scores are the products themselves.
        query_pre_attn_scalar: 1.0,
        attention_softcap: None,
        final_softcap: None,
    }),
    full_heads: Some(FullHeadDefaults { head_dim: 512, rotated_share: 0.25 }),
    ..GEMMA3_TEXT
};

pub(super) const GEMMA4_MULTIMODAL: FamilyDefaults = FamilyDefaults {
    architecture: "Gemma4ForConditionalGeneration",
    model_type: "gemma4",
    text_models: &[&GEMMA4_TEXT],
    ..GEMMA4_TEXT
};
