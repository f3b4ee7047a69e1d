//! One step for several sequences at once: each weight is read for all of them.

use crate::error::RunError;
use crate::model::Model;
use crate::program::chunks::batch_program;
use crate::session::recovery::{Stop, persist};
use crate::session::session::{Sampled, Sampling, Session};
use crate::step::engine::{Drawing, Engine, Rows, Step};

/// A sequence's next token, and how the one after is drawn.
pub struct BatchRow<'b> {
    pub session: &'b mut Session,
    pub token: u32,
    pub sampling: &'b Sampling,
}

impl Model {
    /// Appends one token to each sequence and draws the one that follows, which is not appended yet. Results are in the
    /// order of `rows`.
    ///
    /// # Errors
    /// As [`Session::feed_and_sample`], and when there are more rows than [`Model::batch_rows`]. Nothing is appended then.
    pub fn decode_batch(&self, rows: &mut [BatchRow<'_>]) -> Result<Vec<Sampled>, RunError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        feed(self, rows, |engine, sessions, program, samplings| {
            with_step(engine, program, sessions, samplings, false, |engine, step| engine.run(step))?;
            count_gpu_seconds(engine, program, 0, sessions);
            drawn(engine, sessions)
        })
    }
}

/// Appends every row's token to its sequence, and lets `work` run the step of them all by a program, and steps behind it. If `work`
/// fails, the sequences' newest tokens are those to go on with.
pub(crate) fn feed<T>(
    model: &Model,
    rows: &mut [BatchRow<'_>],
    mut work: impl FnMut(&mut Engine, &mut [&mut Session], usize, &[&Sampling]) -> Result<T, Stop>,
) -> Result<T, RunError> {
    for row in rows.iter() {
        assert!(row.session.is_of(model), "sessions of this model");
        row.sampling.check()?;
        row.session.check(&[row.token])?;
    }
    let mut tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
    let samplings: Vec<&Sampling> = rows.iter().map(|row| row.sampling).collect();
    let mut sessions: Vec<&mut Session> = rows.iter_mut().map(|row| &mut *row.session).collect();
    persist(model, &mut sessions, |engine, sessions| {
        let program = decoder(engine, sessions, 0)?;
        for (session, &token) in sessions.iter_mut().zip(&tokens) {
            session.push(token, program, engine);
        }
        let worked = work(engine, sessions, program, &samplings);
        if worked.is_err() {
            tokens = sessions.iter_mut().map(|session| session.pop()).collect();
        }
        worked
    })
}

/// The program that draws the next token of every session, `ahead` tokens behind its last.
pub(crate) fn decoder(engine: &Engine, sessions: &[&mut Session], ahead: u32) -> Result<usize, RunError> {
    let longest = sessions.iter().map(|session| session.len_tokens()).max().unwrap_or(0);
    let program = batch_program(&engine.programs.shapes, sessions.len() as u32, longest + ahead);
    program.ok_or(RunError::NoProgram { wanted: "tokens of so many sequences at once" })
}

/// Does something with the step of every session's newest token; `feeds`: its draws are the next step's tokens.
pub(crate) fn with_step<T>(
    engine: &mut Engine,
    program: usize,
    sessions: &[&mut Session],
    samplings: &[&Sampling],
    feeds: bool,
    work: impl FnOnce(&mut Engine, &Step<'_>) -> T,
) -> T {
    let rows: Vec<Rows> = sessions.iter().map(|session| session.newest_row()).collect();
    let asked = sessions.iter().zip(samplings);
    let drawings: Vec<Drawing> = asked.map(|(session, sampling)| session.drawing(sampling, feeds)).collect();
    work(engine, &Step { program, rows: &rows, drawings: &drawings })
}

/// What a turn's last submission took, for each of its sessions.
pub(crate) fn count_gpu_seconds(
    engine: &Engine,
    program: usize,
    turn: usize,
    sessions: &mut [&mut Session],
) -> Option<f64> {
    let gpu_seconds = engine.gpu_seconds(program, turn);
    sessions.iter_mut().for_each(|session| session.count_gpu_seconds(gpu_seconds));
    gpu_seconds
}

/// The tokens of a step that has ended, one a session.
pub(crate) fn drawn(engine: &Engine, sessions: &mut [&mut Session]) -> Result<Vec<Sampled>, Stop> {
    let draws = sessions.iter().enumerate();
    let drawn = draws.map(|(index, session)| engine.sampled(index, session.draws())).collect::<Result<_, _>>()?;
    sessions.iter_mut().for_each(|session| session.count_draw());
    Ok(drawn)
}
