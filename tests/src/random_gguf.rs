//! Random weights of a model's exact shape as a GGUF file: Q4_0 for timing llama.cpp beside an artifact made with
//! `unicorn-compile --synthetic` from the same config.json; other types for tests of what the compiler makes of them.
//!
//! ```text
//! config.json ─ families ─► metadata and tensors ─► "GGUF" · version 3 · counts · metadata (key, type, value) ·
//!                                                   tensors (name, shape, type, offset) · padding · data
//! ```

use std::io::{self, Write};

use serde_json::Value;

pub use self::encoding::Encoding;
use self::metadata::{Metadata, put_text};
pub use self::shape::Shape;
use self::tensor::{ALIGN, Tensor};

mod config;
mod encoding;
mod families;
mod metadata;
mod shape;
mod tensor;

/// A tensor of the file.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    pub name: String,
    /// Outermost first, columns last.
    pub shape: Vec<usize>,
    pub encoding: Encoding,
    pub bytes: Vec<u8>,
}

impl Shape {
    /// The shape of the model that a config.json describes, of the families that are timed.
    ///
    /// # Errors
    /// When the family is another, a size is missing, or a matrix is not divisible into blocks of 32 columns.
    pub fn of_config(config: &Value) -> Result<Shape, String> {
        let shape = families::shape(config)?;
        match shape.tensors.iter().find(|tensor| tensor.is_quantized() && !tensor.cols().is_multiple_of(32)) {
            None => Ok(shape),
            Some(tensor) => Err(format!("{} must have a multiple of 32 columns, found {}", tensor.name, tensor.cols())),
        }
    }

    /// Writes the file with matrices in Q4_0. The same shape gives the same bytes.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_as(&|_| Encoding::Q4_0, out)
    }

    /// The same with matrices as `encoding` has it for each name, but those that llama.cpp takes in one type only. Columns must
    /// be whole blocks.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_as(&self, encoding: &dyn Fn(&str) -> Encoding, out: &mut impl Write) -> io::Result<()> {
        let metadata = self.all_metadata();
        let mut head = Vec::new();
        head.extend(b"GGUF");
        head.extend(3u32.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in &metadata {
            put_text(&mut head, key);
            value.put(&mut head);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            let encoding = tensor.encoding(encoding);
            put_text(&mut head, &tensor.name);
            head.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|size| head.extend(size.to_le_bytes()));
            head.extend(encoding.type_id().to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset += tensor.bytes(encoding).next_multiple_of(ALIGN);
        }
        head.resize(head.len().next_multiple_of(ALIGN as usize), 0);
        out.write_all(&head)?;
        let mut numbered = self.tensors.iter().enumerate();
        numbered.try_for_each(|(seed, tensor)| tensor.write(tensor.encoding(encoding), seed as u64, out))
    }

    /// What [`Shape::write_as`] writes, tensor by tensor.
    pub fn stored(&self, encoding: &dyn Fn(&str) -> Encoding) -> Vec<StoredTensor> {
        let stored = |(seed, tensor): (usize, &Tensor)| {
            let encoding = tensor.encoding(encoding);
            let mut bytes = Vec::new();
            tensor.write(encoding, seed as u64, &mut bytes).expect("memory takes every byte");
            bytes.truncate(tensor.bytes(encoding) as usize);
            let shape = tensor.shape.iter().map(|&size| size as usize).collect();
            StoredTensor { name: tensor.name.clone(), shape, encoding, bytes }
        };
        self.tensors.iter().enumerate().map(stored).collect()
    }

    fn all_metadata(&self) -> Vec<(String, Metadata)> {
        let mut metadata = vec![
            ("general.architecture".into(), Metadata::Text(self.architecture)),
            ("general.file_type".into(), Metadata::Number(self.file_type)),
            ("tokenizer.ggml.model".into(), Metadata::Text("no_vocab")),
        ];
        let own = self.metadata.iter().map(|(key, value)| (format!("{}.{key}", self.architecture), value.clone()));
        metadata.extend(own);
        metadata
    }
}

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
