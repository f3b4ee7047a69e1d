//! ggml's numbers for tensor types.

use crate::import::SourceDType;

/// For errors: the types that [`from_id`] takes.
pub const SUPPORTED: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, \
                             MXFP4";

/// The type with ggml's number `id`; ggml's name of it, or the number, when we do not read it.
pub fn from_id(id: u32) -> Result<SourceDType, String> {
    let unsupported = match id {
        0 => return Ok(SourceDType::F32),
        1 => return Ok(SourceDType::F16),
        2 => return Ok(SourceDType::Q4_0),
        3 => return Ok(SourceDType::Q4_1),
        6 => return Ok(SourceDType::Q5_0),
        7 => return Ok(SourceDType::Q5_1),
        8 => return Ok(SourceDType::Q8_0),
        10 => return Ok(SourceDType::Q2K),
        11 => return Ok(SourceDType::Q3K),
        12 => return Ok(SourceDType::Q4K),
        13 => return Ok(SourceDType::Q5K),
        14 => return Ok(SourceDType::Q6K),
        20 => return Ok(SourceDType::Iq4Nl),
        23 => return Ok(SourceDType::Iq4Xs),
        30 => return Ok(SourceDType::Bf16),
        39 => return Ok(SourceDType::MxFp4),
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        _ => return Err(format!("number {id}")),
    };
    Err(unsupported.to_string())
}
