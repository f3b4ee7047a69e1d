//! The tensors of a folder as f32, under names without the prefixes that differ between models.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;

use super::mxfp4;
use super::tensor::Tensor;

pub struct Weights(BTreeMap<String, Tensor>);

impl Weights {
    /// Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    pub fn read(folder: &Path) -> Self {
        let mut weights = Self(weight_files(folder).iter().flat_map(|file| read_tensors(file)).collect());
        let names: Vec<String> = weights.0.keys().cloned().collect();
        for name in names.iter().filter_map(|name| name.strip_suffix("_blocks")) {
            let stack = mxfp4::stack(weights.get(&format!("{name}_blocks")), weights.get(&format!("{name}_scales")));
            weights.0.insert(name.to_owned(), stack);
        }
        for name in names.iter().filter_map(|name| name.strip_suffix("_scale_inv")) {
            let factors = weights.get(&format!("{name}_scale_inv"));
            let scaled = in_blocks(weights.get(name), factors);
            weights.0.insert(name.to_owned(), scaled);
        }
        weights
    }

    pub fn get(&self, name: &str) -> &Tensor {
        self.find(name).unwrap_or_else(|| panic!("tensor {name} is missing"))
    }

    /// The name of the router of a block of experts: by itself, in gpt-oss or Gemma 4, or as transformers 4 calls it for Mixtral.
    pub fn router(&self, block: &str) -> String {
        let names = ["gate", "router", "router.proj"].map(|name| format!("{block}.{name}.weight"));
        let found = names.iter().find(|name| self.0.contains_key(*name)).cloned();
        found.unwrap_or_else(|| names[0].replace(".mlp.", ".block_sparse_moe."))
    }

    /// Biases of gate, up and down of one expert, empty without biases: gate and up alternate.
    pub fn expert_bias(&self, block: &str, expert: usize) -> [Vec<f32>; 3] {
        let of_expert = |name: &str| {
            let stack = self.find(&format!("{block}.experts.{name}_bias"))?;
            Some(stack.values[expert * stack.shape[1]..][..stack.shape[1]].to_vec())
        };
        let every_second = |first: usize, values: &Vec<f32>| values.iter().skip(first).step_by(2).copied().collect();
        let gate_up = of_expert("gate_up_proj").unwrap_or_default();
        [every_second(0, &gate_up), every_second(1, &gate_up), of_expert("down_proj").unwrap_or_default()]
    }

    /// Gate, up and down of one expert: tensors of its own under either of two names, or parts of the stacks of transformers 5.
    pub fn expert(&self, block: &str, expert: usize) -> [Tensor; 3] {
        if let Some(gate_up) = self.find(&format!("{block}.experts.gate_up_proj")) {
            let down = self.get(&format!("{block}.experts.down_proj"));
            if self.find(&format!("{block}.experts.down_proj_bias")).is_some() {
                // gpt-oss: (experts, inputs, outputs), gate and up in turn.
                return [(gate_up, 0, 2), (gate_up, 1, 2), (down, 0, 1)].map(|(stack, first, step)| {
                    transposed_expert(stack, expert, (first..stack.shape[2]).step_by(step))
                });
            }
            if gate_up.shape[1] == down.shape[2] && gate_up.shape[2] != down.shape[1] {
                // Qwen3-VL: the same, gate before up.
                let half = gate_up.shape[2] / 2;
                return [(gate_up, 0..half), (gate_up, half..2 * half), (down, 0..down.shape[2])]
                    .map(|(stack, rows)| transposed_expert(stack, expert, rows));
            }
            let of_expert = |stack: &Tensor, first: usize, rows: usize| {
                let (height, cols) = (stack.shape[1], stack.shape[2]);
                let start = (expert * height + first) * cols;
                Tensor { shape: vec![rows, cols], values: stack.values[start..start + rows * cols].to_vec() }
            };
            let half = gate_up.shape[1] / 2;
            return [of_expert(gate_up, 0, half), of_expert(gate_up, half, half), of_expert(down, 0, down.shape[1])];
        }
        [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")].map(|(name, number)| {
            let own = format!("{block}.experts.{expert}.{name}.weight");
            // LFM2's, then Mixtral's.
            let numbered = own.replace(name, number);
            let mixtral = numbered.replace(".mlp.", ".block_sparse_moe.");
            let tensor = self.find(&own).or(self.find(&numbered)).unwrap_or_else(|| self.get(&mixtral));
            Tensor { shape: tensor.shape.clone(), values: tensor.values.clone() }
        })
    }

    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }
}

