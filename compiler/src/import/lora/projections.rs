//! Adapters of one matrix of the folder, of which the model may have several parts, in other orders of rows, or transposed.

use std::sync::Arc;

use super::copies::{EMBEDDING, HEAD};
use super::pairs::Pair;
use crate::error::{CompileError, Result};
use crate::import::checkpoint::{Checkpoint, LowRank};
use crate::import::safetensors::SafetensorsFile;
use crate::import::source_layout::{Elements, RowOrder};
use crate::import::source_names::source_parts;
use crate::import::strided::strided_shape;

/// Adds `scale` · B · A to the tensors that are the module's weights: several, where the adapter's model has them as one.
pub(super) fn add(
    checkpoint: &mut Checkpoint,
    file: &SafetensorsFile,
    module: &str,
    pair: &Pair,
    scale: f32,
) -> Result<()> {
    let parts = source_parts(&checkpoint.config, &format!("{module}.weight"));
    let known = |part: &String| checkpoint.tensors.get(part).is_some_and(|tensor| tensor.is_matrix());
    if checkpoint.config.tied_embeddings && [EMBEDDING, HEAD].contains(&parts[0].as_str()) {
        return Err(of_tied(module));
    }
    if !parts.iter().all(known) {
        return Err(unknown(module));
    }
    // A matrix that the adapter's model has by itself has our order, also where this folder stacks it.
    let is_alone = parts.len() == 1;
    let [rows, cols] = match strided_shape(&checkpoint.config, &parts[0]).as_deref() {
        Some(&[rows, cols]) if !is_alone => [rows, cols],
        _ => [parts.iter().map(|part| checkpoint.tensors[part].rows).sum(), checkpoint.tensors[&parts[0]].cols],
    };
    pair.check(module, [rows, cols])?;
    let [down, mut up] = pair.read(file, module)?;
    up.iter_mut().for_each(|value| *value *= scale);
    let product = LowRank { down: down.into(), up: up.into() };
    let mut first_row = 0;
    for part in parts {
        let [n_rows, n_cols] = [checkpoint.tensors[&part].rows, checkpoint.tensors[&part].cols];
        // The adapter's rows have the order of the folder that it was trained on.
        let own = match checkpoint.config.folder.row_order(&checkpoint.config, &part) {
            RowOrder::Strided(_) if is_alone => product.clone(),
            RowOrder::Strided(elements) => product.of_elements(elements, cols, [n_rows, n_cols]),
            order => product.of_rows((0..n_rows).map(|row| order.source_row(first_row, row)), cols),
        };
        first_row += n_rows;
        add_product(checkpoint, module, &part, own)?;
    }
    Ok(())
}

/// Adds a product to the model's matrix of this name, which is quantised again.
///
/// # Errors
/// Where the model has none.
pub(super) fn add_product(checkpoint: &mut Checkpoint, module: &str, part: &str, product: LowRank) -> Result<()> {
    let tensor = checkpoint.tensors.get_mut(part).ok_or_else(|| unknown(module))?;
    tensor.added.push(product);
    checkpoint.config.kept_codes.remove(part);
    Ok(())
}

/// The model has no such matrix.
fn unknown(module: &str) -> CompileError {
    let detail = "the model has no such matrix, or has it as a part of another: was the adapter trained on this model?";
    CompileError::Unsupported { what: format!("adapter of {module}"), detail: detail.into() }
}

/// An adapter of the embedding or the head changes one of them alone, also where they are one matrix.
fn of_tied(module: &str) -> CompileError {
    let detail = "the model's output head is its embedding, which cannot change without the other; PEFT can change both: \
                  merge_and_unload().save_pretrained(FOLDER)";
    CompileError::Unsupported { what: format!("adapter of {module}"), detail: detail.into() }
}

impl LowRank {
    /// These rows of the product, which has `cols` columns.
    fn of_rows(&self, rows: impl Iterator<Item = usize>, cols: usize) -> LowRank {
        let rank = self.down.len() / cols;
        let up = rows.flat_map(|row| &self.up[row * rank..][..rank]).copied().collect();
        LowRank { down: Arc::clone(&self.down), up }
    }

    /// The matrix of shape `shape` whose elements have these places in the product, which has `cols` columns. Its rows are parts of the product's rows,
    /// or of its columns: (B · A) transposed is A transposed · B transposed.
    fn of_elements(&self, elements: Elements, cols: usize, [rows, columns]: [usize; 2]) -> LowRank {
        let rank = self.down.len() / cols;
        if elements.column == 1 {
            return self.of_rows((0..rows).map(|row| elements.at(row, 0) / cols), cols);
        }
        let up = (0..rows).flat_map(|row| (0..rank).map(move |i| self.down[i * cols + elements.at(row, 0) % cols]));
        let down =
            (0..rank).flat_map(|i| (0..columns).map(move |column| self.up[elements.at(0, column) / cols * rank + i]));
        LowRank { down: down.collect(), up: up.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a product (6, 3) of rank 2: row r, column c is (r + 1) · (c + 1) + 10 · r · c.
    #[test]
    fn parts_of_a_product_are_those_of_its_elements() {
        let up: Arc<[f32]> = (0..6).flat_map(|row| [row as f32 + 1.0, row as f32]).collect();
        let product = LowRank { down: [1., 2., 3., 0., 10., 20.].into(), up };
        let values = |part: &LowRank, shape: [usize; 2]| {
            let mut out = vec![0.0; shape[0] * shape[1]];
            part.add_rows(0..shape[0], shape[1], &mut out);
            out
        };
        let whole = values(&product, [6, 3]);
        assert_eq!(whole[3 * 4 + 2], 95.0);
        let rows = Elements { first: 2 * 3, row: 3, column: 1, gaps: None };
        let turned = Elements { first: 2 * 3, row: 1, column: 3, gaps: None };
        for (elements, shape) in [(rows, [4, 3]), (turned, [3, 4])] {
            let expected: Vec<f32> = (0..shape[0])
                .flat_map(|row| (0..shape[1]).map(move |column| elements.at(row, column)))
                .map(|at| whole[at])
                .collect();
            assert_eq!(values(&product.of_elements(elements, 3, shape), shape), expected);
        }
    }
}
