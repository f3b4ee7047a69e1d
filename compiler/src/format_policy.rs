//! Which formats weight matrices are packed to.

/// Format of most weight matrices, see [`FormatPolicy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsOption {
    /// 4 bits, with a scale and a zero point a group.
    Int4,
    /// 8 bits, with a scale for each 32.
    Int8,
    /// Half precision.
    F16,
}

impl WeightsOption {
    /// Every format, the smallest first.
    pub const ALL: [WeightsOption; 3] = [WeightsOption::Int4, WeightsOption::Int8, WeightsOption::F16];

    /// Name of the option: `int4`, `int8` or `f16`.
    pub fn name(self) -> &'static str {
        match self {
            WeightsOption::Int4 => "int4",
            WeightsOption::Int8 => "int8",
            WeightsOption::F16 => "f16",
        }
    }
}

/// Formats of matrices. Routers of experts are f16, and so are gates of shared ones that are rows of these. Embeddings, the output head, the gates of recurrent state, vision towers, the projections of
/// streams and the matrices around latent vectors are one step finer than the rest, INT8 with INT4 and f16 with INT8: a table row is a token's only description, no later
/// layer compensates the head's errors, errors of state add up, and a latent vector stands for the keys and values of all heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatPolicy {
    /// Format of the matrices inside layers.
    pub weights: WeightsOption,
    /// Weights that share an INT4 scale and zero point: 32, 64 or 128.
    pub group: u32,
}
