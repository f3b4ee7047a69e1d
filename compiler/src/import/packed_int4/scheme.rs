//! `quantization_config`: which tool packed the weights, and how.

use std::fmt::{self, Display, Formatter};

use crate::error::{CompileError, Result};
use crate::import::json::Fields;

/// How all packed matrices of a folder are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    pub tool: Tool,
    /// Columns that share a scale; `None`: all of a row.
    pub group: Option<usize>,
    /// There are no tensors of zero points: all are 8.
    pub has_no_zeros: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Awq,
    Gptq {
        /// Zero points are stored less 1, as version 1 of the format has them.
        zeros_less_one: bool,
    },
    CompressedTensors,
}

impl Display for Tool {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tool::Awq => "AWQ",
            Tool::Gptq { .. } => "GPTQ",
            Tool::CompressedTensors => "compressed-tensors",
        })
    }
}

impl Tool {
    /// One of each kind.
    pub const ALL: [Tool; 3] = [Tool::Awq, Tool::Gptq { zeros_less_one: true }, Tool::CompressedTensors];

    /// A module's tensors of codes, scales, zero points and, with GPTQ and compressed-tensors, columns' groups.
    pub fn names(self) -> ([&'static str; 3], Option<&'static str>) {
        match self {
            Tool::Awq => (["qweight", "scales", "qzeros"], None),
            Tool::Gptq { .. } => (["qweight", "scales", "qzeros"], Some("g_idx")),
            Tool::CompressedTensors => (["weight_packed", "weight_scale", "weight_zero_point"], Some("weight_g_idx")),
        }
    }

    /// The module of a packed matrix, whose codes this tensor is.
    pub fn module_of_codes(self, tensor: &str) -> Option<&str> {
        tensor.strip_suffix(self.names().0[0])?.strip_suffix('.')
    }

    /// The module that this tensor belongs to, if it is not a tensor of codes.
    pub fn module_of_others(self, tensor: &str) -> Option<&str> {
        let (module, name) = tensor.rsplit_once('.')?;
        let ([_, scales, zeros], groups) = self.names();
        let is_shape = self == Tool::CompressedTensors && name == "weight_shape";
        ([Some(scales), Some(zeros), groups].contains(&Some(name)) || is_shape).then_some(module)
    }
}

/// What config.json says of quantised weights: for a whole multimodal model or in its text part, under today's name or that of the first
/// versions of compressed-tensors.
pub fn quantization<'a>(config: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    let text = config.object("text_config")?;
    for fields in [Some(config), text.as_ref()].into_iter().flatten() {
        for name in ["quantization_config", "compression_config"] {
            if let Some(found) = fields.object(name)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

impl Scheme {
    /// Reads `config`'s [`quantization`]; `None`: weights are floats, of 8 bits also.
    ///
    /// # Errors
    /// For another tool, and for formats that are not supported: other bits, other layouts, quantised activations.
    pub fn read(config: &Fields) -> Result<Option<Scheme>> {
        let Some(fields) = &quantization(config)? else { return Ok(None) };
        match fields.text("quant_method")? {
            Some("awq") => awq(fields).map(Some),
            Some("gptq") => gptq(fields).map(Some),
            Some("auto-round") => auto_round(fields).map(Some),
            Some("compressed-tensors") if is_fp8(fields)? => Ok(None),
            Some("compressed-tensors") => compressed_tensors(fields).map(Some),
            // Its numbers are recognised by their type, see block_scales.rs.
            Some("fp8" | "fbgemm_fp8") => expect(fields, "fmt", &["e4m3"]).map(|()| None),
            Some("modelopt") => expect(fields, "quant_algo", &["FP8"]).map(|()| None),
            // Tensors of its blocks and scales are recognised by their names, see packed_fp4.rs.
            Some("mxfp4") => Ok(None),
            method => Err(unsupported(
                format!("quantization_config (method {})", method.unwrap_or("without a name")),
                "weights are read as bf16, f16 or f32, as FP8 of fp8, modelopt or compressed-tensors, as INT4 of awq, gptq, auto-round or \
                 compressed-tensors, or as mxfp4; take the model they were quantised from",
            )),
        }
    }
}

fn unsupported(what: String, detail: &str) -> CompileError {
    CompileError::Unsupported { what, detail: detail.to_owned() }
}

/// Refuses a field that is present and has none of these values, ignoring case.
fn expect(fields: &Fields, name: &str, supported: &[&str]) -> Result<()> {
    match fields.text(name)? {
        Some(found) if !supported.iter().any(|supported| supported.eq_ignore_ascii_case(found)) => Err(unsupported(
            format!("quantization_config.{name} {found}"),
            &format!("supported is {}; take the model it was quantised from", supported.join(" or ")),
        )),
        _ => Ok(()),
    }
}

fn four_bits(fields: &Fields, name: &str) -> Result<()> {
    match fields.required_number(name)? {
        4.0 => Ok(()),
        bits => Err(unsupported(
            format!("quantization_config.{name} {bits}"),
            "INT4 alone is kept as it is; take the model it was quantised from",
        )),
    }
}

fn group_size(fields: &Fields) -> Result<Option<usize>> {
    if fields.number("group_size")? == Some(-1.0) {
        return Ok(None);
    }
    let expected = "is missing, expected an integer above 0, or -1 for whole rows";
    fields.size("group_size", 1 << 22)?.map(Some).ok_or_else(|| fields.error("group_size", expected))
}

fn awq(fields: &Fields) -> Result<Scheme> {
    four_bits(fields, "bits")?;
    expect(fields, "version", &["gemm"])?;
    if fields.flag("zero_point")? == Some(false) {
        return Err(unsupported(
            "quantization_config.zero_point false of awq".into(),
            "its files with zero points are read",
        ));
    }
    Ok(Scheme { tool: Tool::Awq, group: group_size(fields)?, has_no_zeros: false })
}

fn gptq(fields: &Fields) -> Result<Scheme> {
    four_bits(fields, "bits")?;
    expect(fields, "checkpoint_format", &["gptq", "gptq_v2"])?;
    expect(fields, "pack_dtype", &["int32"])?;
    if fields.flag("is_marlin_format")? == Some(true) {
        return Err(unsupported("quantization_config.is_marlin_format".into(), "the plain layout of gptq is read"));
    }
    if let Some(rules) = fields.object("dynamic")? {
        // Rules of `-:` name modules that are not quantised.
        let others = rules.names().filter(|rule| !rule.starts_with("-:"));
        others.into_iter().try_for_each(|rule| expect_as_a_whole(fields, &rules, rule))?;
    }
    let zeros_less_one = fields.text("checkpoint_format")?.is_none_or(|format| format.eq_ignore_ascii_case("gptq"));
    Ok(Scheme { tool: Tool::Gptq { zeros_less_one }, group: group_size(fields)?, has_no_zeros: false })
}

/// AutoRound writes the tensors of AutoGPTQ or of AWQ.
fn auto_round(fields: &Fields) -> Result<Scheme> {
    four_bits(fields, "bits")?;
    expect(fields, "data_type", &["int"])?;
    if let Some(modules) = fields.object("extra_config")? {
        modules.names().try_for_each(|module| expect_as_a_whole(fields, &modules, module))?;
    }
    let group = group_size(fields)?;
    let packing = fields.text("packing_format")?.or(fields.text("backend")?).unwrap_or("auto_round:auto_gptq");
    match packing.strip_prefix("auto_round:").unwrap_or(packing) {
        "auto_gptq" | "gptq" => Ok(Scheme { tool: Tool::Gptq { zeros_less_one: true }, group, has_no_zeros: false }),
        "auto_awq" | "awq" => Ok(Scheme { tool: Tool::Awq, group, has_no_zeros: false }),
        _ => Err(unsupported(
            format!("quantization_config.packing_format {packing} of auto-round"),
            "supported is auto_round:auto_gptq or auto_round:auto_awq; take the model it was quantised from",
        )),
    }
}

/// Refuses a module, or a rule for some, that is quantised otherwise than the whole is. Of 16 bits and more it is not quantised.
fn expect_as_a_whole(whole: &Fields, modules: &Fields, module: &str) -> Result<()> {
    let Some(own) = modules.object(module)? else { return Ok(()) };
    if own.number("bits")?.is_some_and(|bits| bits >= 16.0) {
        return Ok(());
    }
    for name in ["bits", "group_size"] {
        let Some(found) = own.number(name)?.filter(|found| whole.number(name).ok().flatten() != Some(*found)) else {
            continue;
        };
        return Err(unsupported(
            format!("{name} {found} of {module} in quantization_config"),
            "all packed matrices have that of the whole; take the model it was quantised from",
        ));
    }
    Ok(())
}

/// Whether compressed-tensors has written FP8 numbers.
fn is_fp8(fields: &Fields) -> Result<bool> {
    let format = fields.text("format")?.unwrap_or_default();
    Ok(format == "float-quantized" || format == "naive-quantized")
}

fn compressed_tensors(fields: &Fields) -> Result<Scheme> {
    expect(fields, "format", &["pack-quantized"])?;
    for name in ["kv_cache_scheme", "transform_config"] {
        let is_empty = |value: &serde_json::Value| value.as_object().is_some_and(|object| object.is_empty());
        if fields.value(name).is_some_and(|value| !is_empty(value)) {
            return Err(unsupported(format!("quantization_config.{name}"), "weights alone may be quantised"));
        }
    }
    let groups = fields.object("config_groups")?;
    let groups = groups.ok_or_else(|| fields.error("config_groups", "is missing, expected an object"))?;
    let mut schemes = Vec::new();
    for name in groups.names() {
        let group = groups.object(name)?.ok_or_else(|| groups.error(name, "is null, expected an object"))?;
        schemes.push(config_group(&group)?);
    }
    match schemes[..] {
        [] => Err(fields.error("config_groups", "is empty, expected one group")),
        [first, ..] if schemes.iter().all(|scheme| *scheme == first) => Ok(first),
        _ => Err(unsupported(
            "quantization_config.config_groups that differ".into(),
            "one size of groups, and zero points for all or for none, are read",
        )),
    }
}

fn config_group(group: &Fields) -> Result<Scheme> {
    expect(group, "format", &["pack-quantized"])?;
    for name in ["input_activations", "output_activations"] {
        if group.has(name) {
            return Err(unsupported(
                format!("{name} of quantization_config"),
                "weights alone may be quantised; take the model it was quantised from",
            ));
        }
    }
    let weights = group.object("weights")?.ok_or_else(|| group.error("weights", "is missing, expected an object"))?;
    four_bits(&weights, "num_bits")?;
    expect(&weights, "type", &["int"])?;
    expect(&weights, "strategy", &["group", "channel"])?;
    let by_group = weights.text("strategy")?.map_or(weights.has("group_size"), |strategy| strategy == "group");
    Ok(Scheme {
        tool: Tool::CompressedTensors,
        group: if by_group { group_size(&weights)? } else { None },
        has_no_zeros: weights.flag("symmetric")?.unwrap_or(true),
    })
}
