//! Experts as gpt-oss' folders stack them: each matrix transposed, (experts, inputs, outputs), the outputs of gate and up
//! alternating; and their biases, (experts, outputs). Where matrices are MXFP4, their stacks are not transposed. Qwen3-VL's folders have
//! the same stacks, with all outputs of gate before those of up.

use std::collections::BTreeMap;

use super::config::{KeptCodes, ModelConfig};
use super::experts_config::{ExpertNames, ExpertsConfig};
use super::packed_fp4::BLOCKS;
use super::source_layout::{Elements, RowBlocks};

/// The content of a source tensor.
pub(super) struct Stack {
    /// Shape of the source tensor.
    pub shape: Vec<usize>,
    /// Canonical names, and the places of their elements.
    pub parts: Vec<(String, Elements)>,
}

/// The stack in the folder's tensor `canonical`; `None`: it is another tensor.
pub(super) fn stack(config: &ModelConfig, canonical: &str) -> Option<Stack> {
    let (block, name) = canonical.rsplit_once('.').filter(|(block, _)| block.ends_with("mlp.experts"))?;
    let experts = config.experts.as_ref().filter(|experts| experts.names.are_of_transposed_stacks())?;
    let (matrix, kind) = name.strip_suffix("_bias").map_or((name, "weight"), |matrix| (matrix, "bias"));
    let names = matrices(matrix)?;
    let of_expert = |expert: usize| {
        names.iter().map(move |name| {
            let ours = format!("{block}.{expert}.{name}.{kind}");
            let elements = elements_of(config.hidden_size, experts, &ours).expect("a part of a stack");
            (ours, elements)
        })
    };
    let (inputs, outputs) = widths(config, experts, matrix);
    let shape = if kind == "bias" { vec![experts.count, outputs] } else { vec![experts.count, inputs, outputs] };
    Some(Stack { shape, parts: (0..experts.count).flat_map(of_expert).collect() })
}

/// Whether the folder's tensor `canonical` of this shape is a stack that is not transposed after all: transformers 5 writes Qwen3-VL's so,
/// and reads either by its shape.
pub(super) fn is_upright(config: &ModelConfig, canonical: &str, shape: &[usize]) -> bool {
    let is_of_qwen3_vl = config.experts.as_ref().is_some_and(|experts| experts.names == ExpertNames::Qwen3Vl);
    let stack = stack(config, canonical).filter(|_| is_of_qwen3_vl);
    stack.is_some_and(|stack| [stack.shape[0], stack.shape[2], stack.shape[1]] == *shape)
}

/// A stack that is MXFP4.
pub(super) struct PackedStack {
    /// (experts, outputs, inputs)
    pub shape: [usize; 3],
    /// Canonical names, and the stack's rows, one for each output, that belong to them.
    pub parts: Vec<(String, [RowBlocks; 3])>,
}

/// The stack whose codes are the folder's tensor `canonical`; `None`: it is another tensor.
pub(super) fn packed_stack(config: &ModelConfig, canonical: &str) -> Option<PackedStack> {
    let name = canonical.strip_suffix(BLOCKS)?;
    let (block, matrix) = name.rsplit_once('.').filter(|(block, _)| block.ends_with("mlp.experts"))?;
    let experts = config.experts.as_ref().filter(|experts| experts.names == ExpertNames::GptOss)?;
    let names = matrices(matrix)?;
    let (inputs, outputs) = widths(config, experts, matrix);
    let rows = outputs / names.len();
    let of_expert = |expert: usize| {
        names.iter().enumerate().map(move |(index, ours)| {
            // Outputs of gate and up alternate.
            let own = RowBlocks { rows, first: expert * outputs + index, block: 1, stride: names.len() };
            (format!("{block}.{expert}.{ours}.weight"), [own, RowBlocks::NONE, RowBlocks::NONE])
        })
    };
    let parts = (0..experts.count).flat_map(of_expert).collect();
    Some(PackedStack { shape: [experts.count, outputs, inputs], parts })
}

/// The experts of a model whose folder has them all as MXFP4.
pub(super) fn experts_as_fp4(config: &ModelConfig) -> BTreeMap<String, KeptCodes> {
    let is_gpt_oss = config.experts.as_ref().is_some_and(|experts| experts.names == ExpertNames::GptOss);
    let matrices = config.tensor_shapes().into_keys().filter(|name| is_gpt_oss && name.ends_with(".weight"));
    matrices.filter(|name| expert_tensor(name).is_some()).map(|name| (name, KeptCodes::FP4)).collect()
}

