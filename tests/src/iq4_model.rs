//! Random models whose matrices a GGUF file has as IQ4_NL or IQ4_XS, and the same weights in f32 by the formats' definition: what an
//! importer that keeps codes and scales must produce.
//!
//! Shares no code with the compiler. The definition is llama.cpp's: `block_iq4_nl`, `block_iq4_xs` and `kvalues_iq4nl` of
//! `ggml-common.h`, and the order of rows of q and k in its converter of Llama.

use std::collections::BTreeMap;
use std::path::Path;

use half::f16;
use safetensors::tensor::Dtype;
use serde_json::Value;

use crate::packed_int4::{Stored, write_tensors};
use crate::random_gguf::{Encoding, Shape, StoredTensor};
use crate::tiny_model::TinyModel;

/// A GGUF file, before it is written.
pub struct Iq4Model<'a> {
    /// config.json of the same model.
    config: Value,
    encoding: &'a dyn Fn(&str) -> Encoding,
}

/// Scales of 32 weights in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// As the file has them: those of IQ4_XS are products of an f16 and a factor.
    Exact,
    /// Rounded to f16.
    Rounded,
}

impl<'a> Iq4Model<'a> {
    /// The shape of `model`, with random weights; each matrix is stored as `encoding` has it for the file's name.
    pub fn of(model: &TinyModel, encoding: &'a dyn Fn(&str) -> Encoding) -> Iq4Model<'a> {
        let mut config = model.config();
        config["rope_theta"] = config["rope_parameters"]["rope_theta"].clone();
        Iq4Model { config, encoding }
    }

    /// # Panics
    /// If the file cannot be written, or the model is of a family that [`Shape`] lacks.
    pub fn write(&self, path: &Path) {
        let mut file = Vec::new();
        self.shape().write_as(self.encoding, &mut file).expect("memory takes every byte");
        std::fs::write(path, file).expect("a file in a temporary folder");
    }

    /// Writes the model in f32, as transformers has it.
    ///
    /// # Panics
    /// As [`Iq4Model::write`].
    pub fn write_plain(&self, folder: &Path, scales: Scales) {
        std::fs::create_dir_all(folder).expect("a folder in a temporary one");
        std::fs::write(folder.join("config.json"), self.config.to_string()).expect("a file in a temporary folder");
        write_tensors(&self.plain(scales), folder);
    }

    fn shape(&self) -> Shape {
        Shape::of_config(&self.config).unwrap_or_else(|error| panic!("{error}"))
    }

    fn plain(&self, scales: Scales) -> BTreeMap<String, Stored> {
        let mut plain = BTreeMap::new();
        for tensor in self.shape().stored(self.encoding) {
            let values = self.in_order(&tensor, weights(&tensor, scales));
            let mut put = |name: String, shape: &[usize], values: &[f32]| {
                let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                plain.insert(name, Stored { dtype: Dtype::F32, shape: shape.to_vec(), bytes });
            };
            match &tensor.shape[..] {
                &[_, rows, cols] => {
                    for (expert, values) in values.chunks_exact(rows * cols).enumerate() {
                        put(name(&tensor.name).replace("EXPERT", &expert.to_string()), &[rows, cols], values);
                    }
                }
                shape => put(name(&tensor.name), shape, &values),
            }
        }
        plain
    }

    /// Rows of Llama's q and k are stored as pairs of each head's halves.
    fn in_order(&self, tensor: &StoredTensor, values: Vec<f32>) -> Vec<f32> {
        let is_rotated = tensor.name.ends_with("attn_q.weight") || tensor.name.ends_with("attn_k.weight");
        if self.config["model_type"] != "llama" || !is_rotated {
            return values;
        }
        let head_dim = self.config["head_dim"].as_u64().expect("a size") as usize;
        let (half, cols) = (head_dim / 2, tensor.shape[1]);
        let theirs = |row: usize| {
            let (head, within) = (row / head_dim, row % head_dim);
            head * head_dim + within % half * 2 + within / half
        };
        (0..tensor.shape[0]).flat_map(|row| values[theirs(row) * cols..][..cols].to_vec()).collect()
    }
}

/// The name in transformers; of a stack, with `EXPERT` for the number of each expert.
fn name(gguf: &str) -> String {
    const NAMES: [(&str, &str); 18] = [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("blk.", "model.layers."),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_q.", "self_attn.q_proj."),
        ("attn_k.", "self_attn.k_proj."),
        ("attn_v.", "self_attn.v_proj."),
        ("attn_output.", "self_attn.o_proj."),
        ("output.", "lm_head."),
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate_inp.", "mlp.gate."),
        ("_exps.", "_proj."),
        ("ffn_gate.", "mlp.gate_proj."),
        ("ffn_up.", "mlp.up_proj."),
        ("ffn_down.", "mlp.down_proj."),
        ("ffn_", "mlp.experts.EXPERT."),
    ];
    NAMES.iter().fold(gguf.to_owned(), |name, (theirs, ours)| name.replace(theirs, ours))
}

const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The weights of a tensor, in the order of the file.
fn weights(tensor: &StoredTensor, scales: Scales) -> Vec<f32> {
    let blocks = tensor.bytes.chunks_exact(tensor.encoding.block().1);
    let f16_at = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let level = |code: u8| f32::from(LEVELS[usize::from(code)]);
    match tensor.encoding {
        Encoding::F32 => blocks.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("4 bytes"))).collect(),
        Encoding::Q4_0 => {
            let weights = |block: &[u8]| group(f16_at(block, 0), &block[2..], |code| f32::from(code) - 8.0);
            blocks.flat_map(weights).collect()
        }
        Encoding::Iq4Nl => blocks.flat_map(|block| group(f16_at(block, 0), &block[2..], level)).collect(),
        Encoding::Iq4Xs => {
            let weights = |block: &[u8], n: usize| {
                let low = block[4 + n / 2] >> (4 * (n % 2)) & 15;
                let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * n) & 3;
                let exact = f16_at(block, 0) * (f32::from(low) + 16.0 * f32::from(high) - 32.0);
                let scale = if scales == Scales::Exact { exact } else { f16::from_f32(exact).to_f32() };
                group(scale, &block[8 + 16 * n..][..16], level)
            };
            blocks.flat_map(|block| (0..8).flat_map(move |n| weights(block, n))).collect()
        }
        Encoding::MxFp4 => unreachable!("these models have no {}", tensor.name),
    }
}

/// 32 weights: codes in the low halves of 16 bytes, then in the high ones.
fn group(scale: f32, bytes: &[u8], level: impl Fn(u8) -> f32) -> Vec<f32> {
    let low = bytes.iter().map(|byte| byte & 15);
    let codes = low.chain(bytes.iter().map(|byte| byte >> 4));
    codes.map(|code| scale * level(code)).collect()
}
