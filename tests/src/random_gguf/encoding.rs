//! Types of tensors.

/// How a matrix is stored; vectors are F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    F32,
    /// An f16 scale and 32 codes of 4 bits.
    Q4_0,
    /// The same, and codes are places in a table.
    Iq4Nl,
    /// An f16 scale, 8 factors of 6 bits and 256 codes of the same table.
    Iq4Xs,
    /// The exponent of a power of two in 8 bits, and 32 floats of 4 bits.
    MxFp4,
}

impl Encoding {
    /// ggml's number of the type.
    pub fn type_id(self) -> u32 {
        match self {
            Encoding::F32 => 0,
            Encoding::Q4_0 => 2,
            Encoding::Iq4Nl => 20,
            Encoding::Iq4Xs => 23,
            Encoding::MxFp4 => 39,
        }
    }

    /// Weights and bytes of a block.
    pub fn block(self) -> (usize, usize) {
        match self {
            Encoding::F32 => (1, 4),
            Encoding::Q4_0 | Encoding::Iq4Nl => (32, 18),
            Encoding::Iq4Xs => (256, 136),
            Encoding::MxFp4 => (32, 17),
        }
    }
}
