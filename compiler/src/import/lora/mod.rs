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

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use serde_json::Value;

use self::expert_stacks::{ExpertStack, expert_block};
use crate::error::{CompileError, Result};
use crate::import::checkpoint::{Checkpoint, LowRank};
use crate::import::json::{Fields, parse_json};
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

const CONFIG_FILE: &str = "adapter_config.json";
const WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// Larger than any trained rank; products of sizes stay far from overflow.
const MAX_RANK: usize = 1 << 16;

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

/// The factors of the adapter's products.
struct Scales {
    rank: usize,
    alpha: f64,
    by_root: bool,
    /// By names of modules, or their ends.
    ranks: BTreeMap<String, f64>,
    alphas: BTreeMap<String, f64>,
}

impl Scales {
    fn read(path: &Path, config: &Value) -> Result<Scales> {
        let fields = Fields::root(path, config)?;
        let unsupported = |what: String| {
            let detail = "merged are adapters of kind LORA that add products of two matrices; PEFT itself merges others: \
                          merge_and_unload().save_pretrained(FOLDER)";
            Err(CompileError::Unsupported { what: format!("{}: {what}", path.display()), detail: detail.into() })
        };
        match fields.text("peft_type")? {
            Some("LORA") => {}
            found => return unsupported(format!("peft_type {}", found.unwrap_or("that is missing"))),
        }
        for flag in ["use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "use_bdlora"] {
            if fields.flag(flag)? == Some(true) {
                return unsupported(flag.into());
            }
        }
        if let Some(bias) = fields.text("bias")?.filter(|bias| *bias != "none") {
            return unsupported(format!("bias {bias}"));
        }
        for list in ["modules_to_save", "trainable_token_indices", "alora_invocation_tokens", "arrow_config"] {
            let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
            if fields.value(list).is_some_and(|value| !is_empty(value)) {
                return unsupported(list.into());
            }
        }
        // The others also change the model's own weights at the start of training, and are merged into the changed ones.
        const BEGINNINGS: [&str; 3] = ["gaussian", "eva", "orthogonal"];
        let beginning = fields.value("init_lora_weights").and_then(Value::as_str);
        if let Some(other) = beginning.filter(|beginning| !BEGINNINGS.contains(beginning)) {
            return unsupported(format!("init_lora_weights {other}"));
        }
        let rank = fields.size("r", MAX_RANK)?.ok_or_else(|| fields.error("r", "is missing, expected the rank"))?;
        let alpha = fields.required_number("lora_alpha")?;
        let pattern = |name: &str| -> Result<BTreeMap<String, f64>> {
            let Some(object) = fields.object(name)? else { return Ok(BTreeMap::new()) };
            let of_module = |module: &str| {
                if !module.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c)) {
                    return Err(
                        object.error(module, "is a regular expression, expected the name of a module or its end")
                    );
                }
                Ok((module.to_owned(), object.required_number(module)?))
            };
            object.names().map(of_module).collect()
        };
        let (ranks, alphas) = (pattern("rank_pattern")?, pattern("alpha_pattern")?);
        Ok(Scales { rank, alpha, by_root: fields.flag("use_rslora")? == Some(true), ranks, alphas })
    }

    /// Factor of the module's product, whose matrices have rank `found`: alpha / rank, or alpha / √rank.
    fn of(&self, path: &Path, module: &str, found: usize) -> Result<f32> {
        let named = |pattern: &BTreeMap<String, f64>| {
            let is_named =
                |name: &str| module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            pattern.iter().find(|(name, _)| is_named(name)).map(|(_, value)| *value)
        };
        let rank = named(&self.ranks).unwrap_or(self.rank as f64);
        if rank != found as f64 {
            let what = format!("rank of {module} is {rank}, {WEIGHTS_FILE} has {found}");
            return Err(CompileError::malformed(path, what));
        }
        let alpha = named(&self.alphas).unwrap_or(self.alpha);
        Ok((alpha / if self.by_root { rank.sqrt() } else { rank }) as f32)
    }
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

    #[test]
    fn scales_follow_alpha_rank_and_their_patterns() {
        let config = serde_json::json!({
            "peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none",
            "rank_pattern": { "v_proj": 2 }, "alpha_pattern": { "layers.1.mlp.up_proj": 3 },
        });
        let path = Path::new("adapter_config.json");
        let scales = Scales::read(path, &config).unwrap();
        assert_eq!(scales.of(path, "model.layers.0.self_attn.q_proj", 4).unwrap(), 2.0);
        assert_eq!(scales.of(path, "model.layers.0.self_attn.v_proj", 2).unwrap(), 4.0);
        assert_eq!(scales.of(path, "model.layers.1.mlp.up_proj", 4).unwrap(), 0.75);
        assert_eq!(scales.of(path, "model.layers.11.mlp.up_proj", 4).unwrap(), 2.0);
        let error = scales.of(path, "model.layers.0.self_attn.q_proj", 3).unwrap_err().to_string();
        assert!(
            error.contains("rank of model.layers.0.self_attn.q_proj is 4, adapter_model.safetensors has 3"),
            "{error}"
        );
        let mut rooted = config;
        rooted["use_rslora"] = true.into();
        assert_eq!(Scales::read(path, &rooted).unwrap().of(path, "q_proj", 4).unwrap(), 4.0);
    }
}
