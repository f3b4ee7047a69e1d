//! Formats whose codes of 4 bits are places in a table of 16 levels, and of which 32 weights share a scale.
//!
//! ```text
//! weight = level(q) * scale             scale is an f16; level(q) an integer of an i8, as packed dot products need it
//!
//! q         0    1    2    3    4    5    6    7    8    9   10   11   12   13   14   15
//! Fp4       0    1    2    3    4    6    8   12   -0   -1   -2   -3   -4   -6   -8  -12      see fp4.rs
//! Iq4    -127 -104  -83  -65  -49  -35  -22  -10    1   13   25   38   53   69   89  113
//! ```
//!
//! `Iq4` is the table of llama.cpp's IQ4_NL and IQ4_XS (`kvalues_iq4nl` in `ggml-common.h`). It has no level of 0. Codes are packed
//! in a u32 as INT4's are ([`crate::int4::pack_int4`]).

use crate::fp4::{FP4_GROUP, fp4_level};

/// Weights that share a scale.
pub const CODEBOOK_GROUP: usize = FP4_GROUP;

const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A table of 16 levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codebook {
    /// MXFP4's numbers.
    Fp4,
    /// Those of IQ4_NL and IQ4_XS.
    Iq4,
}

impl Codebook {
    /// Level of code `q`, 0..=15, without its scale.
    pub fn level(self, q: u8) -> i8 {
        match self {
            Codebook::Fp4 => fp4_level(q),
            Codebook::Iq4 => IQ4_LEVELS[usize::from(q)],
        }
    }
}
