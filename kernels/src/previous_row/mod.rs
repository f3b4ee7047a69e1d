//! The row before each row of a sequence: what a head that predicts a further token reads beside a token's embedding.
//!
//! ```text
//! rows of a step     h[4]  h[5]  h[6]                    drafts    y    y'
//! written            h[3]  h[4]  h[5]                              h[6]  y
//! kept of a page     first half: h[6] and its position 6           second half: y, then y'
//! ```
//!
//! Steps of the model write the row before each of theirs and keep the last one, with its position, in the first half of a page of
//! recurrent state (`recurrent_state`). A step that drafts has one row and reads the kept row if it is that of the position before; otherwise it
//! reads the row that the draft before has kept in the second half, so that drafts leave the first half as it is. Before a sequence's first row
//! are zeros.

mod spec;
mod twin;

pub use spec::{PreviousRowSpec, RowUse};
pub use twin::{KeptRows, twin};
