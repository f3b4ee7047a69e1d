//! Streams of the residual in a model's config (Gemma 3n).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::limits;

/// Several streams of the residual, of which each layer works on the first and corrects the others (`unicorn_kernels::altup`), and what
/// else the layers of such models have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamsConfig {
    /// Streams, the first included.
    pub(crate) count: usize,
    /// Elements between the two small matrices beside a layer's attention (`unicorn_kernels::laurel`).
    pub(crate) laurel_rank: usize,
    /// Elements of each layer's MLP.
    pub(crate) mlp_widths: Vec<usize>,
    /// Standard deviations above the mean from which on a layer's gates are kept (`unicorn_kernels::sparse_act_mul`); `None`: all are.
    pub(crate) gate_deviations: Vec<Option<f32>>,
}

impl StreamsConfig {
    /// Checks sizes, of `n_layers` layers.
    pub(super) fn check(&self, n_layers: usize) -> Result<(), String> {
        for (name, value, least, most) in [
            ("altup_num_inputs", self.count, 2, limits::STREAMS),
            ("laurel_rank", self.laurel_rank, 1, limits::HIDDEN_SIZE),
        ] {
            if !(least..=most).contains(&value) {
                return Err(format!("{name} is {value}, expected {least} to {most}"));
            }
        }
        for (name, found) in
            [("intermediate_size", self.mlp_widths.len()), ("activation_sparsity_pattern", self.gate_deviations.len())]
        {
            if found != n_layers {
                return Err(format!("{name} has {found} entries, expected num_hidden_layers, {n_layers}"));
            }
        }
        if let Some(width) = self.mlp_widths.iter().find(|width| !(1..=limits::INTERMEDIATE_SIZE).contains(*width)) {
            return Err(format!("intermediate_size has {width}, expected 1 to {}", limits::INTERMEDIATE_SIZE));
        }
        match self.gate_deviations.iter().flatten().find(|deviations| !deviations.is_finite()) {
            Some(deviations) => {
                Err(format!("gates are kept from {deviations} deviations on, expected a finite number"))
            }
            None => Ok(()),
        }
    }

    /// The tensors of `ModelConfig::tensor_shapes` that other models do not have.
    pub(super) fn add_shapes(&self, hidden: usize, shapes: &mut BTreeMap<String, Vec<usize>>) {
        let count = self.count;
        for other in 0..count - 1 {
            for name in ["altup_projections", "altup_unembed_projections"] {
                shapes.insert(format!("{name}.{other}.weight"), vec![hidden, hidden]);
            }
        }
        for layer in 0..self.mlp_widths.len() {
            for (name, shape) in [
                ("altup.router_norm.weight", vec![hidden]),
                ("altup.modality_router.weight", vec![count, hidden]),
                ("altup.prediction_coefs.weight", vec![count * count, count]),
                ("altup.correction_coefs.weight", vec![count, count]),
                ("altup.correct_output_scale", vec![hidden]),
                ("laurel.linear_left.weight", vec![self.laurel_rank, hidden]),
                ("laurel.linear_right.weight", vec![hidden, self.laurel_rank]),
                ("laurel.post_laurel_norm.weight", vec![hidden]),
            ] {
                shapes.insert(format!("layers.{layer}.{name}"), shape);
            }
        }
    }
}
