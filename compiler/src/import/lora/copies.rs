//! Copies of the model's own embedding and output head. PEFT saves them beside an adapter that changes either, and where `save_embedding_layers` is set.

use half::{bf16, f16};

use super::files::{WEIGHTS_FILE, elements};
use crate::error::{CompileError, Result};
use crate::import::checkpoint::{Checkpoint, Tensor};
use crate::import::safetensors::{SafetensorsFile, StoredTensor};
use crate::import::source_layout::SourceDType;
use crate::import::source_names::{Role, role_of};

/// A copy of one of the model's matrices.
pub(super) struct OwnCopy<'f> {
    /// Name of the tensor in the adapter's file.
    name: &'f str,
    stored: &'f StoredTensor,
    /// Canonical name of the matrix.
    of: String,
}

impl<'f> OwnCopy<'f> {
    /// `None`: the file's tensor is no copy of the embedding or the output head.
    pub fn of(name: &'f str, stored: &'f StoredTensor) -> Option<OwnCopy<'f>> {
        let in_model = name.strip_prefix("base_model.model.")?.replace(".base_layer.", ".");
        let Role::Text(of) = role_of(&in_model) else { return None };
        [EMBEDDING, HEAD].contains(&of.as_str()).then_some(OwnCopy { name, stored, of })
    }

    /// Checks that it is equal to the model's matrix, rounded to the copy's type: then it changes nothing.
    ///
    /// # Errors
    /// Where the copy has other numbers or another shape.
    pub fn check(&self, checkpoint: &Checkpoint, file: &SafetensorsFile) -> Result<()> {
        let is_tied_head = self.of == HEAD && checkpoint.config.tied_embeddings;
        let own = checkpoint.tensors.get(if is_tied_head { EMBEDDING } else { self.of.as_str() });
        match own {
            Some(own) if self.is_equal(own, file)? => Ok(()),
            _ => Err(CompileError::Unsupported {
                what: format!("tensor {} of {WEIGHTS_FILE}, which is not equal to the model's {},", self.name, self.of),
                detail: "expected the weights that the adapter was trained on, neither resized nor quantised; PEFT itself merges others: \
                         merge_and_unload().save_pretrained(FOLDER)"
                    .into(),
            }),
        }
    }

    fn is_equal(&self, own: &Tensor, file: &SafetensorsFile) -> Result<bool> {
        if self.stored.shape != [own.rows, own.cols] {
            return Ok(false);
        }
        // Adapters that are merged before this one add to it.
        let own = Tensor { added: Vec::new(), ..own.clone() };
        let row_bytes = self.stored.bytes / own.rows;
        let mut numbers = vec![0.0; own.cols];
        for row in 0..own.rows {
            let offset_bytes = self.stored.offset_bytes + row * row_bytes;
            let copied = StoredTensor { offset_bytes, bytes: row_bytes, ..self.stored.clone() };
            own.read_rows(row..row + 1, &mut numbers);
            numbers.iter_mut().for_each(|number| *number = rounded(self.stored, *number));
            if elements(file, self.name, &copied)? != numbers {
                return Ok(false);
            }
        }
        own.release();
        Ok(true)
    }
}

/// The output head, if it is not the embedding.
pub(super) const HEAD: &str = "lm_head.weight";
pub(super) const EMBEDDING: &str = "embed_tokens.weight";

/// A number as the tensor's type has it.
fn rounded(stored: &StoredTensor, number: f32) -> f32 {
    match stored.weight_dtype() {
        Some(SourceDType::F16) => f16::from_f32(number).to_f32(),
        Some(SourceDType::Bf16) => bf16::from_f32(number).to_f32(),
        _ => number,
    }
}
