//! Random weights of a model's exact shape as a GGUF file: Q4_0 for timing llama.cpp beside an artifact made with
//! `unicorn-compile --synthetic` from the same config.json; other types for tests of what the compiler makes of them.
//!
//! ```text
//! "GGUF" · version 3 · counts · metadata (key, type, value) · tensors (name, shape, type, offset) · padding · data
//! ```

use std::io::{self, Write};

use half::f16;
use serde_json::Value;

use crate::tiny_model::random::Random;

/// How a matrix is stored; vectors are F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    F32,
    /// An f16 scale and 32 codes of 4 bits.
    Q4_0,
    /// The same, and codes are places in a table.
    Iq4Nl,
    /// An f16 scale, 8 factors of 6 bits and 256 codes of the same table.
    Iq4Xs,
}

impl Encoding {
    /// ggml's number of the type.
    fn type_id(self) -> u32 {
        match self {
            Encoding::F32 => 0,
            Encoding::Q4_0 => 2,
            Encoding::Iq4Nl => 20,
            Encoding::Iq4Xs => 23,
        }
    }

    /// Weights and bytes of a block.
    pub fn block(self) -> (usize, usize) {
        match self {
            Encoding::F32 => (1, 4),
            Encoding::Q4_0 | Encoding::Iq4Nl => (BLOCK_WEIGHTS as usize, 18),
            Encoding::Iq4Xs => (256, 136),
        }
    }
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    pub name: String,
    /// Outermost first, columns last.
    pub shape: Vec<usize>,
    pub encoding: Encoding,
    pub bytes: Vec<u8>,
}

/// The sizes that a GGUF file names.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    architecture: &'static str,
    layers: u32,
    hidden: u32,
    feed_forward: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    vocab: u32,
    context: u32,
    window: Option<u32>,
    rope_theta: f32,
    eps: f32,
    tied_head: bool,
    /// Norms of q and k.
    head_norms: bool,
    /// Norms after attention and feed-forward.
    post_norms: bool,
    experts: Option<Experts>,
}

/// A mixture of experts in the place of each layer's feed-forward.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Experts {
    count: u32,
    chosen: u32,
    feed_forward: u32,
}

impl Shape {
    /// The shape of a Llama, Gemma 3, Qwen 3 or Qwen3-MoE that a config.json describes.
    ///
    /// # Errors
    /// When the family is another, or a size is missing or not divisible into Q4_0's blocks.
    pub fn of_config(config: &Value) -> Result<Shape, String> {
        let model_type = config["model_type"].as_str().ok_or("model_type is missing")?;
        let (architecture, head_norms, post_norms) = match model_type {
            "llama" => ("llama", false, false),
            "gemma3_text" => ("gemma3", true, true),
            "qwen3" => ("qwen3", true, false),
            "qwen3_moe" => ("qwen3moe", true, false),
            other => return Err(format!("model_type must be llama, gemma3_text, qwen3 or qwen3_moe, found {other}")),
        };
        let size = |key: &str| {
            let size = config[key].as_u64().and_then(|size| u32::try_from(size).ok());
            size.filter(|&size| size > 0).ok_or(format!("{key} is missing or no size"))
        };
        let (hidden, heads) = (size("hidden_size")?, size("num_attention_heads")?);
        let head_dim = size("head_dim").unwrap_or(hidden / heads);
        let feed_forward = size("intermediate_size")?;
        let experts = match architecture {
            "qwen3moe" => Some(Experts {
                count: size("num_experts")?,
                chosen: size("num_experts_per_tok")?,
                feed_forward: size("moe_intermediate_size")?,
            }),
            _ => None,
        };
        let widths = [
            ("hidden_size", hidden),
            ("intermediate_size", feed_forward),
            ("moe_intermediate_size", experts.map_or(BLOCK_WEIGHTS, |experts| experts.feed_forward)),
            ("heads", heads * head_dim),
        ];
        for (name, width) in widths {
            if width % BLOCK_WEIGHTS != 0 {
                return Err(format!("{name} must be a multiple of {BLOCK_WEIGHTS}, found {width}"));
            }
        }
        Ok(Shape {
            architecture,
            layers: size("num_hidden_layers")?,
            hidden,
            feed_forward,
            heads,
            kv_heads: size("num_key_value_heads")?,
            head_dim,
            vocab: size("vocab_size")?,
            context: size("max_position_embeddings")?,
            window: size("sliding_window").ok(),
            rope_theta: config["rope_theta"].as_f64().ok_or("rope_theta is missing")? as f32,
            eps: config["rms_norm_eps"].as_f64().ok_or("rms_norm_eps is missing")? as f32,
            tied_head: config["tie_word_embeddings"] == true,
            head_norms,
            post_norms,
            experts,
        })
    }

