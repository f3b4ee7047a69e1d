//! LoRA adapters as PEFT writes them, merged while weights are read: W becomes W + scale · B · A.
//!
//! ```text
//! adapter_config.json          rank r, lora_alpha; scale = alpha / r, or alpha / sqrt(r)
//! adapter_model.safetensors    base_model.model.MODULE.lora_A.weight  (r, cols)
//!                              base_model.model.MODULE.lora_B.weight  (rows, r)
//! ```
//!
//! Those of experts that a folder stacks have all experts of a layer in one pair (`expert_stacks.rs`). Kinds of adapters that change more than
//! products of such matrices are refused by name.

mod expert_stacks;
mod files;
mod scales;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use serde_json::Value;

use self::expert_stacks::{ExpertStack, expert_block};
use self::files::{CONFIG_FILE, WEIGHTS_FILE};
use self::scales::Scales;
use crate::error::{CompileError, Result};
use crate::import::checkpoint::{Checkpoint, LowRank};
use crate::import::json::parse_json;
use crate::import::safetensors::{SafetensorsFile, StoredTensor};
use crate::import::source_bytes::SourcePart;
use crate::import::source_layout::SourceDType;
use crate::import::source_names::source_parts;

/// An adapter that is merged into the model's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The folder that PEFT's `save_pretrained` has written.
    pub folder: PathBuf,
    /// Factor of the adapter's own scale.
    pub scale: f32,
}

impl Adapter {
    /// Reads `DIR` or `DIR:SCALE`.
    ///
    /// # Errors
    /// When the scale is not a finite number.
    pub fn parse(text: &str) -> std::result::Result<Adapter, String> {
        let whole = || Adapter { folder: text.into(), scale: 1.0 };
        let Some((folder, scale)) = text.rsplit_once(':') else { return Ok(whole()) };
        match scale.parse::<f32>() {
            Ok(scale) if scale.is_finite() => Ok(Adapter { folder: folder.into(), scale }),
            Ok(_) => Err(format!("scale is {scale}, expected a finite number")),
            // A folder may have a colon in its name.
            Err(_) => Ok(whole()),
        }
    }
}

/// Adds the adapters to the tensors of `checkpoint`, in order.
///
/// # Errors
/// When a file is missing or broken, for another kind of adapter, and for one that fits another model.
pub fn merge(checkpoint: &mut Checkpoint, adapters: &[Adapter]) -> Result<()> {
    for (number, adapter) in adapters.iter().enumerate() {
        merge_one(checkpoint, adapter, number)?;
    }
    Ok(())
}

fn merge_one(checkpoint: &mut Checkpoint, adapter: &Adapter, number: usize) -> Result<()> {
    let config_path = adapter.folder.join(CONFIG_FILE);
    let config_bytes = std::fs::read(&config_path).map_err(CompileError::io(&config_path))?;
    let config = parse_json(&config_path, &config_bytes)?;
    let scales = Scales::read(&config_path, &config)?;
    let path = adapter.folder.join(WEIGHTS_FILE);
    if !path.exists() && adapter.folder.join("adapter_model.bin").exists() {
        let what =
            format!("has adapter_model.bin alone, expected {WEIGHTS_FILE}; save_pretrained of today's PEFT writes it");
        return Err(CompileError::malformed(&adapter.folder, what));
    }
    let file = SafetensorsFile::open(&path)?;
    for (module, [down, up]) in pairs_of(&path, &file)? {
        if let Some(block) = expert_block(&checkpoint.config, &module) {
            let stack = ExpertStack::of(&checkpoint.config, &module, block, [down, up], is_before(&config, [0, 19]))?;
            let scale = scales.of(&config_path, &stack.parameter(&module), stack.rank())? * adapter.scale;
            let [down, up] = [elements(&file, &module, down)?, elements(&file, &module, up)?];
            for (part, product) in stack.products([&down, &up], scale) {
                add_product(checkpoint, &module, &part, product)?;
            }
        } else {
            let scale = scales.of(&config_path, &module, down.shape[0])? * adapter.scale;
            add(checkpoint, &file, &module, [down, up], scale)?;
        }
    }
    let name = |file: &str| format!("lora {number} {}/{file}", adapter.scale);
    checkpoint.added_files.push((name(CONFIG_FILE), SourcePart::Read(config_bytes)));
    checkpoint.added_files.push((name(WEIGHTS_FILE), SourcePart::Mapped(file.map)));
    Ok(())
}

/// Whether a version of PEFT before this one has written the adapter's config.
fn is_before(config: &Value, version: [u32; 2]) -> bool {
    let numbers = config.get("peft_version").and_then(Value::as_str).unwrap_or_default().split('.');
    let found: Vec<u32> = numbers.map_while(|number| number.parse().ok()).take(2).collect();
    // Versions before 0.18 write none.
    found.as_slice() < version.as_slice()
}

