//! The metadata section: what the model is, who made the file, what quantising cost. People read it through
//! `inspect`; execution needs only [`ModelMeta`].

use serde::{Deserialize, Serialize};

/// The metadata section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// What execution needs.
    pub model: ModelMeta,
    /// How the file was made.
    pub provenance: Provenance,
    /// One a source tensor.
    pub tensors: Vec<TensorReport>,
}

/// What execution needs of the model, in tokens and elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelMeta {
    /// For people: the source folder's name.
    pub name: String,
    /// The source's name for its family, for people.
    pub architecture: String,
    /// Tokens of the vocabulary.
    pub vocab_size: u32,
    /// Elements of the residual stream.
    pub hidden_size: u32,
    /// Layers.
    pub n_layers: u32,
    /// Longest context that the model was made for, in tokens.
    pub max_positions: u32,
    /// LongRoPE: sequences longer than this take the second set of rotary frequencies.
    pub long_rope_above_tokens: Option<u32>,
    /// Weights of the source, counted once where they are tied.
    pub parameters: u64,
    /// Weight and scale bytes that one decode step reads.
    pub weight_bytes_per_token: u64,
    /// Weights are random: good for timing, never for text.
    pub synthetic: bool,
}

impl ModelMeta {
    /// Which of LongRoPE's frequencies a sequence of `len_tokens` takes.
    pub fn rope_variant(&self, len_tokens: u32) -> u32 {
        u32::from(self.long_rope_above_tokens.is_some_and(|above| len_tokens > above))
    }
}

/// How a file was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of the compiler.
    pub compiler_version: String,
    /// Options that change the output, as given or by default, in a fixed order.
    pub options: Vec<(String, String)>,
    /// BLAKE3 of the source's config, weights and tokenizer.
    pub source_hash: [u8; 32],
    /// The model's numbers in the compiler's own encoding, from which it makes kernels for more targets without the source.
    pub config: Vec<u8>,
}

/// What one source tensor became.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorReport {
    /// Name in the source.
    pub name: String,
    /// Output features; 1 for a vector.
    pub rows: u64,
    /// Input features.
    pub cols: u64,
    /// `int4/32`, `int8`, `f16`, `f32`.
    pub format: String,
    /// Scales and zero points included.
    pub bits_per_weight: f32,
    /// ‖w − ŵ‖ / ‖w‖ over the tensor.
    pub relative_error: f32,
}
