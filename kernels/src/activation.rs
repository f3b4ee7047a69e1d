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
    /// GELU of the gate, by the error function, times up.
    Gelu,
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
            Activation::Gelu => {
                let x = f64::from(x);
                (0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
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
            Activation::Silu | Activation::GeluTanh | Activation::Gelu => up,
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
            .flag("ERF", activation == Some(Activation::Gelu))
            .flag("CLAMPED_SWIGLU", activation == Some(Activation::ClampedSwiGlu))
            .text("SWIGLU_ALPHA", format!("{SWIGLU_ALPHA:?}f"))
            .text("SWIGLU_LIMIT", format!("{SWIGLU_LIMIT:?}f"))
    }
}

/// The error function, by its series around 0, and 1 where that is what it rounds to in f32.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 4.5 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-17 {
        n += 1.0;
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of torch's `gelu` without approximation.
    #[test]
    fn gelu_is_that_of_the_error_function() {
        for (x, expected) in [(-5.0, -1.4333e-6), (-1.0, -0.158_655_26), (0.5, 0.345_731_23), (3.0, 2.995_950_3)] {
            let found = Activation::Gelu.apply(x);
            assert!((found - expected).abs() < 1e-6, "{x}: {found}, expected {expected}");
        }
    }
}
