//! Drafts of the model's own head that predicts the token behind the next one. Each step of the model keeps what the head needs of its rows, in the
//! pages of the sequence; a draft is a step of one row for each of its tokens, which appends nothing.
//!
//! ```text
//! cache       t0 t1 t2 │ newest          rows of the head behind the cache are written again when their tokens are appended
//! head                   newest ► d1
//!                             d1 ► d2    the row that predicted d1 stands for the model's hidden row
//! ```

use crate::error::RunError;
use crate::program::chunks::ProgramShape;
use crate::session::model_state::Shared;
use crate::session::recovery::persist;
use crate::session::sequence::Sequence;
use crate::step::engine::{Engine, Rows, Step};
use crate::step::masks::Masks;
use crate::step::sampling::Sampling;
use crate::step::watch::Watch;
use crate::vk::Failure;

/// Predicts `n_tokens` tokens that follow `newest`, which is not appended yet, each the likeliest. `read` is called after each step with the
/// engine and the step's program. None behind an empty sequence, of whose first token the head has nothing.
///
/// # Errors
/// As a feed of as many tokens, and [`RunError::NoProgram`] for an artifact without such a head. The sequence is as it was.
pub fn predict(
    shared: &Shared,
    sequence: &mut Sequence,
    newest: u32,
    n_tokens: u32,
    read: &mut dyn FnMut(&mut Engine, usize) -> Result<(), Failure>,
) -> Result<Vec<u32>, RunError> {
    let (model, position) = (shared.model(), sequence.len_tokens());
    shared.check_tokens(position + n_tokens.saturating_sub(1), &[newest])?;
    if position == 0 {
        return Ok(Vec::new());
    }
    persist(shared, &mut [sequence], None, |engine, sequences| {
        let sequence = &mut *sequences[0];
        let program = engine.programs.shapes.iter().position(ProgramShape::predicts);
        let program = program.ok_or(RunError::NoProgram { wanted: "a predicted token" })?;
        sequence.take_pages(n_tokens, engine)?;
        // Nothing is appended: recurrent state stays that of the tokens.
        sequence.keep_state(0);
        let mut predicted = Vec::with_capacity(n_tokens as usize);
        let mut token = newest;
        for position in position..position + n_tokens {
            let behind = sequence.newest_rows(0, model.rope_variant(position + 1));
            let rows = [Rows { position, tokens: &[token], ..behind }];
            let samplers = [Sampling::default().input(0, false, &[])];
            let step = Step { program, rows: &rows, apart_rows: 0, samplers: &samplers };
            engine.run(&step, Watch::default(), &mut Masks::none())?;
            read(engine, program)?;
            token = engine.sampled(0, 0)?.token;
            predicted.push(token);
            sequence.add_gpu_seconds(engine.gpu_seconds(program, 0).unwrap_or_default());
        }
        Ok(predicted)
    })
}
