//! The record of a [`ModelConfig`] in an artifact.

use unicorn_artifact::codec;

use super::config::ModelConfig;
use super::earlier_config;
use super::limits;

impl ModelConfig {
    /// The config's record in an artifact.
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Decodes a record of [`ModelConfig::encode`], checked as a config from a model's files is.
    ///
    /// # Errors
    /// When it is not such a record, or when no model can have its numbers.
    pub fn decode(bytes: &[u8]) -> Result<ModelConfig, String> {
        let today = codec::decode("config", bytes);
        let config: ModelConfig = match today {
            Ok(config) => config,
            // For bytes that are not a record of either kind, the error is that of the current format.
            Err(error) => earlier_config::decode(bytes).ok_or_else(|| error.to_string())?,
        };
        for (name, value, most) in [
            ("hidden size", config.hidden_size, limits::HIDDEN_SIZE),
            ("intermediate size", config.intermediate_size, limits::INTERMEDIATE_SIZE),
            ("number of heads", config.n_heads, limits::HEADS),
            ("number of KV heads", config.n_kv_heads, limits::HEADS),
            ("head dimension", config.head_dim, limits::HEAD_DIM),
            ("vocabulary", config.vocab_size, limits::VOCAB_SIZE),
            ("number of KV heads of full layers", config.full_heads.map_or(1, |heads| heads.n_kv_heads), limits::HEADS),
            ("head dimension of full layers", config.full_heads.map_or(2, |heads| heads.head_dim), limits::HEAD_DIM),
            ("number of layers", config.layers.len(), limits::LAYERS),
            ("longest context", config.max_positions, limits::POSITIONS),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("{name} is {value}, expected 1 to {most}"));
            }
        }
        let ropes = config.ropes.len();
        if let Some(rope) = config.layers.iter().filter_map(|layer| layer.rope).find(|&rope| rope >= ropes) {
            return Err(format!("a layer has rotary embedding {rope}, expected one of {ropes}"));
        }
        config.check()?;
        Ok(config)
    }
}
