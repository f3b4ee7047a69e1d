//! The activation function between gate and up of an MLP.

use serde::{Deserialize, Serialize};

/// f in `f(gate) · up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Activation {
    /// SiLU: `x / (1 + e^-x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

impl Activation {
    /// The function itself, for twins.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }
}
