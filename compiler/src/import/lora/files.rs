//! The files of an adapter, and the numbers of its tensors.

use half::{bf16, f16};

use crate::error::{CompileError, Result};
use crate::import::safetensors::{SafetensorsFile, StoredTensor};
use crate::import::source_layout::SourceDType;

pub(super) const CONFIG_FILE: &str = "adapter_config.json";
pub(super) const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// The numbers of a tensor of the adapter of `module`.
///
/// # Errors
/// Where they are not floats.
pub(super) fn elements(file: &SafetensorsFile, module: &str, stored: &StoredTensor) -> Result<Vec<f32>> {
    let bytes = &file.map.bytes()[stored.offset_bytes..stored.offset_bytes + stored.bytes];
    let values: Vec<f32> = match stored.weight_dtype() {
        Some(SourceDType::F32) => bytes.as_chunks().0.iter().map(|one| f32::from_le_bytes(*one)).collect(),
        Some(SourceDType::F16) => bytes.as_chunks().0.iter().map(|one| f16::from_le_bytes(*one).to_f32()).collect(),
        Some(SourceDType::Bf16) => bytes.as_chunks().0.iter().map(|one| bf16::from_le_bytes(*one).to_f32()).collect(),
        _ => {
            return Err(CompileError::Unsupported {
                what: format!("element type {} of the adapter of {module}", stored.dtype),
                detail: "adapters are read as BF16, F16 or F32".into(),
            });
        }
    };
    Ok(values)
}
