//! Source tensors that hold several canonical ones, one head's rows after the other; transformers splits their product.

use super::config::{DeltaConfig, FolderLayout, ModelConfig};
use super::source_layout::RowBlocks;

/// A canonical tensor, and which rows of its source are its rows.
pub(super) struct Part {
    pub name: String,
    pub blocks: [RowBlocks; 3],
}

/// The tensors that the source tensor `canonical` holds; `None`: its rows belong to one tensor.
pub(super) fn parts(config: &ModelConfig, canonical: &str) -> Option<Vec<Part>> {
    let (block, name) = canonical.strip_suffix(".weight")?.rsplit_once('.')?;
    let part = |name: &str, blocks| Part { name: format!("{block}.{name}.weight"), blocks };
    match (name, config.delta) {
        ("q_proj", _) if matches!(config.folder, FolderLayout::Qwen3_5 | FolderLayout::Qwen3Next) => {
            let (rows, dim) = (config.n_heads * config.head_dim, config.head_dim);
            let every_second = |first| one(RowBlocks { rows, first, block: dim, stride: 2 * dim });
            Some(vec![part("q_proj", every_second(0)), part("gate_proj", every_second(dim))])
        }
        ("in_proj_qkvz", Some(delta)) if config.folder == FolderLayout::Qwen3Next => {
            let DeltaConfig { key_heads, value_heads, key_dim, value_dim, .. } = delta;
            let values = value_heads / key_heads * value_dim;
            let of_head = |per_head, first| RowBlocks {
                rows: key_heads * per_head,
                first,
                block: per_head,
                stride: 2 * key_dim + 2 * values,
            };
            let qkv = [of_head(key_dim, 0), of_head(key_dim, key_dim), of_head(values, 2 * key_dim)];
            Some(vec![part("in_proj_qkv", qkv), part("in_proj_z", one(of_head(values, 2 * key_dim + values)))])
        }
        ("in_proj_ba", Some(delta)) if config.folder == FolderLayout::Qwen3Next => {
            let (rows, shared) = (delta.value_heads, delta.value_heads / delta.key_heads);
            let every_second = |first| one(RowBlocks { rows, first, block: shared, stride: 2 * shared });
            Some(vec![part("in_proj_b", every_second(0)), part("in_proj_a", every_second(shared))])
        }
        _ => None,
    }
}

fn one(blocks: RowBlocks) -> [RowBlocks; 3] {
    [blocks, RowBlocks::NONE, RowBlocks::NONE]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::import::config_json::model_config;
    use crate::import::source_layout::RowOrder;

    fn read(config: &Value) -> ModelConfig {
        model_config(Path::new("config.json"), config).unwrap_or_else(|error| panic!("{error}"))
    }

    fn sources(config: &ModelConfig, part: &Part) -> Vec<usize> {
        let rows = config.tensor_shapes()[&format!("layers.{}", part.name)][0];
        (0..rows).map(|row| RowOrder::Blocks(part.blocks).source_row(0, row)).collect()
    }

    fn qwen3_next() -> Value {
        json!({
            "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 32, "num_hidden_layers": 4, "num_experts": 4,
            "num_experts_per_tok": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
            "linear_value_head_dim": 3,
        })
    }

    /// As published, without its vision part; absent fields are the family's defaults.
    #[test]
    fn qwen3_5_reads_from_a_multimodal_config() {
        let config = read(&json!({
            "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": false,
            "text_config": {
                "model_type": "qwen3_5_text", "attention_bias": false, "num_hidden_layers": 8,
                "rope_parameters": { "mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default",
                    "rope_theta": 10000000, "partial_rotary_factor": 0.25 }
            },
            "vision_config": {}
        }));
        let recurrent: Vec<bool> = config.layers.iter().map(|layer| layer.is_recurrent).collect();
        assert_eq!(recurrent, [true, true, true, false, true, true, true, false]);
        assert_eq!((config.layers[0].rope, config.layers[3].rope), (None, Some(0)));
        assert_eq!((config.head_dim, config.ropes[0].rotary_dim(), config.norm_offset), (256, 64, 1.0));
        let delta = config.delta.expect("delta nets");
        assert_eq!((delta.channels(), delta.value_width(), delta.taps), (8192, 4096, 4));
        assert!(config.attention_gate && config.experts.is_none() && config.folder == FolderLayout::Qwen3_5);
    }

    #[test]
    fn layers_are_listed_or_follow_from_an_interval() {
        let recurrent =
            |config: &Value| -> Vec<bool> { read(config).layers.iter().map(|one| one.is_recurrent).collect() };
        let mut config = qwen3_next();
        assert_eq!(recurrent(&config), [true, true, true, false]);
        config["full_attention_interval"] = json!(2);
        assert_eq!(recurrent(&config), [true, false, true, false]);
        config["layer_types"] = json!(["full_attention", "linear_attention", "linear_attention", "linear_attention"]);
        assert_eq!(recurrent(&config), [false, true, true, true]);
        assert!(read(&config).experts.expect("experts").normalized);
        config["linear_key_head_dim"] = json!(6);
        let error = model_config(Path::new("config.json"), &config).expect_err("quads of keys are whole").to_string();
        assert!(error.contains("linear_key_head_dim is 6, expected a multiple of 4"), "{error}");
        let llama = json!({ "model_type": "llama", "num_hidden_layers": 1, "layer_types": ["linear_attention"] });
        let error = model_config(Path::new("config.json"), &llama).expect_err("Llamas have attention").to_string();
        assert!(error.contains("layer type linear_attention is not supported"), "{error}");
    }

    #[test]
    fn a_query_is_followed_by_its_gate() {
        let config = read(&qwen3_next());
        let parts = parts(&config, "3.self_attn.q_proj.weight").expect("two in one");
        assert_eq!(sources(&config, &parts[0]), (0..16).chain(32..48).collect::<Vec<_>>());
        assert_eq!(sources(&config, &parts[1]), (16..32).chain(48..64).collect::<Vec<_>>());
        let gate = config.folder.row_order(&config, "layers.3.self_attn.gate_proj.weight");
        assert_eq!(gate, RowOrder::Blocks(parts[1].blocks));
        let key = config.folder.row_order(&config, "layers.3.self_attn.k_proj.weight");
        assert_eq!(key, RowOrder::Plain);
    }

    /// A key head has 4 rows of q, 4 of k, 6 of v and 6 of z; then 2 of b and 2 of a.
    #[test]
    fn rows_of_a_key_head_lie_together() {
        let config = read(&qwen3_next());
        let qkvz = parts(&config, "0.linear_attn.in_proj_qkvz.weight").expect("four in one");
        let both = |first: usize, rows: usize| (first..first + rows).chain(20 + first..20 + first + rows);
        assert_eq!(sources(&config, &qkvz[0]), both(0, 4).chain(both(4, 4)).chain(both(8, 6)).collect::<Vec<_>>());
        assert_eq!(sources(&config, &qkvz[1]), both(14, 6).collect::<Vec<_>>());
        let ba = parts(&config, "0.linear_attn.in_proj_ba.weight").expect("two in one");
        assert_eq!((sources(&config, &ba[0]), sources(&config, &ba[1])), (vec![0, 1, 4, 5], vec![2, 3, 6, 7]));
    }
}