    /// Writes the file with matrices in Q4_0. The same shape gives the same bytes.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_as(&|_| Encoding::Q4_0, out)
    }

    /// The same with matrices as `encoding` has it for each name. Columns must be whole blocks.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_as(&self, encoding: &dyn Fn(&str) -> Encoding, out: &mut impl Write) -> io::Result<()> {
        let (tensors, metadata) = (self.tensors(encoding), self.metadata());
        let mut head = Vec::new();
        head.extend(b"GGUF");
        head.extend(3u32.to_le_bytes());
        head.extend((tensors.len() as u64).to_le_bytes());
        head.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in &metadata {
            put_text(&mut head, key);
            value.put(&mut head);
        }
        let mut offset = 0u64;
        for tensor in &tensors {
            put_text(&mut head, &tensor.name);
            let shape = tensor.shape();
            head.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|size| head.extend(size.to_le_bytes()));
            head.extend(tensor.encoding.type_id().to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset += tensor.bytes().next_multiple_of(ALIGN);
        }
        head.resize(head.len().next_multiple_of(ALIGN as usize), 0);
        out.write_all(&head)?;
        tensors.iter().enumerate().try_for_each(|(index, tensor)| tensor.write(index as u64, out))
    }

    /// What [`Shape::write_as`] writes, tensor by tensor.
    pub fn stored(&self, encoding: &dyn Fn(&str) -> Encoding) -> Vec<StoredTensor> {
        let stored = |(seed, tensor): (usize, Tensor)| StoredTensor {
            shape: tensor.shape().iter().map(|&size| size as usize).collect(),
            encoding: tensor.encoding,
            bytes: {
                let mut bytes = Vec::new();
                tensor.write(seed as u64, &mut bytes).expect("memory takes every byte");
                bytes.truncate(tensor.bytes() as usize);
                bytes
            },
            name: tensor.name,
        };
        self.tensors(encoding).into_iter().enumerate().map(stored).collect()
    }

    fn metadata(&self) -> Vec<(String, Metadata)> {
        let own = |key: &str| format!("{}.{key}", self.architecture);
        let mut metadata = vec![
            ("general.architecture".into(), Metadata::Text(self.architecture)),
            ("general.file_type".into(), Metadata::Number(Encoding::Q4_0.type_id())),
            ("tokenizer.ggml.model".into(), Metadata::Text("no_vocab")),
            (own("attention.layer_norm_rms_epsilon"), Metadata::Float(self.eps)),
            (own("rope.freq_base"), Metadata::Float(self.rope_theta)),
        ];
        let numbers = [
            ("block_count", Some(self.layers)),
            ("context_length", Some(self.context)),
            ("embedding_length", Some(self.hidden)),
            ("feed_forward_length", Some(self.feed_forward)),
            ("attention.head_count", Some(self.heads)),
            ("attention.head_count_kv", Some(self.kv_heads)),
            ("attention.key_length", Some(self.head_dim)),
            ("attention.value_length", Some(self.head_dim)),
            ("attention.sliding_window", self.window),
            ("rope.dimension_count", Some(self.head_dim)),
            ("vocab_size", Some(self.vocab)),
            ("expert_count", self.experts.map(|experts| experts.count)),
            ("expert_used_count", self.experts.map(|experts| experts.chosen)),
            ("expert_feed_forward_length", self.experts.map(|experts| experts.feed_forward)),
        ];
        metadata.extend(numbers.into_iter().filter_map(|(key, value)| Some((own(key), Metadata::Number(value?)))));
        metadata
    }

    fn tensors(&self, encoding: &dyn Fn(&str) -> Encoding) -> Vec<Tensor> {
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = vec![
            Tensor::matrix("token_embd.weight", self.vocab, self.hidden),
            Tensor::vector("output_norm.weight", self.hidden),
        ];
        if !self.tied_head {
            tensors.push(Tensor::matrix("output.weight", self.vocab, self.hidden));
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            tensors.extend([
                Tensor::vector(name("attn_norm"), self.hidden),
                Tensor::matrix(name("attn_q"), queries, self.hidden),
                Tensor::matrix(name("attn_k"), keys, self.hidden),
                Tensor::matrix(name("attn_v"), keys, self.hidden),
                Tensor::matrix(name("attn_output"), self.hidden, queries),
                Tensor::vector(name("ffn_norm"), self.hidden),
            ]);
            match self.experts {
                None => tensors.extend([
                    Tensor::matrix(name("ffn_gate"), self.feed_forward, self.hidden),
                    Tensor::matrix(name("ffn_up"), self.feed_forward, self.hidden),
                    Tensor::matrix(name("ffn_down"), self.hidden, self.feed_forward),
                ]),
                Some(Experts { count, feed_forward, .. }) => tensors.extend([
                    Tensor::matrix(name("ffn_gate_inp"), count, self.hidden),
                    Tensor::matrix(name("ffn_gate_exps"), feed_forward, self.hidden).of_experts(count),
                    Tensor::matrix(name("ffn_up_exps"), feed_forward, self.hidden).of_experts(count),
                    Tensor::matrix(name("ffn_down_exps"), self.hidden, feed_forward).of_experts(count),
                ]),
            }
            if self.head_norms {
                tensors.extend(["attn_q_norm", "attn_k_norm"].map(|part| Tensor::vector(name(part), self.head_dim)));
            }
            if self.post_norms {
                let parts = ["post_attention_norm", "post_ffw_norm"];
                tensors.extend(parts.map(|part| Tensor::vector(name(part), self.hidden)));
            }
        }
        for tensor in tensors.iter_mut().filter(|tensor| tensor.is_matrix()) {
            tensor.encoding = encoding(&tensor.name);
        }
        tensors
    }
}

