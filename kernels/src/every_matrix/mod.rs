//! Routes of rows that are given to every matrix of a stack, in order: those of attention's heads.
//!
//! ```text
//! routes  (rows, 2 * matrices) u32, as `route` has them: 0, 1, 2 … | the weight 1 of each, bits of f32
//! ```

mod spec;

pub use spec::EveryMatrixSpec;
