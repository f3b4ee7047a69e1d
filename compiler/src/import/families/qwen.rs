//! Qwen 2, 2.5, 3, 3.5 and 3.6, Qwen3-VL, Qwen3-Next, and their mixtures of experts.

use super::*;

pub(super) const QWEN2: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen2ForCausalLM",
    model_type: "qwen2",
    vocab_size: 151_936,
    intermediate_size: 22016,
    kv_heads: Some(32),
    max_positions: 32768,
    windows: Windows::WhenAsked { window: 4096, layers: AskedWindows::From(28) },
    bias: Bias::Qkv,
    ..LLAMA
};

pub(super) const QWEN3: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    head_dim: Some(128),
    qk_norm: QkNorm::Heads,
    bias: Bias::AsConfigured,
    ..QWEN2
};

pub(super) const QWEN2_MOE: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen2MoeForCausalLM",
    model_type: "qwen2_moe",
    hidden_size: 2048,
    intermediate_size: 5632,
    layers: 24,
    heads: 16,
    kv_heads: Some(16),
    windows: Windows::WhenAsked { window: 4096, layers: AskedWindows::AlternatingUpTo(28) },
    bias: Bias::QkvUnlessForbidden,
    experts: Some(ExpertDefaults {
        count_field: "num_experts",
        count: 60,
        chosen: Some(4),
        normalized: Normalized::WhenAsked,
        intermediate_size: Some(1408),
        shared: SharedExpert::Gated(5632),
        layers: ExpertLayers::Selected,
        routing: RoutingDefaults::Softmax,
        names: ExpertNames::Qwen,
    }),
    ..QWEN2
};

pub(super) const QWEN3_MOE: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    hidden_size: 2048,
    intermediate_size: 6144,
    layers: 24,
    kv_heads: Some(4),
    head_dim: None,
    windows: Windows::WhenAsked { window: 4096, layers: AskedWindows::All },
    experts: Some(ExpertDefaults {
        count_field: "num_experts",
        count: 128,
        chosen: Some(8),
        normalized: Normalized::WhenAsked,
        intermediate_size: Some(768),
        shared: SharedExpert::Absent,
        layers: ExpertLayers::Selected,
        routing: RoutingDefaults::Softmax,
        names: ExpertNames::Qwen,
    }),
    ..QWEN3
};

/// The text model of Qwen3-VL, whose text is that of Qwen 3.
const QWEN3_VL_TEXT: FamilyDefaults = FamilyDefaults {
    model_type: "qwen3_vl_text",
    max_positions: 128_000,
    rope_theta: 500_000.0,
    windows: Windows::Never,
    ..QWEN3
};

pub(super) const QWEN3_VL: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3VLForConditionalGeneration",
    model_type: "qwen3_vl",
    vision: Some(VisionTower::Qwen3Vl),
    text_models: &[&QWEN3_VL_TEXT],
    ..QWEN3_VL_TEXT
};

const QWEN3_VL_MOE_TEXT: FamilyDefaults = FamilyDefaults {
    model_type: "qwen3_vl_moe_text",
    intermediate_size: 5632,
    heads: 16,
    kv_heads: Some(16),
    max_positions: 128_000,
    rope_theta: 500_000.0,
    windows: Windows::Never,
    experts: Some(ExpertDefaults {
        count_field: "num_experts",
        count: 60,
        chosen: Some(4),
        normalized: Normalized::Always,
        intermediate_size: Some(1408),
        shared: SharedExpert::Absent,
        layers: ExpertLayers::Selected,
        routing: RoutingDefaults::Softmax,
        names: ExpertNames::Qwen3Vl,
    }),
    ..QWEN3_MOE
};

pub(super) const QWEN3_VL_MOE: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3VLMoeForConditionalGeneration",
    model_type: "qwen3_vl_moe",
    vision: Some(VisionTower::Qwen3Vl),
    text_models: &[&QWEN3_VL_MOE_TEXT],
    ..QWEN3_VL_MOE_TEXT
};

const DELTA: DeltaDefaults =
    DeltaDefaults { key_heads: 16, value_heads: 32, head_dim: 128, taps: 4, attention_interval: 4 };

pub(super) const QWEN3_NEXT: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3NextForCausalLM",
    model_type: "qwen3_next",
    hidden_size: 2048,
    intermediate_size: 5632,
    layers: 48,
    heads: 16,
    kv_heads: Some(2),
    head_dim: Some(256),
    partial_rotary: Some(0.25),
    windows: Windows::Never,
    bias: Bias::Never,
    experts: Some(ExpertDefaults {
        count_field: "num_experts",
        count: 512,
        chosen: Some(10),
        normalized: Normalized::UnlessForbidden,
        intermediate_size: Some(512),
        shared: SharedExpert::Gated(512),
        layers: ExpertLayers::Selected,
        routing: RoutingDefaults::Softmax,
        names: ExpertNames::Qwen,
    }),
    folder: FolderLayout::Qwen3Next,
    delta: Some(DELTA),
    ..QWEN3
};

pub(super) const QWEN3_5_TEXT: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3_5ForCausalLM",
    model_type: "qwen3_5_text",
    vocab_size: 248_320,
    hidden_size: 4096,
    intermediate_size: 12_288,
    layers: 32,
    kv_heads: Some(4),
    experts: None,
    folder: FolderLayout::Qwen3_5,
    ..QWEN3_NEXT
};

pub(super) const QWEN3_5: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3_5ForConditionalGeneration",
    model_type: "qwen3_5",
    text_models: &[&QWEN3_5_TEXT],
    ..QWEN3_5_TEXT
};

pub(super) const QWEN3_5_MOE_TEXT: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3_5MoeForCausalLM",
    model_type: "qwen3_5_moe_text",
    vocab_size: 248_320,
    layers: 40,
    experts: Some(ExpertDefaults {
        count_field: "num_experts",
        count: 256,
        chosen: Some(8),
        normalized: Normalized::Always,
        intermediate_size: Some(512),
        shared: SharedExpert::Gated(512),
        layers: ExpertLayers::All,
        routing: RoutingDefaults::Softmax,
        names: ExpertNames::Qwen,
    }),
    folder: FolderLayout::Qwen3_5,
    ..QWEN3_NEXT
};

pub(super) const QWEN3_5_MOE: FamilyDefaults = FamilyDefaults {
    architecture: "Qwen3_5MoeForConditionalGeneration",
    model_type: "qwen3_5_moe",
    text_models: &[&QWEN3_5_MOE_TEXT],
    ..QWEN3_5_MOE_TEXT
};
