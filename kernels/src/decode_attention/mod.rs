//! Attention of one row a sequence, from q, k and v to the result in one dispatch: `heads`, `attention` and `combine` for
//! devices whose subgroups hold a head.
//!
//! Formulas, the cache and the splits are those of `attention`. The difference is that less work waits: K and V of a subgroup's
//! first tokens are in flight while it norms and rotates queries, softmax and the accumulation of V need no workgroup memory, and the splits of a
//! head increment a completion counter when they have written their parts: the last one combines them (the layout of a part is in
//! `combine`).
//!
//! In steps that decode beside a prompt, this kernel takes the rows apart (`StepRows::Apart`). There `heads` has stored K and V of all rows, so that this
//! kernel stores none.
//!
//! ```text
//! completion counters   [row][workgroup of heads] u32: splits that have written their part; 0 before and after each dispatch
//! ```

mod spec;
mod twin;

pub use spec::DecodeAttentionSpec;
