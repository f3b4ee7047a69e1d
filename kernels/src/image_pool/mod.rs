//! Mean over squares of an image's patches: `y[r][c] = mean over i, j of x[k·r + i][k·c + j]`, for patches in rows from top to bottom.

mod spec;
mod twin;

pub use spec::ImagePoolSpec;
pub use twin::twin;
