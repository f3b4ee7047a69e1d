//! The metadata section: the model's description, the file's origin, the errors of quantisation. `inspect` shows it;
//! execution needs only [`ModelMeta`].

use serde::{Deserialize, Serialize};

/// The metadata section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The model's numbers that execution needs.
    pub model: ModelMeta,
    /// How the file was made.
    pub provenance: Provenance,
    /// One record for each source tensor.
    pub tensors: Vec<TensorReport>,
}

/// The model's numbers that execution needs, in tokens and elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelMeta {
    /// Name of the source folder, for people.
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
    /// LongRoPE: sequences longer than this use the second set of rotary frequencies.
    pub long_rope_above_tokens: Option<u32>,
    /// Weights of the source, counted once where they are tied.
    pub parameters: u64,
    /// Weight and scale bytes that one decode step reads.
    pub weight_bytes_per_token: u64,
    /// Weights are random: good for timing, never for text.
    pub synthetic: bool,
}

impl ModelMeta {
    /// Index of LongRoPE's frequencies for a sequence of `len_tokens`.
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

/// Format and error of one source tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorReport {
    /// Name in the source.
    pub name: String,
    /// Output features; 1 for a vector.
    pub rows: u64,
    /// Input features.
    pub cols: u64,
    /// Format: `int4/32`, `int8`, `f16` or `f32`.
    pub format: String,
    /// Packed bytes, scales and zero points included.
    pub bits_per_weight: f32,
    /// ‖w − ŵ‖ / ‖w‖ over the tensor.
    pub relative_error: f32,
}
