//! Adds a learned position to each patch of an image of any size: `y = x + P(patch)`.
//!
//! Positions are learned for a square grid, and an image's grid is laid over it with its corners on the corners: `P` is interpolated
//! linearly in both directions between the four nearest positions, as transformers' Qwen3-VL has it.

mod spec;
mod twin;

pub use spec::ImagePositionsSpec;
pub use twin::twin;
