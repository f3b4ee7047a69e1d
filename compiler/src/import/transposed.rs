//! Experts as gpt-oss' folders stack them: each matrix transposed, (experts, inputs, outputs), the outputs of gate and up in turn; and
//! their biases, (experts, outputs).

use super::checkpoint::Elements;
use super::config::{ExpertNames, ModelConfig};

/// What a source tensor holds.
pub(super) struct Stack {
    /// Of the source tensor.
    pub shape: Vec<usize>,
    /// Canonical names, and where their elements lie.
    pub parts: Vec<(String, Elements)>,
}

/// The stack that the folder's tensor `canonical` is; `None`: it is another tensor.
pub(super) fn stack(config: &ModelConfig, canonical: &str) -> Option<Stack> {
    let (block, name) = canonical.rsplit_once('.').filter(|(block, _)| block.ends_with("mlp.experts"))?;
    let experts = config.experts.as_ref().filter(|experts| experts.names == ExpertNames::GptOss)?;
    let (matrix, kind) = name.strip_suffix("_bias").map_or((name, "weight"), |matrix| (matrix, "bias"));
    let names: &[&str] = match matrix {
        "gate_up_proj" => &["gate_proj", "up_proj"],
        "down_proj" => &["down_proj"],
        _ => return None,
    };
    let of_expert = |expert: usize| {
        names.iter().map(move |name| {
            let ours = format!("{block}.{expert}.{name}.{kind}");
            let elements = elements(config, &ours).expect("a part of a stack");
            (ours, elements)
        })
    };
    let (inputs, outputs) = match matrix {
        "down_proj" => (experts.intermediate_size, config.hidden_size),
        _ => (config.hidden_size, 2 * experts.intermediate_size),
    };
    let shape = if kind == "bias" { vec![experts.count, outputs] } else { vec![experts.count, inputs, outputs] };
    Some(Stack { shape, parts: (0..experts.count).flat_map(of_expert).collect() })
}

/// The folder's shape of the stack that holds our tensor; `None`: it lies in none.
pub(crate) fn transposed_shape(config: &ModelConfig, ours: &str) -> Option<Vec<usize>> {
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

/// Where our tensor of an expert lies in its stack; `None`: it is no such tensor.
pub(super) fn elements(config: &ModelConfig, ours: &str) -> Option<Elements> {
    let experts = config.experts.as_ref().filter(|experts| experts.names == ExpertNames::GptOss)?;
    let (_, expert, name, kind) = expert_tensor(ours)?;
    let (hidden, inner) = (config.hidden_size, experts.intermediate_size);
    let (inputs, outputs, first, step) = match name {
        "gate_proj" => (hidden, 2 * inner, 0, 2),
        "up_proj" => (hidden, 2 * inner, 1, 2),
        "down_proj" => (inner, hidden, 0, 1),
        _ => return None,
    };
    Some(match kind {
        "bias" => Elements { first: expert * outputs + first, row: 0, column: step },
        _ => Elements { first: expert * inputs * outputs + first, row: step, column: outputs },
    })
}

/// Block, number, matrix and `weight` or `bias` of the name of an expert's tensor.
fn expert_tensor(ours: &str) -> Option<(&str, usize, &str, &str)> {
    let (at, marker) = (ours.find(".mlp.experts.")?, ".mlp.experts");
    let (block, rest) = ours.split_at(at + marker.len());
    let mut parts = rest[1..].split('.');
    let (expert, name, kind) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    Some((block, expert, name, kind))
}
