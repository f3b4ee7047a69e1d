//! The architecture of a GGUF file, and the metadata that is named by it.

use serde_json::{Map, Value as Json};

use super::reader::Gguf;
use super::value::Value;
use crate::error::{CompileError, Result};

/// The architectures of GGUF that are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama and models with its graph: Mistral, SmolLM and more are exported under this name.
    Llama,
    /// Exported under Llama's name, with experts.
    Mixtral,
    Qwen2,
    Qwen2Moe,
    Qwen3,
    Qwen3Moe,
    /// The text model of Qwen3-VL.
    Qwen3Vl,
    Qwen3VlMoe,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    Olmoe,
    /// OLMo 2, and OLMo 3 where it has windows.
    Olmo2,
    Gemma2,
    Gemma3,
    Gemma3n,
    Gemma4,
    /// GLM-4-9B of 2024 and the ChatGLMs before it.
    ChatGlm,
    Glm4,
    GptOss,
    Granite,
    Lfm2,
    Lfm2Moe,
    /// Latent attention and experts: DeepSeek V2 and V3, and GLM-4.7-Flash.
    DeepSeek2,
    /// GLM-4.5 to 4.7.
    Glm4Moe,
    /// The text model of Ministral 3; Mistral Small 3 was exported under Llama's name until 2026.
    Mistral3,
    Phi3,
    SmolLm3,
}

const ARCHITECTURES: [(&str, Architecture); 28] = [
    ("llama", Architecture::Llama),
    ("llama", Architecture::Mixtral),
    ("qwen2", Architecture::Qwen2),
    ("qwen2moe", Architecture::Qwen2Moe),
    ("qwen3", Architecture::Qwen3),
    ("qwen3moe", Architecture::Qwen3Moe),
    ("qwen3vl", Architecture::Qwen3Vl),
    ("qwen3vlmoe", Architecture::Qwen3VlMoe),
    ("qwen3next", Architecture::Qwen3Next),
    ("qwen35", Architecture::Qwen35),
    ("qwen35moe", Architecture::Qwen35Moe),
    ("olmoe", Architecture::Olmoe),
    ("olmo2", Architecture::Olmo2),
    ("gemma2", Architecture::Gemma2),
    ("gemma3", Architecture::Gemma3),
    ("gemma3n", Architecture::Gemma3n),
    ("gemma4", Architecture::Gemma4),
    ("chatglm", Architecture::ChatGlm),
    ("glm4", Architecture::Glm4),
    ("gpt-oss", Architecture::GptOss),
    ("granite", Architecture::Granite),
    ("lfm2", Architecture::Lfm2),
    ("lfm2moe", Architecture::Lfm2Moe),
    ("deepseek2", Architecture::DeepSeek2),
    ("glm4moe", Architecture::Glm4Moe),
    ("mistral3", Architecture::Mistral3),
    ("phi3", Architecture::Phi3),
    ("smollm3", Architecture::SmolLm3),
];

impl Architecture {
    /// Reads `general.architecture`.
    pub fn of(gguf: &Gguf) -> Result<Architecture> {
        let key = "general.architecture";
        let found = gguf.require(key, gguf.string(key)?)?;
        let known = ARCHITECTURES.iter().find(|(name, _)| *name == found);
        match known.map(|(_, architecture)| *architecture) {
            Some(Architecture::Llama) if gguf.unsigned("llama.expert_count")?.is_some_and(|count| count > 0) => {
                Ok(Architecture::Mixtral)
            }
            Some(architecture) => Ok(architecture),
            None => {
                let mut names: Vec<&'static str> = ARCHITECTURES.map(|(name, _)| name).to_vec();
                names.dedup();
                Err(CompileError::UnsupportedArchitecture { found: found.to_string(), supported: names })
            }
        }
    }