/// The canonical matrices in this matrix of the folder.
fn matrices(matrix: &str) -> Option<&'static [&'static str]> {
    match matrix {
        "gate_up_proj" => Some(&["gate_proj", "up_proj"]),
        "down_proj" => Some(&["down_proj"]),
        _ => None,
    }
}

/// Inputs and outputs of this matrix of the folder.
fn widths(config: &ModelConfig, experts: &ExpertsConfig, matrix: &str) -> (usize, usize) {
    match matrix {
        "down_proj" => (experts.intermediate_size, config.hidden_size),
        _ => (config.hidden_size, 2 * experts.intermediate_size),
    }
}

/// The folder's shape of the stack that holds our tensor; `None`: no stack holds it.
pub(super) fn shape(config: &ModelConfig, ours: &str) -> Option<Vec<usize>> {
    config.experts.as_ref().filter(|experts| experts.names == ExpertNames::GptOss)?;
    Some(stack(config, &holder(ours)?)?.shape)
}

/// The folder's name of the stack that holds our tensor of an expert.
pub(super) fn holder(ours: &str) -> Option<String> {
    let (block, _, name, kind) = expert_tensor(ours)?;
    let stack = if name == "down_proj" { "down_proj" } else { "gate_up_proj" };
    let suffix = if kind == "bias" { "_bias" } else { "" };
    Some(format!("{block}.{stack}{suffix}"))
}

/// Where our tensor of an expert is stored in the stack that a folder of ours has; `None`: it has no such stack.
pub(super) fn elements(config: &ModelConfig, ours: &str) -> Option<Elements> {
    let experts = config.experts.as_ref().filter(|experts| experts.names == ExpertNames::GptOss)?;
    elements_of(config.hidden_size, experts, ours)
}

/// Where our tensor of an expert is stored in its stack; `None`: it is not such a tensor.
fn elements_of(hidden: usize, experts: &ExpertsConfig, ours: &str) -> Option<Elements> {
    let (_, expert, name, kind) = expert_tensor(ours)?;
    let inner = experts.intermediate_size;
    // Outputs of gate and up alternate, or are the halves.
    let (up, step) = if experts.names == ExpertNames::GptOss { (1, 2) } else { (inner, 1) };
    let (inputs, outputs, first, step) = match name {
        "gate_proj" => (hidden, 2 * inner, 0, step),
        "up_proj" => (hidden, 2 * inner, up, step),
        "down_proj" => (inner, hidden, 0, 1),
        _ => return None,
    };
    Some(match kind {
        "bias" => Elements { first: expert * outputs + first, row: 0, column: step, gaps: None },
        _ => Elements { first: expert * inputs * outputs + first, row: step, column: outputs, gaps: None },
    })
}

