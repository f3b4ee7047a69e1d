//! Attention of one row a sequence, from q, k and v to the result in one dispatch: `heads`, `attention` and `combine` for
//! devices whose subgroups hold a head.
//!
//! Formulas, the cache and the splits are those of `attention`. What differs is how little waits: K and V of a subgroup's first
//! tokens are on their way while it norms and turns queries, softmax and mix need no workgroup memory, and the splits of a head
//! count themselves as they leave their parts: the last one puts them together (a part is drawn in `combine`).
//!
//! ```text
//! arrivals   [row][workgroup of heads] u32: splits that have left their part; 0 before and after each dispatch
//! ```

mod spec;
mod twin;

pub use spec::DecodeAttentionSpec;
