//! The rows of a step by expert, so that a workgroup can multiply an expert's matrix by several of its rows.
//!
//! A *pair* is a row and one of its experts: number `row * chosen + place`, and as such a row of the experts' results.
//!
//! ```text
//! routes  (rows, 2 * chosen) u32, see `route`; shared experts are among the chosen
//! table   tiles in use, 3 unused words
//!         a tile  expert | first, an index into pairs | pairs, 1 to tile_rows | unused     max_tiles of them
//!         pairs   those of expert 0, those of expert 1, ...                                 rows * chosen of them
//! ```
//!
//! All pairs of a tile have the same expert, and all tiles of an expert but the last are full. A dispatch has a workgroup for each
//! of `max_tiles`; those after the tiles in use end at once.

mod spec;
mod twin;

pub use spec::{ExpertRowsSpec, ExpertTiles, TILE_WORDS};
pub use twin::{Tile, tiles_of, twin};