/// Alignment of tensor data, in bytes.
const ALIGN: u64 = 32;
/// Weights of a block of Q4_0.
const BLOCK_WEIGHTS: u32 = 32;
/// The most random blocks that a tensor repeats: more than caches hold, and quickly made.
const POOL_BLOCKS: usize = 1 << 16;

enum Metadata {
    Number(u32),
    Float(f32),
    Text(&'static str),
}

impl Metadata {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Metadata::Number(value) => out.extend([4u32, *value].iter().flat_map(|word| word.to_le_bytes())),
            Metadata::Float(value) => out.extend([6u32, value.to_bits()].iter().flat_map(|word| word.to_le_bytes())),
            Metadata::Text(text) => {
                out.extend(8u32.to_le_bytes());
                put_text(out, text);
            }
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

struct Tensor {
    name: String,
    /// 0: a vector of `cols` ones.
    rows: u64,
    cols: u64,
    /// Matrices in a stack; 0: no stack.
    experts: u64,
    encoding: Encoding,
}

impl Tensor {
    fn matrix(name: impl Into<String>, rows: u32, cols: u32) -> Tensor {
        Tensor { name: name.into(), rows: u64::from(rows), cols: u64::from(cols), experts: 0, encoding: Encoding::F32 }
    }

    fn vector(name: impl Into<String>, cols: u32) -> Tensor {
        Tensor { name: name.into(), rows: 0, cols: u64::from(cols), experts: 0, encoding: Encoding::F32 }
    }

    fn of_experts(self, count: u32) -> Tensor {
        Tensor { experts: u64::from(count), ..self }
    }

