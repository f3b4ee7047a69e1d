//! Residual sum and RMS norm: `s = r + [post](x)`, `y = s / rms(s) · w`.
//!
//! Formula (Zhang and Sennrich 2019): `rms(s) = sqrt(mean(s²) + eps)`. Gemma norms the block's output once more before
//! the sum (`post_norm`). As a kernel of its own it runs where a step has many rows; a matmul of one row has it as its
//! prologue.

use serde::{Deserialize, Serialize};

use crate::spec::{BindingSpec, Number, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one norm; the same record describes a matmul's prologue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NormSpec {
    pub width: usize,
    /// Elements between rows, the same for all operands.
    pub stride: usize,
    pub eps: Number,
    /// Sum with the residual first, and store the sum.
    pub add: bool,
    /// Norm the input before the sum.
    pub post_norm: bool,
    pub subgroup_size: u32,
}

const WORKGROUP: usize = 64;

impl NormSpec {
    /// The operands, without step and output.
    pub(crate) fn data_roles(&self) -> Vec<Role> {
        let mut roles = vec![Role::Input, Role::NormWeight];
        if self.add {
            roles.extend([Role::Residual, Role::Sum]);
        }
        if self.post_norm {
            roles.push(Role::PostNormWeight);
        }
        roles
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::Output].into_iter().chain(self.data_roles()))
    }

    pub(crate) fn wgsl(&self) -> String {
        assert!(self.add || !self.post_norm, "a post norm comes before a sum");
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("WORKGROUP", WORKGROUP)
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("EPS", self.eps.get())
            .flag("ADD", self.add)
            .flag("POST_NORM", self.post_norm)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("WORKGROUP_SIZE", WORKGROUP)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("wgsl/norm.wgsl"), &values)
    }
}

/// One row in plain loops: the sum and the normed sum. `residual` and `post_weight` may be empty where unused.
pub fn norm_row(
    spec: &NormSpec,
    input: &[f32],
    residual: &[f32],
    post_weight: &[f32],
    weight: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let inverse_rms = |x: &[f32]| {
        let squares: f32 = x.iter().map(|x| x * x).sum();
        1.0 / (squares / spec.width as f32 + spec.eps.get()).sqrt()
    };
    let mut sum = input.to_vec();
    if spec.post_norm {
        let scale = inverse_rms(input);
        for (value, weight) in sum.iter_mut().zip(post_weight) {
            *value *= scale * weight;
        }
    }
    if spec.add {
        for (value, residual) in sum.iter_mut().zip(residual) {
            *value += residual;
        }
    }
    let scale = inverse_rms(&sum);
    let normed = sum.iter().zip(weight).map(|(value, weight)| value * scale * weight).collect();
    (sum, normed)
}
