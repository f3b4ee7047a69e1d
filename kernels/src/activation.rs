//! How an MLP combines gate and up.

use serde::{Deserialize, Serialize};

use crate::template::Values;

/// f and g in `f(gate) · g(up)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Activation {
    /// SiLU of the gate, `x / (1 + e^-x)`, times up.
    Silu,
    /// GELU of the gate by its tanh approximation, times up.
    GeluTanh,
    /// gpt-oss' SwiGLU: `x / (1 + e^(-1.702 x))` of the gate, which is 7 at most, times 1 + up, which is -7 to 7.
    ClampedSwiGlu,
}

/// [`Activation::ClampedSwiGlu`]'s factor of the gate inside the sigmoid.
pub const SWIGLU_ALPHA: f32 = 1.702;
/// The greatest gate and the greatest magnitude of up of [`Activation::ClampedSwiGlu`].
pub const SWIGLU_LIMIT: f32 = 7.0;

impl Activation {
    /// `f(gate)`, for twins.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Activation::ClampedSwiGlu => {
                let x = x.min(SWIGLU_LIMIT);
                x / (1.0 + (-SWIGLU_ALPHA * x).exp())
            }
        }
    }

    /// `g(up)`, by which `f(gate)` is multiplied, for twins.
    pub fn factor(self, up: f32) -> f32 {
        match self {
            Activation::Silu | Activation::GeluTanh => up,
            Activation::ClampedSwiGlu => up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT) + 1.0,
        }
    }

    /// `f(gate) · g(up)`, for twins.
    pub fn gated(self, gate: f32, up: f32) -> f32 {
        self.apply(gate) * self.factor(up)
    }

    /// Values for the piece `activation`.
    pub(crate) fn values(activation: Option<Activation>, values: Values) -> Values {
        values
            .flag("SILU", activation == Some(Activation::Silu))
            .flag("CLAMPED_SWIGLU", activation == Some(Activation::ClampedSwiGlu))
            .text("SWIGLU_ALPHA", format!("{SWIGLU_ALPHA:?}f"))
            .text("SWIGLU_LIMIT", format!("{SWIGLU_LIMIT:?}f"))
    }
}
