//! Latent attention's tensors as DeepSeek's folders have them: `kv_b_proj` holds, head by head, the rows that make a key of the latent
//! vector and those that make a value. Absorbed, the first are applied to the query, transposed.

use super::config::ModelConfig;
use super::source_layout::{Elements, RowOrder};
use super::transposed::Stack;

/// The matrices in `kv_b_proj`, (heads × (nope + value), rank); `None`: it is another tensor.
pub(super) fn stack(config: &ModelConfig, canonical: &str) -> Option<Stack> {
    let latent = config.latent.as_ref()?;
    let block = canonical.strip_suffix(".kv_b_proj.weight")?;
    let parts = (0..config.n_heads).flat_map(|head| {
        ["k_b_proj", "v_b_proj"].map(|name| {
            let ours = format!("{block}.{name}.{head}.weight");
            let elements = elements(config, &ours).expect("a part of the stack");
            (ours, elements)
        })
    });
    let shape = vec![config.n_heads * (latent.nope_dim + latent.value_dim), latent.rank];
    Some(Stack { shape, parts: parts.collect() })
}

/// The folder's shape of the tensor that holds our matrix of a head; `None`: another holds it.
pub(super) fn shape(config: &ModelConfig, ours: &str) -> Option<Vec<usize>> {
    Some(stack(config, &holder(ours)?)?.shape)
}

/// The folder's name of the tensor that holds one of ours, if it is not ours.
pub(super) fn holder(ours: &str) -> Option<String> {
    if let Some((block, _, _)) = of_head(ours) {
        return Some(format!("{block}.kv_b_proj.weight"));
    }
    let part = [".kv_a_proj.", ".k_rope_proj."].into_iter().find(|part| ours.contains(part))?;
    Some(ours.replacen(part, ".kv_a_proj_with_mqa.", 1))
}

/// Where our matrix of a head is stored in `kv_b_proj`; `None`: it is another tensor.
pub(super) fn elements(config: &ModelConfig, ours: &str) -> Option<Elements> {
    let latent = config.latent.as_ref()?;
    let (_, name, head) = of_head(ours)?;
    let first_row = head * (latent.nope_dim + latent.value_dim);
    Some(match name {
        "k_b_proj" => Elements { first: first_row * latent.rank, row: 1, column: latent.rank, gaps: None },
        _ => Elements { first: (first_row + latent.nope_dim) * latent.rank, row: latent.rank, column: 1, gaps: None },
    })
}

/// The order of the rows of a tensor with rotary pairs whose elements are adjacent; `None`: they are not, or it has none.
pub(super) fn row_order(config: &ModelConfig, ours: &str) -> Option<RowOrder> {
    let latent = config.latent.as_ref().filter(|latent| latent.interleaved)?;
    let pairs =
        |plain| RowOrder::InterleavedHeads { head_dim: plain + latent.rope_dim, plain, rotary_dim: latent.rope_dim };
    if ours.contains(".k_rope_proj.") {
        return Some(pairs(0));
    }
    let is_query = ours.contains(".q_proj.") || ours.contains(".q_b_proj.");
    is_query.then(|| pairs(latent.nope_dim))
}

/// Block, matrix and head of the name of one head's tensor.
fn of_head(ours: &str) -> Option<(&str, &str, usize)> {
    let (block, rest) = ours.split_at(ours.find(".self_attn.")? + ".self_attn".len());
    let mut parts = rest[1..].split('.');
    let (name, head) = (parts.next()?, parts.next()?);
    ["k_b_proj", "v_b_proj"].contains(&name).then_some((block, name, head.parse().ok()?))
}
