//! The kernel in plain loops, to check it by.

use super::spec::{PreviousRowSpec, RowUse};

/// A sequence's page: the row that steps of the model have kept and its position, and that of the last draft.
pub struct KeptRows {
    /// The last row of the sequence.
    pub row: Vec<f32>,
    /// Its position; `None`: there is none yet.
    pub position: Option<u32>,
    /// The row of the last draft.
    pub draft: Vec<f32>,
}

/// The kernel for rows of one sequence, the first at `position`; rows of `input` and `output` are `spec.input_stride` and
/// `spec.output_stride` elements apart.
pub fn twin(spec: &PreviousRowSpec, position: u32, input: &[f32], kept: &mut KeptRows, output: &mut [f32]) {
    let width = spec.width;
    match spec.row_use {
        RowUse::Follow => {
            let rows = input.chunks(spec.input_stride).map(|row| row[..width].to_vec());
            let mut before = if position == 0 { vec![0.0; width] } else { kept.row.clone() };
            for (row, output) in rows.zip(output.chunks_mut(spec.output_stride)) {
                output[..width].copy_from_slice(&before);
                before = row;
            }
            kept.row = before;
            kept.position = Some(position + (input.len() / spec.input_stride) as u32 - 1);
        }
        RowUse::Recall => {
            let is_kept = kept.position.is_some_and(|kept| kept + 1 == position);
            output[..width].copy_from_slice(if is_kept { &kept.row } else { &kept.draft });
        }
        RowUse::KeepDraft => kept.draft = input[..width].to_vec(),
    }
}
