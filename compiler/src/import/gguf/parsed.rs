//! What a GGUF file says of a model.

use std::collections::BTreeMap;

use unicorn_artifact::{LicenseSection, TokenizerSection};

use super::tensors::TensorPlace;
use crate::import::{ModelConfig, Skipped};

/// The parsed content of a GGUF file, without its bytes.
pub struct ParsedGguf {
    /// What the model computes, and its sizes.
    pub config: ModelConfig,
    pub(crate) config_json: serde_json::Value,
    pub(crate) tokenizer: TokenizerSection,
    pub(crate) license: Option<LicenseSection>,
    pub(crate) skipped: Skipped,
    /// See [`crate::import::Checkpoint`].
    pub(crate) predictor_left_out: Option<String>,
    pub(super) tensors: BTreeMap<String, TensorPlace>,
}

impl ParsedGguf {
    /// Bytes of the tensors that the model uses; a source that several of its tensors are read from counts once.
    pub(super) fn source_bytes(&self) -> u64 {
        let sources = self.tensors.values().map(|place| &place.source);
        let lengths: BTreeMap<(usize, usize), u64> =
            sources.map(|source| ((source.part, source.offset_bytes), source.len_bytes as u64)).collect();
        lengths.values().sum()
    }
}
