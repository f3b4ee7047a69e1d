//! One step for several sequences at once: each weight is read for all of them.

use crate::chunks::batch_program;
use crate::engine::{Drawing, Engine, Rows, Step};
use crate::error::RunError;
use crate::model::Model;
use crate::recovery::{Stop, persist};
use crate::session::{Sampled, Sampling, Session};

/// A sequence's next token, and how the one after is drawn.
pub struct BatchRow<'b, 'm> {
    pub session: &'b mut Session<'m>,
    pub token: u32,
    pub sampling: &'b Sampling,
}

impl Model {
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
        let asked: Vec<(u32, &Sampling)> = rows.iter().map(|row| (row.token, row.sampling)).collect();
        let mut sessions: Vec<&mut Session<'_>> = rows.iter_mut().map(|row| &mut *row.session).collect();
        persist(self, &mut sessions, |engine, sessions| {
            let cached = sessions.iter().map(|session| session.len_tokens()).max().unwrap_or(0);
            let program = batch_program(&engine.programs.shapes, asked.len() as u32, cached)
                .ok_or(RunError::NoProgram { wanted: "tokens of so many sequences at once" })?;
            for (session, (token, _)) in sessions.iter_mut().zip(&asked) {
                session.push(*token, program, engine);
            }
            let ran = draw_each(engine, program, sessions, &asked);
            if ran.is_err() {
                for session in sessions.iter_mut() {
                    session.pop();
                }
            }
            ran
        })
    }
}

/// Runs the step of every session's newest token.
fn draw_each(
    engine: &mut Engine,
    program: usize,
    sessions: &mut [&mut Session<'_>],
    asked: &[(u32, &Sampling)],
) -> Result<Vec<Sampled>, Stop> {
    let shapes: Vec<Rows> = sessions.iter().map(|session| session.newest_row(engine)).collect();
    let drawings: Vec<Drawing> =
        sessions.iter().zip(asked).map(|(session, (_, sampling))| session.drawing(sampling, false)).collect();
    engine.run(&Step { program, rows: &shapes, drawings: &drawings })?;
    let draws = sessions.iter().enumerate();
    let drawn: Vec<Sampled> =
        draws.map(|(index, session)| engine.sampled(index, session.draws())).collect::<Result<_, _>>()?;
    let gpu_seconds = engine.gpu_seconds(program, 0);
    for session in sessions.iter_mut() {
        session.count_gpu_seconds(gpu_seconds);
        session.count_draw();
    }
    Ok(drawn)
}
