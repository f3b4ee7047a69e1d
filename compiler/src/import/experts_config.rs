//! A mixture of experts in a model's config.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use unicorn_kernels::route::ExpertGroups;

use super::limits;

/// A mixture of experts in place of an MLP: each row is given to a few of many experts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExpertsConfig {
    pub(crate) count: usize,
    /// Experts that a row is given to.
    pub(crate) chosen: usize,
    /// The weights of a row's experts are divided by their sum.
    pub(crate) normalized: bool,
    /// Width of one expert.
    pub(crate) intermediate_size: usize,
    /// Width of the shared expert, which every row is given to in addition.
    pub(crate) shared_intermediate_size: Option<usize>,
    /// How the source's folder names the tensors; an exported folder uses the same names.
    pub(crate) names: ExpertNames,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExpertNames {
    /// `mlp.gate`, `mlp.experts.0.gate_proj`
    Qwen,
    /// `block_sparse_moe.gate`, `block_sparse_moe.experts.0.w1`
    Mixtral,
    /// `mlp.router`, `mlp.experts.gate_up_proj`, see `import::transposed`
    GptOss,
    /// `router.proj`, `experts.gate_up_proj`, see `import::stacked`
    Gemma4,
    /// `feed_forward.gate`, `feed_forward.experts.0.w1`
    Lfm2,
    /// `mlp.gate`, `mlp.experts.gate_up_proj`, see `import::transposed`; exported as [`ExpertNames::Qwen`]
    Qwen3Vl,
}

impl ExpertNames {
    /// Whether the folder has stacks of (experts, inputs, outputs).
    pub(crate) fn are_of_transposed_stacks(self) -> bool {
        matches!(self, ExpertNames::GptOss | ExpertNames::Qwen3Vl)
    }
}

/// How a mixture's experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Routing {
    /// An expert's score is the sigmoid of its logit, and not its share of a softmax.
    pub(crate) sigmoid: bool,
    /// Experts are chosen by their score plus their element of `mlp.gate.choice_bias`.
    pub(crate) choice_bias: bool,
    /// Factor of the weights of all experts (`routed_scaling_factor`).
    pub(crate) factor: f32,
}

impl Default for Routing {
    fn default() -> Routing {
        Routing { sigmoid: false, choice_bias: false, factor: 1.0 }
    }
}

impl ExpertsConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        for (name, value, most) in [
            ("number of experts", self.count, limits::EXPERTS),
            ("number of experts of a token", self.chosen, self.count),
            ("intermediate size of an expert", self.intermediate_size, limits::INTERMEDIATE_SIZE),
            (
                "intermediate size of the shared expert",
                self.shared_intermediate_size.unwrap_or(1),
                limits::INTERMEDIATE_SIZE,
            ),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("{name} is {value}, expected 1 to {most}"));
            }
        }
        Ok(())
    }

    /// Whether the experts can be divided into these groups, and a row finds its experts in those that are kept.
    pub(super) fn check_groups(&self, groups: ExpertGroups) -> Result<(), String> {
        let ExpertGroups { count, kept, best_of } = groups;
        let size = self.count / count.max(1);
        if count == 0 || size * count != self.count || size < best_of {
            return Err(format!(
                "n_group is {count}, expected groups of {best_of} or more of the {} experts",
                self.count
            ));
        }
        if !(1..=count).contains(&kept) || self.chosen > kept * size {
            return Err(format!(
                "topk_group is {kept} of {count} groups of {size} experts, expected as many as hold the {} of a token",
                self.chosen
            ));
        }
        Ok(())
    }

    /// The tensors of layer `layer` in [`ModelConfig::tensor_shapes`].
    pub(super) fn add_shapes(
        &self,
        layer: usize,
        hidden: usize,
        bias: bool,
        shapes: &mut BTreeMap<String, Vec<usize>>,
    ) {
        let mut block = |name: &str, inner: usize| {
            for (part, rows, cols) in [("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)] {
                shapes.insert(format!("layers.{layer}.mlp.{name}.{part}_proj.weight"), vec![rows, cols]);
                if bias {
                    shapes.insert(format!("layers.{layer}.mlp.{name}.{part}_proj.bias"), vec![rows]);
                }
            }
        };
        (0..self.count).for_each(|expert| block(&format!("experts.{expert}"), self.intermediate_size));
        if let Some(inner) = self.shared_intermediate_size {
            block("shared_expert", inner);
        }
        shapes.insert(format!("layers.{layer}.mlp.gate.weight"), vec![self.count, hidden]);
        if bias {
            shapes.insert(format!("layers.{layer}.mlp.gate.bias"), vec![self.count]);
        }
    }
}
