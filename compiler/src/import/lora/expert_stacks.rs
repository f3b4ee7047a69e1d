//! Adapters of stacked experts (PEFT's `target_parameters`): one pair of matrices for all experts of a layer.
//!
//! ```text
//! MODULE.lora_A.weight  (experts · r, inputs)    row e · r + i is row i of expert e
//! MODULE.lora_B.weight  (outputs, r · experts)   column i · experts + e is column i of expert e
//! ```
//!
//! MODULE is the experts' own, `….mlp.experts`, and with `.base_layer` behind it for each other parameter of it that was wrapped later; which
//! parameter a pair is for follows from its shape. By PEFT's `ParamWrapper.get_delta_weight`; versions before 0.19 took the second size of a stack for the
//! inputs, also where those are outputs.

use super::pairs::Pair;
use crate::error::{CompileError, Result};
use crate::import::checkpoint::LowRank;
use crate::import::config::ModelConfig;
use crate::import::experts_config::ExpertNames;
use crate::import::source_names::{Role, role_of};

/// The stack that a pair of matrices changes.
pub(super) struct ExpertStack {
    /// Canonical name of the layer's experts.
    block: String,
    is_gate_up: bool,
    /// Gate's and up's outputs alternate, instead of gate's before up's.
    alternates: bool,
    n_experts: usize,
    rank: usize,
    inputs: usize,
    outputs: usize,
    /// A has a column for each output, and B a row for each input.
    is_turned: bool,
}

/// Canonical name of the experts that the module is; `None`: it is something else.
pub(super) fn expert_block(config: &ModelConfig, module: &str) -> Option<String> {
    let mut name = module;
    while let Some(inner) = name.strip_suffix(".base_layer") {
        name = inner;
    }
    let Role::Text(stack) = role_of(&format!("{name}.down_proj")) else { return None };
    let canonical = config.folder.canonical(&stack);
    canonical.strip_suffix(".down_proj").filter(|block| block.ends_with(".mlp.experts")).map(str::to_owned)
}

impl ExpertStack {
    /// Of the experts `block`, by the shapes of A and B.
    ///
    /// # Errors
    /// Where the model has no experts, or not so many, and where the shapes are of neither stack. Where `is_old`, from before PEFT 0.19, also where the
    /// stack is square, so that its shape does not tell inputs from outputs.
    pub fn of(config: &ModelConfig, module: &str, block: String, pair: &Pair, is_old: bool) -> Result<ExpertStack> {
        let (down, up) = (pair.down, pair.up);
        let Some(experts) = &config.experts else {
            return Err(CompileError::Unsupported {
                what: format!("adapter of {module}"),
                detail: "the model has no experts: was the adapter trained on this model?".into(),
            });
        };
        let (hidden, inner, n_experts) = (config.hidden_size, experts.intermediate_size, experts.count);
        let found = [down.shape[1], up.shape[0]];
        let is_gate_up = found == [hidden, 2 * inner] || found == [2 * inner, hidden];
        let (inputs, outputs) = if is_gate_up { (hidden, 2 * inner) } else { (inner, hidden) };
        let is_turned = found != [inputs, outputs];
        let products = down.shape[0];
        if (is_turned && found != [outputs, inputs]) || !products.is_multiple_of(n_experts) || up.shape[1] != products {
            return Err(CompileError::Unsupported {
                what: format!("adapter of {module}, of {:?} and {:?}", down.shape, up.shape),
                detail: format!(
                    "expected lora_A of (rank × {n_experts}, {hidden}) and lora_B of ({}, rank × {n_experts}) for gate_up_proj, or {inner} and {hidden} for \
                     down_proj: was the adapter trained on this model?",
                    2 * inner
                ),
            });
        }
        if inputs == outputs && is_old && !experts.names.are_of_transposed_stacks() {
            return Err(CompileError::Unsupported {
                what: format!("adapter of {module}, of square matrices, by PEFT before 0.19"),
                detail: "inputs and outputs cannot be told apart; that version of PEFT merges it: merge_and_unload().save_pretrained(FOLDER)"
                    .into(),
            });
        }
        let (alternates, rank) = (experts.names == ExpertNames::GptOss, products / n_experts);
        Ok(ExpertStack { block, is_gate_up, alternates, n_experts, rank, inputs, outputs, is_turned })
    }

    /// Rank of each expert's product.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The parameter's name in `module`, by which the adapter's patterns know it.
    pub fn parameter(&self, module: &str) -> String {
        let module = module.split(".base_layer").next().unwrap_or_default();
        format!("{module}.{}", if self.is_gate_up { "gate_up_proj" } else { "down_proj" })
    }

    /// The products of A and B, times `scale`, by the canonical names of the matrices that they are added to.
    pub fn products(&self, [down, up]: [&[f32]; 2], scale: f32) -> impl Iterator<Item = (String, LowRank)> {
        (0..self.n_experts).flat_map(move |expert| {
            let of_a = move |i: usize, column: usize| down[(expert * self.rank + i) * self.columns_of_a() + column];
            let of_b = move |row: usize, i: usize| up[(row * self.rank + i) * self.n_experts + expert];
            self.parts().map(move |(name, rows)| {
                let of_input = |i, input| if self.is_turned { of_b(input, i) } else { of_a(i, input) };
                let of_output = |output, i| if self.is_turned { of_a(i, output) } else { of_b(output, i) };
                let down = (0..self.rank).flat_map(|i| (0..self.inputs).map(move |input| of_input(i, input)));
                let up = rows.flat_map(|output| (0..self.rank).map(move |i| scale * of_output(output, i)));
                let product = LowRank { down: down.collect(), up: up.collect() };
                (format!("{}.{expert}.{name}.weight", self.block), product)
            })
        })
    }

    fn columns_of_a(&self) -> usize {
        if self.is_turned { self.outputs } else { self.inputs }
    }

    /// The matrices of an expert, and which of the stack's outputs they have.
    fn parts(&self) -> impl Iterator<Item = (&'static str, std::iter::StepBy<std::ops::Range<usize>>)> {
        let half = self.outputs / 2;
        let parts = match (self.is_gate_up, self.alternates) {
            (false, _) => vec![("down_proj", (0..self.outputs).step_by(1))],
            (true, false) => vec![("gate_proj", (0..half).step_by(1)), ("up_proj", (half..self.outputs).step_by(1))],
            (true, true) => {
                vec![("gate_proj", (0..self.outputs).step_by(2)), ("up_proj", (1..self.outputs).step_by(2))]
            }
        };
        parts.into_iter()
    }
}
