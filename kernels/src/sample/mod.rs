//! Samples the next token of each sequence from its row of logits, on the GPU.
//!
//! The order is llama.cpp's: repeat penalty, mask, top-k, top-p, min-p, temperature, sample. A mask leaves tokens out: one bit a token, which
//! the host writes while the step's other dispatches run (structured output). Each filter is a threshold on the
//! logit, found without sorting the vocabulary: the k-th largest by a radix search over the bits of the floats, the top-p
//! threshold among the few hundred tokens that usually remain, else by bisection on the probability mass above it. All ties
//! at a threshold stay. Temperature 0 takes the largest logit, the lowest token id among equals.
//!
//! The random number is PCG-RXS-M-XS-32 (O'Neill 2014) over the seed and the sample counter, so equal seeds give equal text.

mod spec;
mod twin;

pub use spec::SampleSpec;
pub use twin::{SampledToken, twin, uniform};