/// The matrices A and B of each module, by its name in the model.
fn pairs_of<'f>(path: &Path, file: &'f SafetensorsFile) -> Result<BTreeMap<String, [&'f StoredTensor; 2]>> {
    let mut found: BTreeMap<String, [Option<&StoredTensor>; 2]> = BTreeMap::new();
    for (name, stored) in &file.tensors {
        let module = name.strip_prefix("base_model.model.").and_then(|rest| {
            let (module, kind) = rest.rsplit_once(".lora_")?;
            let side = match kind {
                "A.weight" | "A.default.weight" => 0,
                "B.weight" | "B.default.weight" => 1,
                _ => return None,
            };
            Some((module, side))
        });
        let Some((module, side)) = module else {
            return Err(CompileError::Unsupported {
                what: format!("tensor {name} of {WEIGHTS_FILE}"),
                detail: "expected base_model.model.MODULE.lora_A.weight and lora_B.weight alone".into(),
            });
        };
        if stored.shape.len() != 2 || stored.shape.contains(&0) {
            return Err(CompileError::malformed(
                path,
                format!("tensor {name} has shape {:?}, expected a matrix", stored.shape),
            ));
        }
        found.entry(module.to_owned()).or_default()[side] = Some(stored);
    }
    if found.is_empty() {
        return Err(CompileError::malformed(path, "file has no tensors, expected those of an adapter"));
    }
    let whole = |(module, sides): (String, [Option<&'f StoredTensor>; 2])| match sides {
        [Some(down), Some(up)] => Ok((module, [down, up])),
        [None, _] => Err(CompileError::MissingTensor { name: format!("{module}.lora_A.weight"), hint: String::new() }),
        [_, None] => Err(CompileError::MissingTensor { name: format!("{module}.lora_B.weight"), hint: String::new() }),
    };
    found.into_iter().map(whole).collect()
}

/// Adds `scale` · B · A to the tensors that are the module's weights: several, where the adapter's model has them as one.
fn add(
    checkpoint: &mut Checkpoint,
    file: &SafetensorsFile,
    module: &str,
    [down, up]: [&StoredTensor; 2],
    scale: f32,
) -> Result<()> {
    let parts = source_parts(&checkpoint.config, &format!("{module}.weight"));
    let known = |part: &&String| checkpoint.tensors.get(*part).is_some_and(|tensor| tensor.is_matrix());
    if let Some(part) = parts.iter().find(|part| !known(part)) {
        return Err(unknown(module, part));
    }
    let rows: usize = parts.iter().map(|part| checkpoint.tensors[part].rows).sum();
    let (cols, rank) = (checkpoint.tensors[&parts[0]].cols, down.shape[0]);
    for (side, stored, expected) in [("A", down, [rank, cols]), ("B", up, [rows, rank])] {
        if stored.shape != expected {
            return Err(CompileError::TensorShape {
                name: format!("{module}.lora_{side}.weight"),
                expected: expected.to_vec(),
                found: stored.shape.clone(),
            });
        }
    }
    let down: Arc<[f32]> = elements(file, module, down)?.into();
    let up: Vec<f32> = elements(file, module, up)?.into_iter().map(|value| value * scale).collect();
    let mut first_row = 0;
    for part in parts {
        // The adapter's rows have the order of the folder that it was trained on.
        let order = checkpoint.config.folder.row_order(&checkpoint.config, &part);
        let n_rows = checkpoint.tensors[&part].rows;
        let rows = (0..n_rows).map(|row| order.source_row(first_row, row));
        let own = rows.flat_map(|row| &up[row * rank..][..rank]).copied().collect();
        first_row += n_rows;
        add_product(checkpoint, module, &part, LowRank { down: Arc::clone(&down), up: own })?;
    }
    Ok(())
}

/// Adds a product to the model's matrix of this name, which is quantised again.
fn add_product(checkpoint: &mut Checkpoint, module: &str, part: &str, product: LowRank) -> Result<()> {
    let tensor = checkpoint.tensors.get_mut(part).ok_or_else(|| unknown(module, part))?;
    tensor.added.push(product);
    checkpoint.config.kept_codes.remove(part);
    Ok(())
}

/// The model has no such matrix.
fn unknown(module: &str, part: &str) -> CompileError {
    let detail = match part {
        "lm_head.weight" => "the model's output head is its embedding, which an adapter cannot change by itself",
        _ => "the model has no such matrix, or has it as a part of another: was the adapter trained on this model?",
    };
    CompileError::Unsupported { what: format!("adapter of {module}"), detail: detail.into() }
}

fn elements(file: &SafetensorsFile, module: &str, stored: &StoredTensor) -> Result<Vec<f32>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_stands_behind_the_last_colon() {
        let parsed =
            |text: &str| Adapter::parse(text).map(|adapter| (adapter.folder.display().to_string(), adapter.scale));
        assert_eq!(parsed("adapter"), Ok(("adapter".into(), 1.0)));
        assert_eq!(parsed("adapter:0.5"), Ok(("adapter".into(), 0.5)));
        assert_eq!(parsed("a:b"), Ok(("a:b".into(), 1.0)));
        assert_eq!(parsed("a:b:-2"), Ok(("a:b".into(), -2.0)));
        assert!(parsed("a:inf").is_err());
    }
}
