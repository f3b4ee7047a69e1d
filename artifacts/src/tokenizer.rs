//! The tokenizer section: text in, ids out, and when to stop.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenizerSection {
    /// Hugging Face `tokenizer.json`; empty when the model came without one.
    pub tokenizer_json: String,
    /// Jinja source.
    pub chat_template: Option<String>,
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
    /// Whether a plain prompt is preceded by `bos_id`.
    pub add_bos: bool,
    pub bos_id: Option<u32>,
    /// Generation ends at any of these.
    pub stop_ids: Vec<u32>,
}