/// Block, number, matrix and `weight` or `bias` of the name of an expert's tensor.
pub(super) fn expert_tensor(ours: &str) -> Option<(&str, usize, &str, &str)> {
    let (at, marker) = (ours.find(".mlp.experts.")?, ".mlp.experts");
    let (block, rest) = ours.split_at(at + marker.len());
    let mut parts = rest[1..].split('.');
    let (expert, name, kind) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    Some((block, expert, name, kind))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::import::config_json::model_config;
    use crate::import::source_layout::RowOrder;

    /// Three experts of 2 inner rows, over a stream of 4.
    fn gpt_oss() -> ModelConfig {
        let config = json!({
            "architectures": ["GptOssForCausalLM"], "hidden_size": 4, "intermediate_size": 2, "num_local_experts": 3,
            "num_experts_per_tok": 1, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 2,
        });
        model_config(Path::new("config.json"), &config).unwrap_or_else(|error| panic!("{error}"))
    }

    fn part<T: Copy>(parts: &[(String, T)], name: &str) -> T {
        parts.iter().find(|(part, _)| part == name).unwrap_or_else(|| panic!("no part {name}")).1
    }

    #[test]
    fn gate_and_up_take_turns_along_the_outputs() {
        let config = gpt_oss();
        let stack = stack(&config, "layers.0.mlp.experts.gate_up_proj").expect("a stack");
        assert_eq!((stack.shape, stack.parts.len()), (vec![3, 4, 4], 6));
        // Element (expert, input, output) is number (expert * 4 + input) * 4 + output; ours are rows by output, columns by input.
        let up = part(&stack.parts, "layers.0.mlp.experts.1.up_proj.weight");
        assert_eq!([up.at(0, 0), up.at(0, 1), up.at(1, 0), up.at(1, 3)], [17, 21, 19, 31]);
        let gate = part(&stack.parts, "layers.0.mlp.experts.2.gate_proj.weight");
        assert_eq!([gate.at(0, 0), gate.at(1, 2)], [32, 42]);
    }

    #[test]
    fn qwen3_vl_has_gate_before_up() {
        let mut config = gpt_oss();
        config.experts.as_mut().expect("a mixture").names = ExpertNames::Qwen3Vl;
        let gate_up = stack(&config, "layers.0.mlp.experts.gate_up_proj").expect("a stack");
        let gate = part(&gate_up.parts, "layers.0.mlp.experts.1.gate_proj.weight");
        let up = part(&gate_up.parts, "layers.0.mlp.experts.1.up_proj.weight");
        assert_eq!([gate.at(0, 0), gate.at(1, 0), up.at(0, 0), up.at(1, 3)], [16, 17, 18, 31]);
        let is_upright = |shape: &[usize]| is_upright(&config, "layers.0.mlp.experts.down_proj", shape);
        assert!(is_upright(&[3, 4, 2]) && !is_upright(&[3, 2, 4]));
        // An exported folder has a tensor for each.
        assert!(elements(&config, "layers.0.mlp.experts.1.up_proj.weight").is_none());
    }

    #[test]
    fn down_is_transposed_alone() {
        let config = gpt_oss();
        let stack = stack(&config, "layers.0.mlp.experts.down_proj").expect("a stack");
        assert_eq!(stack.shape, [3, 2, 4]);
        let down = part(&stack.parts, "layers.0.mlp.experts.1.down_proj.weight");
        assert_eq!([down.at(0, 0), down.at(0, 1), down.at(3, 1)], [8, 12, 15]);
    }

    #[test]
    fn biases_lie_as_their_outputs_do() {
        let config = gpt_oss();
        let gate_up = stack(&config, "layers.0.mlp.experts.gate_up_proj_bias").expect("a stack");
        assert_eq!(gate_up.shape, [3, 4]);
        let up = part(&gate_up.parts, "layers.0.mlp.experts.1.up_proj.bias");
        assert_eq!([up.at(0, 0), up.at(0, 1)], [5, 7]);
        let down = stack(&config, "layers.0.mlp.experts.down_proj_bias").expect("a stack");
        assert_eq!(down.shape, [3, 4]);
        assert_eq!(part(&down.parts, "layers.0.mlp.experts.2.down_proj.bias").at(0, 3), 11);
    }

    #[test]
    fn a_part_leads_to_its_stack_and_back() {
        let config = gpt_oss();
        for theirs in ["gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"] {
            let theirs = format!("layers.0.mlp.experts.{theirs}");
            let stack = stack(&config, &theirs).expect("a stack");
            for (ours, of_stack) in stack.parts {
                assert_eq!(holder(&ours).as_deref(), Some(&*theirs), "{ours}");
                assert_eq!(shape(&config, &ours).as_ref(), Some(&stack.shape), "{ours}");
                assert_eq!(elements(&config, &ours), Some(of_stack), "{ours}");
            }
        }
        for other in ["layers.0.mlp.router.weight", "layers.0.mlp.experts.other", "layers.0.self_attn.down_proj"] {
            assert!(stack(&config, other).is_none() && packed_stack(&config, other).is_none(), "{other}");
        }
        assert!(elements(&config, "layers.0.mlp.gate.weight").is_none());
    }

    #[test]
    fn rows_of_mxfp4_are_outputs() {
        let config = gpt_oss();
        let rows = |blocks, count| -> Vec<usize> {
            (0..count).map(|row| RowOrder::Blocks(blocks).source_row(0, row)).collect()
        };
        let gate_up = packed_stack(&config, "layers.0.mlp.experts.gate_up_proj_blocks").expect("a stack");
        assert_eq!(gate_up.shape, [3, 4, 4]);
        assert_eq!(rows(part(&gate_up.parts, "layers.0.mlp.experts.1.gate_proj.weight"), 2), [4, 6]);
        assert_eq!(rows(part(&gate_up.parts, "layers.0.mlp.experts.1.up_proj.weight"), 2), [5, 7]);
        let down = packed_stack(&config, "layers.0.mlp.experts.down_proj_blocks").expect("a stack");
        assert_eq!(down.shape, [3, 4, 2]);
        assert_eq!(rows(part(&down.parts, "layers.0.mlp.experts.2.down_proj.weight"), 4), [8, 9, 10, 11]);
    }
}