/// A matrix of FP8 numbers times the factors of its blocks, which divide it evenly; one factor is that of all.
fn in_blocks(numbers: &Tensor, factors: &Tensor) -> Tensor {
    let [rows, cols] = numbers.shape[..] else { panic!("a matrix has two axes, found {:?}", numbers.shape) };
    let (down, across) = if let [down, across] = factors.shape[..] { (down, across) } else { (1, 1) };
    let factor = |at: usize| factors.values[at / cols * down / rows * across + at % cols * across / cols];
    let values = numbers.values.iter().enumerate().map(|(at, number)| number * factor(at)).collect();
    Tensor { shape: numbers.shape.clone(), values }
}

/// These outputs of an expert of a stack (experts, inputs, outputs), as a matrix (outputs, inputs).
fn transposed_expert(stack: &Tensor, expert: usize, rows: impl ExactSizeIterator<Item = usize> + Clone) -> Tensor {
    let [_, inputs, outputs] = stack.shape[..] else { panic!("a stack has three axes, found {:?}", stack.shape) };
    let element = |output: usize, input: usize| stack.values[(expert * inputs + input) * outputs + output];
    let values = rows.clone().flat_map(|output| (0..inputs).map(move |input| element(output, input))).collect();
    Tensor { shape: vec![rows.len(), inputs], values }
}

fn weight_files(folder: &Path) -> BTreeSet<PathBuf> {
    let Ok(index) = std::fs::read_to_string(folder.join("model.safetensors.index.json")) else {
        return BTreeSet::from([folder.join("model.safetensors")]);
    };
    let index: Value = serde_json::from_str(&index).expect("the index of the shards is JSON");
    let files = index["weight_map"].as_object().expect("the index of the shards has a weight_map").values();
    files.map(|file| folder.join(file.as_str().expect("weight_map names files"))).collect()
}

fn read_tensors(file: &Path) -> Vec<(String, Tensor)> {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let tensors = SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let text_part = tensors.iter().filter(|(name, _)| !name.contains("vision_tower"));
    text_part
        .map(|(name, view)| {
            let tensor = Tensor { shape: view.shape().to_vec(), values: values_as_f32(&view) };
            (
                RENAMED.iter().fold(without_prefix(name).to_owned(), |name, (theirs, ours)| name.replace(theirs, ours)),
                tensor,
            )
        })
        .collect()
}

/// Names that only LFM2 and DeepSeek use, and those that most models use.
const RENAMED: [(&str, &str); 14] = [
    ("mlp.gate.e_score_correction_bias", "mlp.gate.choice_bias"),
    ("mlp.shared_experts", "mlp.shared_expert"),
    ("feed_forward.expert_bias", "mlp.gate.choice_bias"),
    ("feed_forward.experts", "mlp.experts"),
    ("feed_forward.gate", "mlp.gate"),
    ("operator_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("feed_forward.w1", "mlp.gate_proj"),
    ("feed_forward.w2", "mlp.down_proj"),
    ("feed_forward.w3", "mlp.up_proj"),
    ("self_attn.out_proj", "self_attn.o_proj"),
    ("q_layernorm", "q_norm"),
    ("k_layernorm", "k_norm"),
    ("embedding_norm", "norm"),
];

/// `model.layers.0.…`, `language_model.model.layers.0.…` and `model.language_model.layers.0.…` are `layers.0.…`.
fn without_prefix(name: &str) -> &str {
    let shorter = name.strip_prefix("model.").or(name.strip_prefix("language_model."));
    shorter.map_or(name, without_prefix)
}

pub fn values_as_f32(view: &TensorView) -> Vec<f32> {
    let bytes = view.data();
    match view.dtype() {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        Dtype::F8_E4M3 => bytes.iter().map(|&byte| e4m3(byte)).collect(),
        // Bytes of MXFP4, which are decoded later.
        Dtype::U8 => bytes.iter().map(|&byte| f32::from(byte)).collect(),
        other => panic!("tensor is of type {other}, expected F32, F16, BF16, F8_E4M3 or U8"),
    }
}

/// Exponent and mantissa, moved to where f32 has them; the exponents' biases are 7 and 127.
fn e4m3(byte: u8) -> f32 {
    let (sign, magnitude) = (u32::from(byte & 0x80) << 24, u32::from(byte & 0x7f));
    let bits = if magnitude < 8 { (magnitude as f32 / 512.0).to_bits() } else { (magnitude << 20) + (120 << 23) };
    f32::from_bits(sign | bits)
}
