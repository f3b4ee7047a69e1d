//! The rotary embedding's part of config.json.
//!
//! GGUF has it in keys (`rope.scaling.*`) and in tensors of divisors, one per frequency: `rope_freqs.weight` is the
//! result of Llama 3's scaling, `rope_factors_{short,long}.weight` are LongRoPE's. transformers divides frequencies one
//! by one only under the name `longrope`, so Llama 3's divisors are written as that, with the same list twice.

use serde_json::{Map, Value as Json, json};

use super::keys::{Architecture, Keys, object, shortest_decimal};
use crate::error::{CompileError, Result};
use crate::import::SourceDType;

/// Inputs of the fields in addition to the metadata. `positions` is the longest context, in tokens.
pub struct RopeShape {
    pub base: f64,
    pub head_dim: usize,
    pub positions: usize,
}

/// `rope_theta`, `rope_scaling` and what belongs to them, in the form that transformers reads since version 4.
pub fn config_fields(keys: &Keys, shape: RopeShape) -> Result<Map<String, Json>> {
    let written = keys.size("rope.dimension_count")?;
    let rotary_dim = written.unwrap_or(shape.head_dim);
    let mut fields = object(json!({ "rope_theta": shape.base }));
    // Also where heads are rotated whole: not all families do that by default.
    if written.is_some() {
        fields.insert("partial_rotary_factor".to_string(), json!(rotary_dim as f64 / shape.head_dim as f64));
    }
    let divisors = Divisors::read(keys, rotary_dim / 2)?;
    let scaling = Scaling::read(keys)?;
    let rope_scaling = match (divisors, scaling.kind) {
        (Divisors::None, "none") => Json::Null,
        (Divisors::None, "linear") if scaling.factor == 1.0 => Json::Null,
        (Divisors::None, "linear") => json!({ "rope_type": "linear", "factor": scaling.factor }),
        (Divisors::None, "yarn") => scaling.yarn(keys, shape.positions)?,
        (Divisors::Llama3(list), "none" | "linear") if scaling.factor == 1.0 => json!({
            "rope_type": "longrope",
            "short_factor": list,
            "long_factor": list,
            "original_max_position_embeddings": shape.positions,
            "attention_factor": 1.0,
        }),
        (Divisors::Long { short, long }, "none" | "linear" | "longrope") => {
            let original = keys.gguf.require(
                &keys.name("rope.scaling.original_context_length"),
                keys.size("rope.scaling.original_context_length")?,
            )?;
            fields.insert("original_max_position_embeddings".to_string(), json!(original));
            long_rope(keys, &short, &long, scaling.attention_factor, original, shape.positions)
        }
        (divisors, kind) => {
            return Err(CompileError::Unsupported {
                what: format!("RoPE scaling {kind} by {}", scaling.factor),
                detail: format!("the file has {}", divisors.description()),
            });
        }
    };
    fields.insert("rope_scaling".to_string(), rope_scaling);
    Ok(fields)
}

/// The `rope.scaling.*` keys.
struct Scaling<'a> {
    kind: &'a str,
    factor: f64,
    attention_factor: f64,
}

impl<'a> Scaling<'a> {
    fn read(keys: &Keys<'a>) -> Result<Scaling<'a>> {
        let factor = keys.decimal("rope.scaling.factor")?;
        // The key before it had a type.
        let factor = if factor.is_some() { factor } else { keys.decimal("rope.scale_linear")? };
        Ok(Scaling {
            kind: keys.gguf.string(&keys.name("rope.scaling.type"))?.unwrap_or("linear"),
            factor: factor.filter(|factor| *factor != 0.0).unwrap_or(1.0),
            attention_factor: keys.decimal("rope.scaling.attn_factor")?.unwrap_or(1.0),
        })
    }

    fn yarn(&self, keys: &Keys, positions: usize) -> Result<Json> {
        let original = keys.size("rope.scaling.original_context_length")?.unwrap_or(positions);
        let mut yarn = object(json!({
            "rope_type": "yarn",
            "factor": self.factor,
            "original_max_position_embeddings": original,
        }));
        for (name, key) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
            if let Some(beta) = keys.decimal(&format!("rope.scaling.{key}"))? {
                yarn.insert(name.to_string(), json!(beta));
            }
        }
        if keys.architecture == Architecture::GptOss {
            // The bounds between the frequencies that are divided and those that are not are not rounded to whole numbers.
            yarn.insert("truncate".to_string(), json!(false));
        }
        if let Some(mscale_all_dim) = keys.decimal("rope.scaling.yarn_log_multiplier")?.filter(|mscale| *mscale != 0.0)
        {
            // DeepSeek's key has a tenth of it, which stretches scores and not the rotary embedding.
            let is_deepseek = keys.architecture == Architecture::DeepSeek2;
            let mscale_all_dim = if is_deepseek { shortest_decimal(10.0 * mscale_all_dim) } else { mscale_all_dim };
            let mscale = if is_deepseek { mscale_all_dim } else { 1.0 };
            yarn.extend(object(json!({ "mscale": mscale, "mscale_all_dim": mscale_all_dim })));
        } else if let Some(factor) = keys.decimal("rope.scaling.yarn_attn_factor")? {
            // Transformers' factor, whole.
            yarn.insert("attention_factor".to_string(), json!(factor));
        } else if keys.architecture == Architecture::Olmo2 {
            // Before 2026, its converter wrote transformers' factor under this key.
            yarn.insert("attention_factor".to_string(), json!(self.attention_factor));
        } else if self.attention_factor != 1.0 {
            // llama.cpp multiplies YaRN's own factor by the key's; transformers' replaces it.
            let attention_factor = self.attention_factor * (0.1 * self.factor.ln() + 1.0);
            yarn.insert("attention_factor".to_string(), json!(attention_factor));
        }
        Ok(Json::Object(yarn))
    }
}

