//! The settings of a filetest: `;! key = value` lines, strictly.

use serde::Deserialize;
use serde_json::{Map, Value};
use unicorn_compiler::{FormatPolicy, WeightsOption};
use unicorn_kernels::KernelSpec;
use unicorn_spirv::{Target, target};

use crate::tiny_model::{FAMILIES, TinyModel};

/// One stage and what it is run on.
#[derive(Debug, Deserialize)]
#[serde(tag = "test", rename_all = "lowercase")]
pub enum Settings {
    /// The plain graph of a model.
    Graph(ModelSettings),
    /// The fused graph.
    Fuse(ModelSettings),
    /// Where every byte is placed.
    Plan(ModelSettings),
    /// The dispatches of the program that decodes a token of each of `sequences` sequences, with the kernels they run.
    Dispatches(ModelSettings),
    /// One kernel: its WGSL, capabilities, and counts of its module's instructions.
    Spirv(Box<KernelSettings>),
    /// An NPU program as MLIR, in each operation's own syntax.
    Mlir(ProgramSettings),
}

/// A random model; sizes that are not given are [`TinyModel`]'s.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSettings {
    family: String,
    vocab_size: Option<usize>,
    hidden: Option<usize>,
    intermediate: Option<usize>,
    layers: Option<usize>,
    heads: Option<usize>,
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    tied: Option<bool>,
    sliding_window: Option<usize>,
    max_position_embeddings: Option<usize>,
    weights: Option<String>,
    group: Option<u32>,
    fuse: Option<bool>,
    target: Option<String>,
    sequences: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelSettings {
    /// The spec as it is defined; f32 numbers are written as their bits.
    pub kernel: KernelSpec,
    target: String,
    /// Capabilities that the words must declare.
    #[serde(default)]
    pub require: Vec<String>,
    /// Capabilities that the words must not declare.
    #[serde(default)]
    pub forbid: Vec<String>,
}

/// The version of mlir-aie's dialects, and either a product or attention.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramSettings {
    pub dialect: String,
    pub product: Option<ProductSettings>,
    pub attention: Option<AttentionSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductSettings {
    pub rows: usize,
    pub cols: usize,
    pub depth: usize,
    /// Of the array.
    pub columns: usize,
    /// Rows, columns and values of k of a core's tile.
    pub tile: [usize; 3],
    /// `silu` or `gelu`, of columns that alternate.
    pub activation: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSettings {
    pub heads: usize,
    pub rows: usize,
    pub keys: usize,
    /// Of the array.
    pub columns: usize,
    /// Rows, keys and values of a head of a pipeline's tile.
    pub tile: [usize; 3],
}

impl Settings {
    /// Reads the `;!` lines of a file.
    pub fn parse(file: &str) -> Result<Settings, String> {
        let mut lines: Vec<String> = Vec::new();
        for line in file.lines().filter_map(|line| line.strip_prefix(";!")) {
            match lines.last_mut() {
                Some(last) if line.starts_with("  ") => *last += line,
                _ => lines.push(line.to_owned()),
            }
        }
        let mut object = Map::new();
        for line in lines {
            let (key, value) =
                line.split_once('=').ok_or_else(|| format!("setting is {line:?}, expected key = value"))?;
            let key = key.trim();
            let value: Value =
                serde_json::from_str(value).map_err(|error| format!("value of setting {key} is not JSON: {error}"))?;
            if object.insert(key.to_owned(), value).is_some() {
                return Err(format!("setting {key} is there twice"));
            }
        }
        serde_json::from_value(Value::Object(object)).map_err(|error| format!("settings: {error}"))
    }
}

impl ModelSettings {
    pub fn sequences(&self) -> u32 {
        self.sequences.unwrap_or(1)
    }

    pub fn model(&self) -> Result<TinyModel, String> {
        let facts = FAMILIES.iter().find(|facts| facts.name == self.family);
        let family = facts.ok_or_else(|| format!("family {} is unknown", self.family))?.family;
        let model = TinyModel { family, sliding_window: self.sliding_window, ..Default::default() };
        Ok(TinyModel {
            vocab_size: self.vocab_size.unwrap_or(model.vocab_size),
            hidden: self.hidden.unwrap_or(model.hidden),
            intermediate: self.intermediate.unwrap_or(model.intermediate),
            layers: self.layers.unwrap_or(model.layers),
            heads: self.heads.unwrap_or(model.heads),
            kv_heads: self.kv_heads.unwrap_or(model.kv_heads),
            head_dim: self.head_dim.unwrap_or(model.head_dim),
            tied: self.tied.unwrap_or(model.tied),
            max_position_embeddings: self.max_position_embeddings.unwrap_or(model.max_position_embeddings),
            ..model
        })
    }

    pub fn policy(&self) -> Result<FormatPolicy, String> {
        let weights = match self.weights.as_deref() {
            None | Some("int4") => WeightsOption::Int4,
            Some("int8") => WeightsOption::Int8,
            Some("f16") => WeightsOption::F16,
            Some(other) => return Err(format!("weights {other} are unknown, expected int4, int8 or f16")),
        };
        Ok(FormatPolicy { weights, group: self.group.unwrap_or(32) })
    }

    pub fn fuse(&self) -> bool {
        self.fuse.unwrap_or(true)
    }

    pub fn target(&self) -> Result<Target, String> {
        target_named(self.target.as_deref().unwrap_or("generic"))
    }
}

impl KernelSettings {
    pub fn target(&self) -> Result<Target, String> {
        target_named(&self.target)
    }
}

fn target_named(name: &str) -> Result<Target, String> {
    target::by_name(name).ok_or_else(|| format!("target {name} is unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny_model::Family;

    #[test]
    fn settings_are_read_line_by_line() {
        let file = ";! test = \"fuse\"\n;! family = \"gemma3\"\n;! layers =\n;!    1\n\n; expected\n";
        let Settings::Fuse(model) = Settings::parse(file).unwrap() else { panic!("the stage is fuse") };
        assert_eq!(model.model().unwrap().layers, 1);
        assert_eq!(model.model().unwrap().family, Family::Gemma3);
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        let refused = |file| Settings::parse(file).unwrap_err();
        assert!(refused(";! test = \"plan\"\n;! family = \"llama\"\n;! laiers = 1\n").contains("laiers"));
        assert!(refused(";! test = \"plot\"\n").contains("plot"));
        assert!(refused(";! test = \"plan\"\n;! test = \"plan\"\n").contains("twice"));
        assert!(refused(";! family\n").contains("expected key = value"));
        assert!(refused(";! family = llama\n").contains("not JSON"));
    }
}
