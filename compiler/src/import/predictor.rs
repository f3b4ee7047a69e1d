//! The head that predicts the token behind the next one (multi-token prediction) of Qwen3-Next, Qwen3.5 and Qwen3.6, and its tensors.
//!
//! ```text
//! x[i] = fc [ norm_e(E[t[i]]) | norm_h(h[i - 1]) ]       h: the stream behind the model's final norm; of further drafts, y of the draft before
//! y[i] = norm(layer(x[1..=i]))                            one layer with attention to all tokens, and the MLP or the experts of others
//! logits of t[i + 1] = lm_head y[i]                       the model's own head, and its embedding E
//! ```
//!
//! The formula is that of vLLM's `Qwen3_5MultiTokenPredictor` and `Qwen3NextMultiTokenPredictor` (`vllm/model_executor/models/qwen3_5_mtp.py`),
//! whose input `hidden_states` is what the model's `forward` returns, after `norm`, and of llama.cpp's `qwen35.cpp` (`graph_mtp`, `t_h_nextn`);
//! transformers skips these tensors. Their row of `t[i + 1]` and `h[i]` has position `i`, ours `i + 1`, so that what a page of the cache holds depends on the
//! page's tokens and those before alone; rotary embeddings depend on differences of positions alone. Position 0 has no row, and none attends to it.
//!
//! Its layer is the last of [`ModelConfig::layers`], so that its tensors, its cache and its kernels are found as those of others.

use std::collections::BTreeMap;

use unicorn_kernels::previous_row::PreviousRowSpec;

use super::config::{LayerConfig, ModelConfig};

/// Prefix of its tensors in a folder.
pub(super) const PREFIX: &str = "mtp.";

/// Names behind the layer's of what only this layer has.
const FC: &str = "fc.weight";
const NORMS: [&str; 3] = ["pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight"];

impl ModelConfig {
    /// Adds the head.
    ///
    /// # Errors
    /// What of it is not supported.
    pub(super) fn add_predictor(&mut self, head: Head) -> Result<(), String> {
        if head.n_layers != 1 {
            return Err(format!("mtp_num_hidden_layers is {}, heads of 1 layer are compiled", head.n_layers));
        }
        if head.has_own_embedding {
            let ours = "heads that share the model's embedding and output head are compiled";
            return Err(format!("mtp_use_dedicated_embeddings is set, {ours}"));
        }
        let of_attention = self.layers.iter().find(|layer| !layer.is_recurrent);
        let Some(LayerConfig { rope, .. }) = of_attention.filter(|_| self.delta.is_some()).copied() else {
            return Err("heads behind layers with attention and layers with a delta net are compiled".into());
        };
        if !PreviousRowSpec::fits(&self.state_layout(), self.hidden_size) {
            let hidden = self.hidden_size;
            return Err(format!("hidden_size is {hidden}, heads whose rows fit the state of a delta net are compiled"));
        }
        let has_experts = self.experts.is_some();
        self.layers.push(LayerConfig { window: None, rope, has_experts, is_recurrent: false });
        self.predictor = true;
        Ok(())
    }

    /// Leaves the head out, if there is one. Returns whether there was.
    pub(super) fn remove_predictor(&mut self) -> bool {
        if self.predictor {
            self.layers.pop();
        }
        std::mem::take(&mut self.predictor)
    }

    /// Index of the head's layer; `None`: there is no such head.
    pub(crate) fn predictor_layer(&self) -> Option<usize> {
        self.predictor.then(|| self.layers.len() - 1)
    }

    /// Layers of the model itself.
    pub(crate) fn n_decoder_layers(&self) -> usize {
        self.layers.len() - usize::from(self.predictor)
    }

    /// Whether a canonical tensor belongs to the head.
    pub(crate) fn is_of_predictor(&self, canonical: &str) -> bool {
        self.predictor_layer().is_some_and(|layer| canonical.starts_with(&format!("layers.{layer}.")))
    }

    /// Whether steps that draft read a tensor, and no other: others write the head's keys and values alone.
    pub(crate) fn is_of_drafts_alone(&self, canonical: &str) -> bool {
        const WRITE: [&str; 9] = [
            ".input_layernorm.",
            ".q_proj.",
            ".k_proj.",
            ".v_proj.",
            ".k_norm.",
            ".q_norm.",
            ".fc.",
            ".pre_fc_norm_embedding.",
            ".pre_fc_norm_hidden.",
        ];
        self.is_of_predictor(canonical) && !WRITE.iter().any(|part| canonical.contains(part))
    }

    /// The canonical name of the head's tensor that a folder has as `mtp.` and `name`.
    pub(super) fn predictor_tensor(&self, name: &str) -> String {
        let layer = self.layers.len() - 1;
        format!("layers.{layer}.{}", name.strip_prefix("layers.0.").unwrap_or(name))
    }

    /// Adds the tensors that other layers do not have to `shapes`.
    pub(super) fn add_predictor_shapes(&self, shapes: &mut BTreeMap<String, Vec<usize>>) {
        let (Some(layer), hidden) = (self.predictor_layer(), self.hidden_size) else { return };
        shapes.insert(format!("layers.{layer}.{FC}"), vec![hidden, 2 * hidden]);
        shapes.extend(NORMS.map(|norm| (format!("layers.{layer}.{norm}"), vec![hidden])));
    }
}

/// What a head is made of, as far as heads differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) n_layers: usize,
    /// It has an embedding or an output head that is not the model's.
    pub(super) has_own_embedding: bool,
}

impl Head {
    /// The head of a folder whose tensors have these names; `None`: there is none.
    pub(super) fn of_tensors<'n>(names: impl Iterator<Item = &'n str>) -> Option<Head> {
        let behind_prefix = |name: &'n str| name.strip_prefix("model.").unwrap_or(name).strip_prefix(PREFIX);
        let names: Vec<&str> = names.filter_map(behind_prefix).collect();
        let layer = |name: &&str| name.strip_prefix("layers.")?.split('.').next()?.parse::<usize>().ok();
        let last_layer = names.iter().filter_map(layer).max().unwrap_or(0);
        let has_own_embedding = names.iter().any(|name| name.starts_with("embed_tokens."));
        (!names.is_empty()).then_some(Head { n_layers: 1 + last_layer, has_own_embedding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_a_head_are_counted_by_its_tensors() {
        let head = |names: &[&str]| Head::of_tensors(names.iter().copied());
        assert_eq!(head(&["model.norm.weight", "model.layers.7.mlp.up_proj.weight"]), None);
        let one = Head { n_layers: 1, has_own_embedding: false };
        assert_eq!(head(&["mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"]), Some(one));
        let other = Head { n_layers: 3, has_own_embedding: true };
        let names = ["mtp.embed_tokens.weight", "model.mtp.layers.2.input_layernorm.weight", "mtp.norm.weight"];
        assert_eq!(head(&names), Some(other));
    }
}
