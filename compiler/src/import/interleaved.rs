//! Source tensors that hold several of ours, rows of one head after the other: what transformers splits after the product.

use super::checkpoint::RowBlocks;
use super::config::{DeltaConfig, ModelConfig};
use super::names::FolderLayout;

/// A canonical tensor, and which rows of its source are its rows.
pub(super) struct Part {
    pub name: String,
    pub blocks: [RowBlocks; 3],
}

/// The tensors that the source tensor `canonical` holds; `None`: its rows are no mixture of several.
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