/// LongRoPE. Older transformers take exactly three fields from Phi 3 and compute the attention factor, so it is written
/// only where the file has another than they would compute.
fn long_rope(
    keys: &Keys,
    short: &[f64],
    long: &[f64],
    attention_factor: f64,
    original: usize,
    positions: usize,
) -> Json {
    /// More than an f32's rounding error, less than any difference between models.
    const TOLERANCE: f64 = 1e-5;
    let mut fields = object(json!({ "type": "longrope", "short_factor": short, "long_factor": long }));
    let stretch = positions as f64 / original as f64;
    let computed = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / (original as f64).ln()).sqrt() };
    if keys.architecture != Architecture::Phi3 || (computed - attention_factor).abs() > TOLERANCE {
        fields.insert("attention_factor".to_string(), json!(attention_factor));
    }
    Json::Object(fields)
}

/// Tensors of divisors, rotary_dim / 2 each.
enum Divisors {
    None,
    Llama3(Vec<f64>),
    Long { short: Vec<f64>, long: Vec<f64> },
}

impl Divisors {
    fn read(keys: &Keys, pairs: usize) -> Result<Divisors> {
        let [freqs, short, long] = DIVISOR_TENSORS.map(|name| read_divisors(keys, name, pairs));
        Ok(match (freqs?, short?, long?) {
            (None, None, None) => Divisors::None,
            (Some(list), None, None) => Divisors::Llama3(list),
            (None, Some(short), Some(long)) => Divisors::Long { short, long },
            _ => {
                let what = format!(
                    "expected {} alone, or {} and {}",
                    DIVISOR_TENSORS[0], DIVISOR_TENSORS[1], DIVISOR_TENSORS[2]
                );
                return Err(keys.gguf.malformed(format!("RoPE divisors are a mixture, {what}")));
            }
        })
    }

    fn description(&self) -> &'static str {
        match self {
            Divisors::None => "no tensor of RoPE divisors",
            Divisors::Llama3(_) => "the tensor rope_freqs.weight",
            Divisors::Long { .. } => "the tensors rope_factors_short.weight and rope_factors_long.weight",
        }
    }
}

/// The tensors that become fields of config.json and not weights.
pub const DIVISOR_TENSORS: [&str; 3] = ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

/// The elements of a tensor of divisors, one a pair; `None`: the file has no such tensor.
pub fn read_divisors(keys: &Keys, name: &str, pairs: usize) -> Result<Option<Vec<f64>>> {
    let Some(info) = keys.gguf.tensors.get(name) else { return Ok(None) };
    if info.shape != [pairs] {
        let (expected, found) = (vec![pairs], info.shape.clone());
        return Err(CompileError::TensorShape { name: name.to_string(), expected, found });
    }
    if info.dtype != SourceDType::F32 {
        return Err(keys.gguf.malformed(format!("tensor {name} is {}, expected F32", info.dtype)));
    }
    let (elements, _) = keys.gguf.tensor_bytes(info).as_chunks::<4>();
    let list: Vec<f64> = elements.iter().map(|element| shortest_decimal(f32::from_le_bytes(*element).into())).collect();
    match list.iter().find(|divisor| !(divisor.is_finite() && **divisor > 0.0)) {
        Some(divisor) => Err(keys.gguf.malformed(format!("tensor {name} holds {divisor}, expected numbers above 0"))),
        None => Ok(Some(list)),
    }
}
