//! LoRA adapters as PEFT writes them, merged while weights are read: W becomes W + scale · B · A.
//!
//! ```text
//! adapter_config.json          rank r, lora_alpha; scale = alpha / r, or alpha / sqrt(r)
//! adapter_model.safetensors    base_model.model.MODULE.lora_A.weight  (r, cols)
//!                              base_model.model.MODULE.lora_B.weight  (rows, r)
//!                              base_model.model.MODULE.lora_embedding_A  (r, rows), and B · A transposed is added
//!                              base_model.model.MODULE.lora_embedding_B  (cols, r)
//! ```
//!
//! Those of experts that a folder stacks have all experts of a layer in one pair (`expert_stacks.rs`). Kinds of adapters that change more than
//! products of such matrices are refused by name.

mod copies;
mod expert_stacks;
mod files;
mod pairs;
mod projections;
mod scales;

use std::path::PathBuf;

use serde_json::Value;

use self::expert_stacks::{ExpertStack, expert_block};
use self::files::{CONFIG_FILE, WEIGHTS_FILE};
use self::pairs::AdapterTensors;
use self::projections::{add, add_product};
use self::scales::Scales;
use crate::error::{CompileError, Result};
use crate::import::checkpoint::Checkpoint;
use crate::import::json::parse_json;
use crate::import::safetensors::SafetensorsFile;
use crate::import::source_bytes::SourcePart;

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
    if !config_path.exists() {
        let what =
            format!("has no {CONFIG_FILE}, expected an adapter as PEFT saves it, {CONFIG_FILE} and {WEIGHTS_FILE}");
        return Err(CompileError::malformed(&adapter.folder, what));
    }
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
    let tensors = AdapterTensors::of(&checkpoint.config, &path, &file)?;
    tensors.copies.iter().try_for_each(|copy| copy.check(checkpoint, &file))?;
    for (module, pair) in &tensors.pairs {
        let Some(block) = expert_block(&checkpoint.config, module).filter(|_| !pair.is_of_embedding) else {
            let scale = scales.of(&config_path, module, pair.rank())? * adapter.scale;
            add(checkpoint, &file, module, pair, scale)?;
            continue;
        };
        let stack = ExpertStack::of(&checkpoint.config, module, block, pair, is_before(&config, [0, 19]))?;
        let scale = scales.of(&config_path, &stack.parameter(module), stack.rank())? * adapter.scale;
        let [down, up] = pair.read(&file, module)?;
        for (part, product) in stack.products([&down, &up], scale) {
            add_product(checkpoint, module, &part, product)?;
        }
    }
    checkpoint.skipped_adapter_modules += tensors.modules_left_out;
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
