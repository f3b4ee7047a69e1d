//! One step at a time: what the host writes, the submission, what the host reads. A step allocates nothing.

use std::sync::Arc;
use std::time::Instant;

use artifacts::step::{HISTORY_AT, Output, ROWS_AT, Row, StepHeader, TABLES_AT};

use crate::buffers::HostViews;
use crate::chunks::Chunk;
use crate::pages::{BlockTable, PagePool};
use crate::profile::StepProfile;
use crate::programs::Programs;
use crate::session::Sampled;
use crate::vk::Failure;
use crate::vk::stamps::Stamps;
use crate::vk::submit::Lane;

/// What all sessions of a model share. They take turns.
pub struct Engine {
    /// Dropped first: it waits for what is under way.
    pub lane: Lane,
    /// Begin and end of a step; `None`: the device keeps no time.
    pub timer: Option<Arc<Stamps>>,
    /// Steps since they were last taken, where programs were recorded to be profiled.
    pub profiles: Vec<StepProfile>,
    pub views: HostViews,
    pub programs: Programs,
    /// One a KV group.
    pub pools: Vec<PagePool>,
    pub free_slots: Vec<u32>,
    pub slots: u32,
    /// Block table entries of one slot.
    pub table_stride: u32,
    /// f32 elements from one row of logits to the next.
    pub logits_stride: u32,
}

/// What one sequence wants done next.
pub struct Step<'s> {
    pub chunk: Chunk,
    pub slot: u32,
    /// Of the first row.
    pub position: u32,
    /// One a row.
    pub tokens: &'s [u32],
    /// Tokens that the repeat penalty looks at.
    pub history: &'s [u32],
    /// Sampling and RoPE; what belongs to rows and tables is filled in here.
    pub header: StepHeader,
}

impl Engine {
    /// Runs one step to its end.
    pub fn run(&mut self, step: &Step<'_>, tables: &mut [BlockTable]) -> Result<(), Failure> {
        self.write_tables(step, tables);
        self.write_rows(step);
        self.views.step.flush()?;
        let program = &mut self.programs.recorded[step.chunk.program];
        let begin = Instant::now();
        self.lane.run(&mut program.lists)?;
        if let Some(stamps) = &program.stamps {
            self.profiles.extend(stamps.read(step.chunk.n_rows, begin, begin.elapsed().as_secs_f64()));
        }
        Ok(())
    }

    /// Seconds that the device spent in the last step; `None`: it keeps no time, or there was none.
    pub fn last_step_seconds(&self) -> Option<f64> {
        self.timer.as_ref()?.seconds_between(0, 1)
    }

    /// The token that the last step, of a sampling program, drew.
    pub fn sampled(&self) -> Result<Sampled, Failure> {
        self.views.output.invalidate()?;
        let mut words = [0; Output::WORDS];
        self.views.output.read_words(0, &mut words);
        let [token, logit, candidates, _] = words;
        Ok(Sampled { token, logit: f32::from_bits(logit), candidates })
    }

    /// Appends the last step's logits to `logits`, `vocab_size` a row.
    pub fn read_logits(&mut self, chunk: Chunk, vocab_size: u32, logits: &mut Vec<f32>) -> Result<(), Failure> {
        self.lane.run(&mut self.programs.recorded[chunk.program].read_logits)?;
        self.views.readback.invalidate()?;
        let rows = self.views.readback.bytes().chunks_exact(4 * self.logits_stride as usize);
        for row in rows.take(chunk.n_rows as usize) {
            let (values, _) = row.as_chunks::<4>();
            logits.extend(values[..vocab_size as usize].iter().map(|&bytes| f32::from_le_bytes(bytes)));
        }
        Ok(())
    }

    fn write_tables(&mut self, step: &Step<'_>, tables: &mut [BlockTable]) {
        let rows = step.position..step.position + step.chunk.n_rows;
        for (group, (table, pool)) in tables.iter_mut().zip(&mut self.pools).enumerate() {
            let begin = TABLES_AT + (group * self.slots as usize + step.slot as usize) * self.table_stride as usize;
            let view = &mut self.views.step;
            table.advance(pool, rows.clone(), |logical, physical| {
                view.write_words(begin + logical as usize, &[physical]);
            });
        }
    }

    fn write_rows(&mut self, step: &Step<'_>) {
        let header = StepHeader {
            n_rows: step.chunk.n_rows,
            logits_row: step.chunk.n_rows - 1,
            table_stride: self.table_stride,
            table_slots: self.slots,
            n_history: step.history.len() as u32,
            ..step.header
        };
        let view = &mut self.views.step;
        view.write_words(0, &header.to_words());
        for ((index, &token), position) in step.tokens.iter().enumerate().zip(step.position..) {
            let row = Row { token, position, sequence: step.slot, reserved: 0 };
            view.write_words(ROWS_AT + index * Row::WORDS, &row.to_words());
        }
        view.write_words(HISTORY_AT, step.history);
    }
}
