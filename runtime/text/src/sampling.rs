//! Sampling parameters for text, where a program does not choose its own.

use std::hash::{BuildHasher, Hasher, RandomState};

use unicorn_runtime::Sampling;

/// llama.cpp's defaults: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, no repeat penalty; with a [`random_seed`].
/// [`Sampling::default`] is greedy instead.
pub fn default_sampling() -> Sampling {
    Sampling::default().with(|sampling| {
        sampling.temperature = 0.8;
        sampling.top_k = 40;
        sampling.top_p = 0.95;
        sampling.min_p = 0.05;
        sampling.seed = random_seed();
    })
}

/// A seed that differs at each call. It has 32 bits, so that it is short enough to type again.
pub fn random_seed() -> u64 {
    // The standard library's hash keys are random.
    u64::from(RandomState::new().build_hasher().finish() as u32)
}
