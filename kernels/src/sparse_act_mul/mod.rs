//! The product of gate and up of which only large gates are kept, as transformers' `Gemma3nTextMLP`:
//! `y = act(max(g - (mean(g) + d · std(g)), 0)) · u`. The standard deviation over the row has no Bessel correction, and `d` is the
//! quantile of the normal distribution for the share of gates that become 0.

mod spec;
mod twin;

pub use spec::SparseActMulSpec;
pub use twin::twin_row;
