//! Steps that follow one another on the device, of one sequence or of several at once: each draw feeds the next step before the
//! host has seen it.
//!
//! ```text
//! device   │ step 0 │ step 1 │ step 2 │ step 3 …
//! host       begins 1 │ hears 0, begins 2 │ hears 1, begins 3 …
//! ```

use std::ops::ControlFlow;

use crate::error::RunError;
use crate::model::Model;
use crate::program::multistep::steps_of_submission;
use crate::session::recovery::Stop;
use crate::session::session::{Sampled, Sampling, Session};
use crate::step::batch::{BatchRow, count_gpu_seconds, decoder, drawn, feed, with_step};
use crate::step::engine::Engine;

/// Hears of what a step drew, a token a row.
type Each<'a> = dyn FnMut(&[Sampled]) -> ControlFlow<()> + 'a;

/// Consecutive steps of one program, in one turn of the lane.
struct UnderWay {
    program: usize,
    turn: usize,
    n_steps: u32,
}

impl Model {
    /// Appends each row's token to its sequence and then each token that is drawn for it, a step for all of them together, at most
    /// `most` steps, until `each`, which hears of every step's tokens in the order of `rows`, breaks off, or until the context of one of
    /// them is full. The last tokens drawn are not appended. One or several steps are under way while `each` looks at those before: up to seven that it has not heard of are
    /// forgotten when it breaks off. Other sessions wait until the end.
    ///
    /// # Errors
    /// As [`Model::decode_batch`], of whichever step: what was drawn before stays.
    pub fn generate_batch(&self, rows: &mut [BatchRow<'_>], most: u32, each: &mut Each<'_>) -> Result<(), RunError> {
        let rooms = rows.iter().map(|row| self.context_tokens() - row.session.len_tokens());
        let Some(room) = rooms.min().filter(|_| most > 0) else { return Ok(()) };
        let mut draws_left = most.min(room);
        feed(self, rows, |engine, sessions, program, samplings| {
            Stream { model: self, engine, sessions, draws_left: &mut draws_left }.run(program, samplings, each)
        })
    }
}

/// Sessions on their way from step to step.
struct Stream<'s, 'b> {
    model: &'s Model,
    engine: &'s mut Engine,
    sessions: &'s mut [&'b mut Session],
    draws_left: &'s mut u32,
}

impl Stream<'_, '_> {
    /// Runs the step of the newest tokens and those that its draws lead to, `draws_left` in all. When it fails, the newest tokens
    /// are those whose draws `each` has not heard of.
    fn run(&mut self, program: usize, samplings: &[&Sampling], each: &mut Each<'_>) -> Result<(), Stop> {
        // Steps behind the first find what the one before has left.
        with_step(self.engine, program, self.sessions, samplings, true, |engine, step| engine.write(step))?;
        self.engine.begin(program, 0)?;
        let mut now = UnderWay { program, turn: 0, n_steps: 1 };
        let mut step_seconds = None;
        loop {
            let behind = self.begin_behind(&now, step_seconds)?;
            self.engine.end(now.turn)?;
            let gpu_seconds = count_gpu_seconds(self.engine, now.program, now.turn, self.sessions);
            step_seconds = gpu_seconds.map(|seconds| seconds / f64::from(now.n_steps));
            for step in 1..=now.n_steps {
                let sampled = drawn(self.engine, self.sessions)?;
                *self.draws_left -= 1;
                if each(&sampled).is_break() {
                    // What steps under way write lies behind the sequences' ends, and if they fail, the lane remembers.
                    let _ = self.engine.end(1 - now.turn);
                    return Ok(());
                }
                // The submission's own steps go on with them, or the first of those behind.
                let next = if step < now.n_steps { Some(&now) } else { behind.as_ref() };
                if let Some(next) = next {
                    for (session, sampled) in self.sessions.iter_mut().zip(&sampled) {
                        session.append(sampled.token, next.program);
                    }
                }
            }
            match behind {
                Some(behind) => now = behind,
                None => return Ok(()),
            }
        }
    }

    /// Submits steps behind those of `now`, whose first has the newest tokens; `None`: no draw is left to begin.
    fn begin_behind(&mut self, now: &UnderWay, step_seconds: Option<f64>) -> Result<Option<UnderWay>, Stop> {
        let draws_to_begin = *self.draws_left - now.n_steps;
        if draws_to_begin == 0 {
            return Ok(None);
        }
        // Tokens behind the newest that steps under way append.
        let ahead = now.n_steps - 1;
        let (program, turn) = (decoder(self.engine, self.sessions, ahead)?, 1 - now.turn);
        let n_steps = match (self.engine.has_steps_together(program)?, &*self.sessions) {
            (true, [session]) => {
                let (shapes, cached) = (&self.engine.programs.shapes, session.len_tokens() + ahead);
                steps_of_submission(shapes, cached, draws_to_begin, step_seconds, self.model.multistep_seconds())
            }
            _ => 1,
        };
        // From a sequence's end on, not from these steps' first position: if it is broken off, it goes on there, and a
        // sliding window must not have given back what that position sees.
        self.sessions.iter_mut().for_each(|session| session.make_room(ahead + n_steps, self.engine));
        match n_steps {
            1 => self.engine.begin(program, turn)?,
            _ => self.engine.begin_together(program, turn)?,
        }
        Ok(Some(UnderWay { program, turn, n_steps }))
    }
}
