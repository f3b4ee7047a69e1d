//! What a model makes of images, in its config.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use unicorn_artifact::step::MAX_IMAGE_ROWS;

use super::limits;

/// A tower of SigLIP (Zhai et al. 2023, arXiv 2303.15343) and Gemma 3's projector behind it: an image of fixed size becomes rows of the
/// text model's stream, which attend to each other in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VisionConfig {
    /// Elements of a patch's row.
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    /// Pixels of a side of the image.
    pub(crate) image_size: usize,
    /// Pixels of a side of a patch.
    pub(crate) patch_size: usize,
    /// Rows that an image becomes.
    pub(crate) image_rows: usize,
    /// Added to the variance in layer norms, and to the mean square in the projector's norm.
    pub(crate) eps: f32,
    /// What is subtracted from each channel, of 0 to 1, and what it is then divided by.
    pub(crate) mean: [f32; 3],
    pub(crate) deviation: [f32; 3],
    /// The token that stands for a row of an image in texts.
    pub(crate) row_token: u32,
    /// The tokens before and behind an image's rows.
    pub(crate) begin_token: u32,
    pub(crate) end_token: u32,
}

/// Red, green and blue.
pub(crate) const CHANNELS: usize = 3;

impl VisionConfig {
    /// Patches from left to right.
    pub(crate) fn patches_across(&self) -> usize {
        self.image_size / self.patch_size
    }

    /// Patches of the image.
    pub(crate) fn patches(&self) -> usize {
        self.patches_across() * self.patches_across()
    }

    /// Numbers of a patch: its pixels in rows, channel by channel.
    pub(crate) fn patch_width(&self) -> usize {
        CHANNELS * self.patch_size * self.patch_size
    }

    /// Rows of the text model's stream from left to right.
    pub(crate) fn rows_across(&self) -> usize {
        self.image_rows.isqrt()
    }

    /// Patches of a row of the stream from left to right, and from top to bottom.
    pub(crate) fn pooled_side(&self) -> usize {
        self.patches_across() / self.rows_across()
    }

    /// Patches of a row of the stream.
    pub(crate) fn patches_per_row(&self) -> usize {
        self.pooled_side() * self.pooled_side()
    }

    pub(super) fn check(&self) -> Result<(), String> {
        for (name, value, most) in [
            ("hidden_size", self.hidden_size, limits::HIDDEN_SIZE),
            ("intermediate_size", self.intermediate_size, limits::INTERMEDIATE_SIZE),
            ("num_hidden_layers", self.layers, limits::LAYERS),
            ("num_attention_heads", self.heads, limits::HEADS),
            ("patch_size", self.patch_size, limits::PATCH_SIZE),
            ("image_size", self.image_size, limits::IMAGE_SIZE),
            ("mm_tokens_per_image", self.image_rows, MAX_IMAGE_ROWS),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("{name} of the vision tower is {value}, expected 1 to {most}"));
            }
        }
        if !self.hidden_size.is_multiple_of(self.heads) || self.hidden_size / self.heads > limits::IMAGE_HEAD_DIM {
            return Err(format!(
                "hidden_size of the vision tower is {} for {} heads, expected a multiple, at most {} for each",
                self.hidden_size,
                self.heads,
                limits::IMAGE_HEAD_DIM
            ));
        }
        let (across, rows) = (self.patches_across(), self.rows_across());
        if rows * rows != self.image_rows || across == 0 || !across.is_multiple_of(rows) {
            return Err(format!(
                "mm_tokens_per_image is {} of {across} × {across} patches, expected squares of patches",
                self.image_rows
            ));
        }
        let numbers = [&[self.eps], &self.mean[..], &self.deviation[..]].concat();
        if numbers.iter().any(|number| !number.is_finite()) || self.eps <= 0.0 || self.deviation.contains(&0.0) {
            return Err(format!(
                "vision tower has eps {}, mean {:?} and deviation {:?}, expected finite numbers, which divide",
                self.eps, self.mean, self.deviation
            ));
        }
        Ok(())
    }

    /// The tensors in `ModelConfig::tensor_shapes`, of a text model with a stream of `text_hidden` elements.
    pub(super) fn add_shapes(&self, text_hidden: usize, shapes: &mut BTreeMap<String, Vec<usize>>) {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let mut add = |name: String, shape: &[usize]| {
            shapes.insert(format!("{}{name}", VisionConfig::PREFIX), shape.to_vec());
        };
        let mut linear = |name: String, rows: usize, cols: usize| {
            add(format!("{name}.weight"), &[rows, cols]);
            add(format!("{name}.bias"), &[rows]);
        };
        linear("embeddings.patch_embedding".into(), hidden, self.patch_width());
        for layer in 0..self.layers {
            for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                linear(format!("encoder.layers.{layer}.self_attn.{name}"), hidden, hidden);
            }
            linear(format!("encoder.layers.{layer}.mlp.fc1"), inner, hidden);
            linear(format!("encoder.layers.{layer}.mlp.fc2"), hidden, inner);
        }
        add("embeddings.position_embedding.weight".into(), &[self.patches(), hidden]);
        let norms = (0..self.layers).flat_map(|layer| [1, 2].map(|n| format!("encoder.layers.{layer}.layer_norm{n}")));
        for norm in norms.chain(["post_layernorm".into()]) {
            add(format!("{norm}.weight"), &[hidden]);
            add(format!("{norm}.bias"), &[hidden]);
        }
        add("projector.mm_soft_emb_norm.weight".into(), &[hidden]);
        add("projector.mm_input_projection.weight".into(), &[text_hidden, hidden]);
    }

    /// What canonical names of its tensors begin with.
    const PREFIX: &str = "vision.";

    /// Whether a canonical tensor is one of a vision tower or projector.
    pub(crate) fn has(canonical: &str) -> bool {
        canonical.starts_with(VisionConfig::PREFIX)
    }
}
