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
    /// Bytes of the tensors that the model uses; a source that holds several projections counts once.
    pub(super) fn source_bytes(&self) -> u64 {
        let sources: BTreeMap<&str, u64> =
            self.tensors.values().map(|place| (place.source_name.as_str(), place.source.len_bytes as u64)).collect();
        sources.values().sum()
    }
}