    /// The value of `general.architecture`; also the prefix of the architecture's keys.
    pub fn name(self) -> &'static str {
        ARCHITECTURES.iter().find(|(_, architecture)| *architecture == self).expect("every architecture is listed").0
    }

    /// Norms multiply by 1 + weight, and files have the sum.
    pub fn adds_one_to_norms(self) -> bool {
        matches!(self, Architecture::Gemma2 | Architecture::Gemma3) || self.has_delta_nets()
    }

    /// The rows of q and k are ordered as llama.cpp's converter orders Llama's.
    pub fn interleaves_heads(self) -> bool {
        matches!(
            self,
            Architecture::Llama
                | Architecture::Mixtral
                | Architecture::Granite
                | Architecture::Mistral3
                | Architecture::SmolLm3
        )
    }

    pub fn has_experts(self) -> bool {
        matches!(
            self,
            Architecture::Mixtral
                | Architecture::Qwen2Moe
                | Architecture::Qwen3Moe
                | Architecture::Qwen3VlMoe
                | Architecture::Qwen3Next
                | Architecture::Qwen35Moe
                | Architecture::Olmoe
                | Architecture::Gemma4
                | Architecture::GptOss
                | Architecture::Lfm2Moe
                | Architecture::DeepSeek2
                | Architecture::Glm4Moe
        )
    }

    /// Rows of images have several positions, in sections of each head.
    pub fn has_image_positions(self) -> bool {
        matches!(self, Architecture::Qwen3Vl | Architecture::Qwen3VlMoe)
    }

    /// Some layers have a short convolution in place of attention, and the last norm has a name of its own.
    pub fn is_lfm2(self) -> bool {
        matches!(self, Architecture::Lfm2 | Architecture::Lfm2Moe)
    }

    /// Most layers have a gated delta net in place of attention.
    pub fn has_delta_nets(self) -> bool {
        matches!(self, Architecture::Qwen3Next | Architecture::Qwen35 | Architecture::Qwen35Moe)
    }

    /// The norm before the feed-forward is named by what it follows.
    pub fn has_post_attention_norm(self) -> bool {
        matches!(self, Architecture::GptOss | Architecture::Glm4Moe) || self.has_delta_nets()
    }

    /// Layers that predict further tokens are in the file, behind the others, and are counted with them.
    pub fn predicts_further(self) -> bool {
        self == Architecture::Glm4Moe || self.has_delta_nets()
    }

    /// `architectures[0]` and `model_type` in config.json.
    pub fn transformers_names(self) -> (&'static str, &'static str) {
        match self {
            Architecture::Llama => ("LlamaForCausalLM", "llama"),
            Architecture::Mixtral => ("MixtralForCausalLM", "mixtral"),
            Architecture::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
            Architecture::Qwen2Moe => ("Qwen2MoeForCausalLM", "qwen2_moe"),
            Architecture::Qwen3 | Architecture::Qwen3Vl => ("Qwen3ForCausalLM", "qwen3"),
            Architecture::Qwen3Moe | Architecture::Qwen3VlMoe => ("Qwen3MoeForCausalLM", "qwen3_moe"),
            Architecture::Qwen3Next => ("Qwen3NextForCausalLM", "qwen3_next"),
            Architecture::Qwen35 => ("Qwen3_5ForCausalLM", "qwen3_5_text"),
            Architecture::Qwen35Moe => ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
            Architecture::Olmoe => ("OlmoeForCausalLM", "olmoe"),
            Architecture::Olmo2 => ("Olmo2ForCausalLM", "olmo2"),
            Architecture::Gemma2 => ("Gemma2ForCausalLM", "gemma2"),
            Architecture::Gemma3 => ("Gemma3ForCausalLM", "gemma3_text"),
            Architecture::Gemma3n => ("Gemma3nForCausalLM", "gemma3n_text"),
            Architecture::Gemma4 => ("Gemma4ForCausalLM", "gemma4_text"),
            Architecture::ChatGlm => ("GlmForCausalLM", "glm"),
            Architecture::Glm4 => ("Glm4ForCausalLM", "glm4"),
            Architecture::GptOss => ("GptOssForCausalLM", "gpt_oss"),
            Architecture::Granite => ("GraniteForCausalLM", "granite"),
            Architecture::Lfm2 => ("Lfm2ForCausalLM", "lfm2"),
            Architecture::Lfm2Moe => ("Lfm2MoeForCausalLM", "lfm2_moe"),
            Architecture::DeepSeek2 => ("DeepseekV2ForCausalLM", "deepseek_v2"),
            Architecture::Glm4Moe => ("Glm4MoeForCausalLM", "glm4_moe"),
            Architecture::Mistral3 => ("Ministral3ForCausalLM", "ministral3"),
            Architecture::Phi3 => ("Phi3ForCausalLM", "phi3"),
            Architecture::SmolLm3 => ("SmolLM3ForCausalLM", "smollm3"),
        }
    }

    /// llama.cpp's value where the metadata has none.
    pub fn default_rope_base(self) -> f64 {
        if matches!(self, Architecture::Gemma3 | Architecture::Gemma3n | Architecture::Gemma4) {
            1_000_000.0
        } else {
            10_000.0
        }
    }
}

/// The architecture's own keys, named without their prefix.
pub struct Keys<'a> {
    pub gguf: &'a Gguf<'a>,
    pub architecture: Architecture,
}

