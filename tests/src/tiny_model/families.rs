//! [`FAMILIES`]: the one list of model families. Every test that goes through all families goes through this.

use super::Family;

/// What a family's random model is written with, where families differ.
#[derive(Debug)]
pub struct FamilyFacts {
    pub family: Family,
    /// In filetests.
    pub name: &'static str,
    /// `architectures[0]` of config.json.
    pub architecture: &'static str,
    pub model_type: &'static str,
    pub slides: Slides,
    /// Norms after each branch, scaled embeddings, GELU.
    pub is_gemma: bool,
    /// A norm over each head of query and key.
    pub normed_heads: bool,
    /// Biases of query, key and value.
    pub qkv_bias: bool,
    /// `qkv_proj` and `gate_up_proj`.
    pub fused_projections: bool,
    /// Layers without a rotary embedding: each of this interval.
    pub unrotated_interval: Option<usize>,
}

/// Which layers see a window, where the model has one.
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
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Gemma3,
        name: "gemma3",
        architecture: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        slides: Slides::AllBut(6),
        is_gemma: true,
        normed_heads: true,
        ..LLAMA
    },
    FamilyFacts {
        family: Family::Phi3,
        name: "phi3",
        architecture: "Phi3ForCausalLM",
        model_type: "phi3",
        slides: Slides::EveryLayer,
        fused_projections: true,
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
];

const LLAMA: FamilyFacts = FamilyFacts {
    family: Family::Llama,
    name: "llama",
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    slides: Slides::Never,
    is_gemma: false,
    normed_heads: false,
    qkv_bias: false,
    fused_projections: false,
    unrotated_interval: None,
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
