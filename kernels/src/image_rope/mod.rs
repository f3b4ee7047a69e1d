//! Rotary embedding of an image's patches: half of a head's pairs are rotated by the patch's place from the top, the others by its place
//! from the left.
//!
//! Pairs are `(i, i + d/2)` of the `d` elements of a head, as in `heads`. Of the `d/4` frequencies, pair `i < d/4` has frequency `i` and
//! the angle of the place from the top, pair `i + d/4` has the same frequency and the angle of the place from the left.
//!
//! ```text
//! rope table   vec2(cos, sin)   [place][frequency]
//! ```

mod spec;
mod twin;

pub use spec::{ImageRopeSpec, image_rope_table};
pub use twin::twin;
