//! Experts as Gemma 4's folders stack them: (experts, outputs, inputs), each one's gate above its up.

use super::config::ModelConfig;
use super::experts_config::ExpertNames;
use super::transposed::expert_tensor;

/// Where a canonical tensor is stored in a stack of the folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InStack {
    /// Shape of the stack: (experts, outputs, inputs).
    pub shape: Vec<usize>,
    /// The stack's first row that belongs to the canonical tensor; the others follow. Each expert has one row for each output.
    pub first_row: usize,
}

/// The place of a canonical tensor; `None`: the folder has it as a tensor of its own, or in a stack of another layout.
pub(crate) fn in_stack(config: &ModelConfig, ours: &str) -> Option<InStack> {
    let experts = config.experts.as_ref().filter(|experts| experts.names == ExpertNames::Gemma4)?;
    let (_, expert, name, _) = expert_tensor(ours)?;
    let (hidden, inner) = (config.hidden_size, experts.intermediate_size);
    let (outputs, inputs, first) = match name {
        "gate_proj" => (2 * inner, hidden, 0),
        "up_proj" => (2 * inner, hidden, inner),
        "down_proj" => (hidden, inner, 0),
        _ => return None,
    };
    Some(InStack { shape: vec![experts.count, outputs, inputs], first_row: expert * outputs + first })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::import::config_json::model_config;

    #[test]
    fn an_expert_has_its_gate_above_its_up() {
        let config = json!({
            "architectures": ["Gemma4ForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "hidden_size_per_layer_input": 0, "enable_moe_block": true, "num_experts": 3, "top_k_experts": 2,
            "moe_intermediate_size": 5,
        });
        let config = model_config(Path::new("config.json"), &config).unwrap_or_else(|error| panic!("{error}"));
        let of = |expert: usize, name: &str| {
            in_stack(&config, &format!("layers.0.mlp.experts.{expert}.{name}.weight"))
                .map(|place| (place.shape, place.first_row))
        };
        assert_eq!(of(0, "gate_proj"), Some((vec![3, 10, 8], 0)));
        assert_eq!(of(2, "up_proj"), Some((vec![3, 10, 8], 25)));
        assert_eq!(of(2, "down_proj"), Some((vec![3, 8, 5], 16)));
        assert_eq!(in_stack(&config, "layers.0.mlp.up_proj.weight"), None);
    }
}
