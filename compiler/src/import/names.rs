//! How a folder names, joins and orders a layer's tensors where this differs from the canonical names: [`FolderLayout`] maps the
//! folder's tensors to canonical ones and, for an exported folder, back.

use super::config::{FolderLayout, ModelConfig};
use super::interleaved;
use super::latent;
use super::source_layout::RowOrder;
use super::strided;
use super::transposed;

impl FolderLayout {
    /// The canonical name for the folder's, without the prefix before the layers.
    pub fn canonical(self, theirs: &str) -> String {
        let found = self.names().iter().find(|(their_part, _)| theirs.contains(their_part));
        found.map_or(theirs.to_owned(), |(their_part, our_part)| theirs.replacen(their_part, our_part, 1))
    }

    /// The folder's tensor that holds this canonical one, whole or as one of several that are stacked by rows.
    pub fn holder(self, ours: &str) -> String {
        let joined = |whole: &str, parts: &[&str]| {
            let part = parts.iter().find(|part| ours.contains(**part))?;
            Some(ours.replacen(part, whole, 1))
        };
        let gate_up = || joined(".mlp.gate_up_proj.", &[".mlp.gate_proj.", ".mlp.up_proj."]);
        let qkv = || joined(".qkv_proj.", &[".q_proj.", ".k_proj.", ".v_proj."]);
        let gated = || joined(".self_attn.q_proj.", &[".self_attn.gate_proj."]);
        let qkvz = || joined(".in_proj_qkvz.", &[".in_proj_qkv.", ".in_proj_z."]);
        let ba = || joined(".in_proj_ba.", &[".in_proj_b.", ".in_proj_a."]);
        let whole = match self {
            FolderLayout::Separate | FolderLayout::Lfm2 => None,
            FolderLayout::GptOss | FolderLayout::Gemma4 => transposed::holder(ours),
            FolderLayout::DeepSeek => latent::holder(ours),
            FolderLayout::Joined => gate_up().or_else(qkv),
            FolderLayout::Glm | FolderLayout::Glm4 | FolderLayout::Granite4 => gate_up(),
            FolderLayout::Qwen3_5 => gated(),
            FolderLayout::Qwen3Next => gated().or_else(qkvz).or_else(ba),
        };
        let whole = whole.unwrap_or_else(|| ours.to_owned());
        let found = self.names().iter().find(|(_, our_part)| whole.contains(our_part));
        found.map_or(whole.clone(), |(their_part, our_part)| whole.replacen(our_part, their_part, 1))
    }

    /// Order in the folder of the rows of a canonical tensor of the model.
    pub fn row_order(self, config: &ModelConfig, canonical: &str) -> RowOrder {
        if let Some(elements) = strided::elements(config, canonical) {
            return RowOrder::Strided(elements);
        }
        let mixed = interleaved::parts(config, &self.holder(canonical)).unwrap_or_default();
        if let Some(part) = mixed.into_iter().find(|part| part.name == canonical) {
            return RowOrder::Blocks(part.blocks);
        }
        if let Some(order) = latent::row_order(config, canonical) {
            return order;
        }
        let is_rotated = canonical.contains(".q_proj.") || canonical.contains(".k_proj.");
        match config.ropes.first() {
            Some(rope) if matches!(self, FolderLayout::Glm | FolderLayout::Glm4) && is_rotated => {
                RowOrder::InterleavedHeads { head_dim: config.head_dim, plain: 0, rotary_dim: rope.rotary_dim() }
            }
            _ => RowOrder::Plain,
        }
    }

