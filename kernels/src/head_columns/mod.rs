//! Rearranges the columns of heads: each head of the result is made of columns of several values, one after the other.
//!
//! ```text
//! block   consecutive heads that are made alike
//! part    columns of a value that are consecutive within a head of it; the heads of a value are at equal distances in a row
//! ```
//!
//! Latent attention needs it around the matrices of its heads: what is rotated of a query, and what a matrix makes of the rest, are
//! columns of different values, and a head's input of a matrix is a row of its own.

mod spec;
mod twin;

pub use spec::{HeadBlock, HeadColumnsSpec, HeadPart};
pub use twin::twin;
