//! Layer norm with weight and bias: `y = (x - mean(x)) / sqrt(var(x) + eps) · w + b`.
//!
//! Formula (Ba, Kiros and Hinton 2016): mean and variance over the elements of a row, the variance without Bessel's correction.

mod spec;
mod twin;

pub use spec::LayerNormSpec;
pub use twin::twin_row;