    fn is_matrix(&self) -> bool {
        self.rows > 0
    }

    /// Outermost first, columns last.
    fn shape(&self) -> Vec<u64> {
        [self.experts, self.rows, self.cols].into_iter().filter(|&size| size > 0).collect()
    }

    fn blocks(&self) -> u64 {
        self.shape().iter().product::<u64>() / self.encoding.block().0 as u64
    }

    fn bytes(&self) -> u64 {
        self.blocks() * self.encoding.block().1 as u64
    }

    fn write(&self, seed: u64, out: &mut impl Write) -> io::Result<()> {
        if !self.is_matrix() {
            out.write_all(&1f32.to_le_bytes().repeat(self.cols as usize))?;
        } else {
            let pool = random_blocks(self.encoding, seed, self.cols, POOL_BLOCKS.min(self.blocks() as usize));
            let mut left = self.bytes() as usize;
            while left > 0 {
                let now = left.min(pool.len());
                out.write_all(&pool[..now])?;
                left -= now;
            }
        }
        let padding = self.bytes().next_multiple_of(ALIGN) - self.bytes();
        out.write_all(&[0; ALIGN as usize][..padding as usize])
    }
}

/// Codes at random, and scales with which activations keep about their size.
fn random_blocks(encoding: Encoding, seed: u64, cols: u64, count: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let deviation = 1.0 / (cols as f64).sqrt();
    // Scales of the table's levels, of either sign, around the one that gives the deviation.
    let scale = |random: &mut Random, factor: f64| {
        let scale = deviation / LEVEL_DEVIATION / factor * (0.5 + (random.word() % 1000) as f64 / 1000.0);
        f16::from_f64(if random.word().is_multiple_of(2) { scale } else { -scale }).to_le_bytes()
    };
    let mut blocks = Vec::with_capacity(count * encoding.block().1);
    for _ in 0..count {
        let words = match encoding {
            Encoding::F32 => {
                // f16 holds them, too.
                let weight = f16::from_f64(f64::from(random.normal()) * deviation);
                blocks.extend(weight.to_f32().to_le_bytes());
                0
            }
            Encoding::Q4_0 => {
                blocks.extend(f16::from_f64(deviation / 8.0).to_le_bytes());
                2
            }
            Encoding::Iq4Nl => {
                blocks.extend(scale(&mut random, 1.0));
                2
            }
            Encoding::Iq4Xs => {
                blocks.extend(scale(&mut random, FACTOR_DEVIATION));
                blocks.extend(&random.word().to_le_bytes()[..6]);
                16
            }
        };
        (0..words).for_each(|_| blocks.extend(random.word().to_le_bytes()));
    }
    blocks
}

/// Standard deviation of the levels of IQ4's table.
const LEVEL_DEVIATION: f64 = 69.0;
/// That of whole numbers from -32 to 31.
const FACTOR_DEVIATION: f64 = 18.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_as_long_as_its_tensors_and_reads_as_a_model() {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": false
        });
        reads_as_a_model(&config);
        let mut mixture = config;
        mixture["model_type"] = "qwen3_moe".into();
        mixture["num_experts"] = 6.into();
        mixture["num_experts_per_tok"] = 2.into();
        mixture["moe_intermediate_size"] = 32.into();
        reads_as_a_model(&mixture);
    }

    fn reads_as_a_model(config: &Value) {
        let shape = Shape::of_config(config).unwrap();
        let mut file = Vec::new();
        shape.write(&mut file).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("random.gguf");
        std::fs::write(&path, &file).unwrap();
        unicorn_compiler::import::open_model(&path).unwrap_or_else(|error| panic!("{error}"));
        std::fs::write(&path, &file[..file.len() - ALIGN as usize]).unwrap();
        assert!(unicorn_compiler::import::open_model(&path).is_err(), "the last tensor ends with the file");
    }

    #[test]
    fn a_shape_that_does_not_fit_is_named() {
        let error = Shape::of_config(&serde_json::json!({ "model_type": "phi3" })).unwrap_err();
        assert!(error.contains("found phi3"), "{error}");
    }
}