    /// Parts of names, the folder's and the canonical ones; the first that a name has is replaced.
    fn names(self) -> &'static [(&'static str, &'static str)] {
        match self {
            FolderLayout::Separate
            | FolderLayout::Joined
            | FolderLayout::Glm
            | FolderLayout::Qwen3_5
            | FolderLayout::Qwen3Next => &[],
            FolderLayout::Glm4 => &[
                (".post_attention_layernorm.", ".pre_feedforward_layernorm."),
                (".post_self_attn_layernorm.", ".post_attention_layernorm."),
                (".post_mlp_layernorm.", ".post_feedforward_layernorm."),
            ],
            FolderLayout::GptOss => &[(".mlp.router.", ".mlp.gate.")],
            FolderLayout::Gemma4 => &[(".router.proj.", ".mlp.gate."), (".experts.", ".mlp.experts.")],
            FolderLayout::DeepSeek => &[
                (".mlp.gate.e_score_correction_bias", ".mlp.gate.choice_bias"),
                (".mlp.shared_experts.", ".mlp.shared_expert."),
            ],
            FolderLayout::Lfm2 => &[
                (".feed_forward.expert_bias", ".mlp.gate.choice_bias"),
                (".feed_forward.gate.", ".mlp.gate."),
                (".feed_forward.experts.", ".mlp.experts."),
                (".operator_norm.", ".input_layernorm."),
                (".ffn_norm.", ".post_attention_layernorm."),
                (".feed_forward.w1.", ".mlp.gate_proj."),
                (".feed_forward.w2.", ".mlp.down_proj."),
                (".feed_forward.w3.", ".mlp.up_proj."),
                (".self_attn.out_proj.", ".self_attn.o_proj."),
                (".self_attn.q_layernorm.", ".self_attn.q_norm."),
                (".self_attn.k_layernorm.", ".self_attn.k_norm."),
                ("embedding_norm.", "norm."),
            ],
            FolderLayout::Granite4 => &[
                (".shared_mlp.input_linear.", ".mlp.gate_up_proj."),
                (".shared_mlp.output_linear.", ".mlp.down_proj."),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_s_names_lead_to_ours_and_back() {
        for (layout, theirs, ours) in [
            (FolderLayout::Separate, "layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
            (FolderLayout::Glm, "layers.1.post_attention_layernorm.weight", "layers.1.post_attention_layernorm.weight"),
            (FolderLayout::Glm4, "layers.1.post_mlp_layernorm.weight", "layers.1.post_feedforward_layernorm.weight"),
            (
                FolderLayout::Glm4,
                "layers.1.post_self_attn_layernorm.weight",
                "layers.1.post_attention_layernorm.weight",
            ),
            (
                FolderLayout::Glm4,
                "layers.1.post_attention_layernorm.weight",
                "layers.1.pre_feedforward_layernorm.weight",
            ),
            (FolderLayout::Granite4, "layers.2.shared_mlp.output_linear.weight", "layers.2.mlp.down_proj.weight"),
            (FolderLayout::Glm4, "norm.weight", "norm.weight"),
            (FolderLayout::Lfm2, "embedding_norm.weight", "norm.weight"),
            (FolderLayout::Lfm2, "layers.0.operator_norm.weight", "layers.0.input_layernorm.weight"),
            (FolderLayout::Lfm2, "layers.0.feed_forward.w3.weight", "layers.0.mlp.up_proj.weight"),
            (FolderLayout::Lfm2, "layers.0.self_attn.k_layernorm.weight", "layers.0.self_attn.k_norm.weight"),
            (FolderLayout::Lfm2, "layers.0.conv.out_proj.weight", "layers.0.conv.out_proj.weight"),
            (FolderLayout::Lfm2, "layers.2.feed_forward.gate.weight", "layers.2.mlp.gate.weight"),
            (FolderLayout::Lfm2, "layers.2.feed_forward.expert_bias", "layers.2.mlp.gate.choice_bias"),
            (FolderLayout::DeepSeek, "layers.1.mlp.gate.weight", "layers.1.mlp.gate.weight"),
            (
                FolderLayout::DeepSeek,
                "layers.1.mlp.shared_experts.up_proj.weight",
                "layers.1.mlp.shared_expert.up_proj.weight",
            ),
            (FolderLayout::Gemma4, "layers.0.router.proj.weight", "layers.0.mlp.gate.weight"),
            (FolderLayout::Gemma4, "layers.0.router.scale", "layers.0.router.scale"),
            (FolderLayout::Gemma4, "layers.0.mlp.gate_proj.weight", "layers.0.mlp.gate_proj.weight"),
        ] {
            assert_eq!(layout.canonical(theirs), ours);
            assert_eq!(layout.holder(ours), theirs);
        }
        for (layout, ours, theirs) in [
            (FolderLayout::Gemma4, "layers.0.mlp.experts.3.up_proj.weight", "layers.0.experts.gate_up_proj"),
            (FolderLayout::Gemma4, "layers.0.mlp.experts.3.down_proj.weight", "layers.0.experts.down_proj"),
            (
                FolderLayout::DeepSeek,
                "layers.0.self_attn.k_rope_proj.weight",
                "layers.0.self_attn.kv_a_proj_with_mqa.weight",
            ),
            (FolderLayout::DeepSeek, "layers.0.self_attn.v_b_proj.3.weight", "layers.0.self_attn.kv_b_proj.weight"),
            (FolderLayout::Joined, "layers.0.self_attn.v_proj.weight", "layers.0.self_attn.qkv_proj.weight"),
            (FolderLayout::Joined, "layers.0.mlp.up_proj.weight", "layers.0.mlp.gate_up_proj.weight"),
            (FolderLayout::Glm4, "layers.0.mlp.gate_proj.weight", "layers.0.mlp.gate_up_proj.weight"),
            (FolderLayout::Glm, "layers.0.mlp.up_proj.weight", "layers.0.mlp.gate_up_proj.weight"),
            (FolderLayout::Glm4, "layers.0.self_attn.v_proj.bias", "layers.0.self_attn.v_proj.bias"),
            (FolderLayout::Granite4, "layers.0.mlp.up_proj.weight", "layers.0.shared_mlp.input_linear.weight"),
            (FolderLayout::Qwen3_5, "layers.3.self_attn.gate_proj.weight", "layers.3.self_attn.q_proj.weight"),
            (FolderLayout::Qwen3_5, "layers.3.mlp.gate_proj.weight", "layers.3.mlp.gate_proj.weight"),
            (FolderLayout::Qwen3_5, "layers.0.linear_attn.in_proj_z.weight", "layers.0.linear_attn.in_proj_z.weight"),
            (
                FolderLayout::Qwen3Next,
                "layers.0.linear_attn.in_proj_z.weight",
                "layers.0.linear_attn.in_proj_qkvz.weight",
            ),
            (
                FolderLayout::Qwen3Next,
                "layers.0.linear_attn.in_proj_a.weight",
                "layers.0.linear_attn.in_proj_ba.weight",
            ),
        ] {
            assert_eq!(layout.holder(ours), theirs);
        }
    }
}
