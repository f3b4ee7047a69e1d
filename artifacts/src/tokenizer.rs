//! The tokenizer section: from text to ids, and the tokens that end a text.

use serde::{Deserialize, Serialize};

/// The tokenizer section.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenizerSection {
    /// Hugging Face `tokenizer.json`; empty when the model came without one.
    pub tokenizer_json: String,
    /// Jinja source.
    pub chat_template: Option<String>,
    /// Text of the token that begins a sequence.
    pub bos_token: Option<String>,
    /// Text of the token that ends a sequence.
    pub eos_token: Option<String>,
    /// Whether a plain prompt is preceded by `bos_id`.
    pub add_bos: bool,
    /// Number of the token that begins a sequence.
    pub bos_id: Option<u32>,
    /// Generation ends at any of these.
    pub stop_ids: Vec<u32>,
}