impl Keys<'_> {
    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name())
    }

    /// A number above 0, or an array that has the same for each layer; 0 reads as absent, as in llama.cpp.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        let name = self.name(key);
        let number = match self.gguf.value(&name) {
            Some(Value::Array(array)) => {
                let mut numbers = self.of_layers(key, array.len())?;
                numbers.dedup();
                if numbers.len() > 1 {
                    return Err(CompileError::Unsupported {
                        what: format!("{name} of {numbers:?}"),
                        detail: "expected one number for all layers".to_string(),
                    });
                }
                numbers.pop()
            }
            _ => self.gguf.unsigned(&name)?,
        };
        Ok(number.filter(|size| *size > 0))
    }

    /// A number a layer, from an array or from one number for all; 0 is a number here.
    pub fn of_layers(&self, key: &str, layers: usize) -> Result<Vec<usize>> {
        let name = self.name(key);
        let Some(Value::Array(array)) = self.gguf.value(&name) else {
            let number = self.gguf.require(&name, self.gguf.unsigned(&name)?)?;
            return Ok(vec![number; layers]);
        };
        if array.len() != layers {
            let found = array.len();
            return Err(self
                .gguf
                .malformed(format!("{name} has {found} elements, expected one for each of {layers} layers")));
        }
        let number = |value: Value| value.as_unsigned().and_then(|value| value.try_into().ok());
        let numbers: Option<Vec<usize>> = array.values().map(number).collect();
        numbers.ok_or_else(|| self.gguf.malformed(format!("{name} has an element that is no whole number from 0 on")))
    }

    /// Whether each layer has a window, by a bool for each or by a period, of which the last layer has none.
    pub fn sliding_layers(&self, layers: usize, default_period: usize) -> Result<Vec<bool>> {
        let key = self.name("attention.sliding_window_pattern");
        let is_sliding: Vec<bool> = match self.gguf.value(&key) {
            Some(Value::Array(pattern)) => pattern.values().map(|value| value == Value::Bool(true)).collect(),
            _ => {
                let period = self.gguf.unsigned(&key)?.unwrap_or(default_period);
                (0..layers).map(|layer| period > 0 && layer % period < period - 1).collect()
            }
        };
        if is_sliding.len() != layers {
            let found = is_sliding.len();
            return Err(self
                .gguf
                .malformed(format!("{key} has {found} elements, expected one for each of {layers} layers")));
        }
        Ok(is_sliding)
    }

    /// KV heads of the layers that have any.
    pub fn kv_heads_of_attention(&self, layers: usize) -> Result<Option<usize>> {
        let key = "attention.head_count_kv";
        let mut found = self.of_layers(key, layers)?;
        found.retain(|heads| *heads > 0);
        found.dedup();
        match found[..] {
            [] => Ok(None),
            [heads] => Ok(Some(heads)),
            _ => Err(CompileError::Unsupported {
                what: format!("{} of {found:?}", self.name(key)),
                detail: "expected one number for all layers with attention".to_string(),
            }),
        }
    }

    /// A float as people write it: 1e-5, not the 9.999999747378752e-6 that an f32 holds.
    pub fn decimal(&self, key: &str) -> Result<Option<f64>> {
        Ok(self.gguf.float(&self.name(key))?.map(shortest_decimal))
    }

    /// Such floats, of an array.
    pub fn decimals(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let name = self.name(key);
        let Some(value) = self.gguf.value(&name) else { return Ok(None) };
        let numbers: Option<Vec<f64>> = match value {
            Value::Array(array) => array.values().map(|value| value.as_f64().map(shortest_decimal)).collect(),
            _ => None,
        };
        let wrong = || self.gguf.malformed(format!("{name} is {}, expected an array of numbers", value.kind()));
        numbers.ok_or_else(wrong).map(Some)
    }

    pub fn required_size(&self, key: &str) -> Result<usize> {
        self.gguf.require(&self.name(key), self.size(key)?)
    }

    pub fn required_decimal(&self, key: &str) -> Result<f64> {
        self.gguf.require(&self.name(key), self.decimal(key)?)
    }

    /// Refuses keys that change the graph into one that is not supported.
    pub fn refuse_unknown_graphs(&self) -> Result<()> {
        let unsupported = |key: &str, detail: &str| {
            Err(CompileError::Unsupported { what: self.name(key), detail: detail.to_string() })
        };
        if !self.architecture.has_experts() && self.size("expert_count")?.is_some() {
            return unsupported("expert_count", "this architecture is compiled without experts");
        }
        if self.gguf.bool(&self.name("attention.causal"))? == Some(false) {
            return unsupported("attention.causal", "only causal attention generates text");
        }
        if self.gguf.bool(&self.name("rope.scaling.finetuned"))? == Some(false)
            && self.architecture == Architecture::Granite
        {
            return unsupported(
                "rope.scaling.finetuned",
                "which is false in a Granite without rotary embedding; take the folder that the file was made from",
            );
        }
        // Positions of text are the same in all sections.
        let is_text_alone = self.architecture.has_delta_nets() || self.architecture.has_image_positions();
        if let Some(Value::Array(sections)) = self.gguf.value(&self.name("rope.dimension_sections"))
            && !is_text_alone
            && sections.values().any(|section| section.as_f64() != Some(0.0))
        {
            return unsupported("rope.dimension_sections", "rotary embeddings of several positions are not compiled");
        }
        let has_scale = self.architecture == Architecture::Granite;
        if !has_scale && self.decimal("attention.scale")?.is_some_and(|scale| scale != 0.0) {
            return unsupported("attention.scale", "a scale of q·k of its own is not compiled");
        }
        Ok(())
    }
}

/// The shortest decimal that reads back as the same f32; NaN and infinities are not changed.
pub fn shortest_decimal(value: f64) -> f64 {
    (value as f32).to_string().parse().expect("a printed float parses")
}

/// The fields of a JSON object literal.
pub fn object(json: Json) -> Map<String, Json> {
    match json {
        Json::Object(fields) => fields,
        other => unreachable!("{other} is not an object"),
    }
}
