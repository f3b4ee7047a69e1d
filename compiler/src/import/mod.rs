//! From a model on disk to a [`Checkpoint`]: one view of it, independent of format and family.
//!
//! In: a Hugging Face folder or a `.gguf` file. Out: a [`ModelConfig`] without family names in its fields, tensors by
//! canonical name, the tokenizer's files. Bytes from outside are checked here, once, and trusted after.

mod block_scales;
mod checkpoint;
mod config;
mod config_record;
mod earlier_config;
mod experts_config;
mod kind;
mod latent_config;
mod limits;
mod open;
mod source_bytes;
mod source_layout;
mod streams_config;
mod vision_config;

mod huggingface;
mod interleaved;
mod latent;
mod strided;
mod vision;

mod config_json;
mod families;
mod full_heads;
mod names;
mod rope;
mod rope_json;

mod license;
mod lora;
mod packed_fp4;
mod packed_int4;
mod predictor;
mod safetensors;
mod source_files;
mod source_names;
mod stacked;
mod tokenizer;
mod tokenizer_trial;
mod transposed;

mod gguf;

pub(crate) mod json;

pub use checkpoint::Checkpoint;
pub use config::ModelConfig;
pub use gguf::{parse as parse_gguf, parse_projector};
pub use kind::{check_is_artifact, input_kind};
pub use lora::{Adapter, merge};
pub use open::open_model;
pub use tokenizer_trial::{TRIAL_THREAD, tried};

pub(crate) use checkpoint::{Skipped, Tensor};
pub(crate) use config::{
    Activation, Codes, DeltaConfig, FullHeads, KeptCodes, PerLayerInputs, QkNorm, QueryGrowth, RopeConfig,
};
pub(crate) use experts_config::ExpertsConfig;
pub(crate) use gguf::{add_projector, part_of};
pub(crate) use kind::map_artifact;
pub(crate) use latent_config::LatentConfig;
pub(crate) use license::is_license_file;
pub(crate) use open::open;
pub(crate) use source_layout::{RowOrder, SourceDType};
pub(crate) use source_names::expert_source_name;
pub(crate) use stacked::in_stack;
pub(crate) use streams_config::StreamsConfig;
pub(crate) use strided::strided_shape;
pub(crate) use vision_config::{GridConfig, VisionConfig};
