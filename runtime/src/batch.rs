//! One step for several sequences at once: each weight is read for all of them.

use crate::chunks::batch_program;
use crate::engine::{Drawing, Rows, Step};
use crate::error::RunError;
use crate::model::Model;
use crate::session::{Sampled, Sampling, Session};

/// A sequence's next token, and how the one after is drawn.
pub struct BatchRow<'b, 'm> {
    pub session: &'b mut Session<'m>,
    pub token: u32,
    pub sampling: &'b Sampling,
}

impl Model {
    /// Most sequences that one step takes.
    pub fn batch_rows(&self) -> u32 {
        let engine = self.engine();
        let batches = engine.programs.shapes.iter().filter(|shape| shape.batch && shape.samples);
        batches.map(|shape| shape.rows).max().unwrap_or(0)
    }

    /// Appends one token to each sequence and draws the one that follows, which is not appended yet. Results are in the
    /// order of `rows`.
    ///
    /// # Errors
    /// As [`Session::feed_and_sample`], and when there are more rows than [`Model::batch_rows`]. Nothing is appended then.
    pub fn decode_batch(&self, rows: &mut [BatchRow<'_, '_>]) -> Result<Vec<Sampled>, RunError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        for row in rows.iter() {
            assert!(row.session.is_of(self), "sessions of this model");
            row.sampling.check()?;
            row.session.check(&[row.token])?;
        }
        let mut engine = self.engine();
        let program = batch_program(&engine.programs.shapes, rows.len() as u32)
            .ok_or(RunError::NoProgram { wanted: "tokens of so many sequences at once" })?;
        for row in rows.iter_mut() {
            row.session.push(row.token, &mut engine);
        }
        let shapes: Vec<Rows> = rows.iter().map(|row| row.session.newest_row(&engine)).collect();
        let drawings: Vec<Drawing> = rows.iter().map(|row| row.session.drawing(row.sampling, false)).collect();
        let ran = engine.run(&Step { program, rows: &shapes, drawings: &drawings });
        if let Err(failure) = ran {
            rows.iter_mut().for_each(|row| row.session.pop());
            return Err(failure.into());
        }
        let gpu_seconds = engine.gpu_seconds(program, 0);
        let drawn = rows.iter_mut().enumerate();
        drawn.map(|(index, row)| Ok(engine.sampled(index, row.session.count_draw(gpu_seconds))?)).collect()
    }
}
