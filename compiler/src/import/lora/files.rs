//! The files of an adapter.

pub(super) const CONFIG_FILE: &str = "adapter_config.json";
pub(super) const WEIGHTS_FILE: &str = "adapter_model.safetensors";
