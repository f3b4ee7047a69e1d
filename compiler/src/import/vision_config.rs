//! What a model makes of images, in its config.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use unicorn_artifact::step::{MAX_IMAGE_ROWS, MAX_ROWS};

use super::limits;

/// What makes rows of the text model's stream of an image. A tower of SigLIP (Zhai et al. 2023, arXiv 2303.15343) and Gemma 3's projector
/// behind it take an image of fixed size, whose rows attend to each other in both directions; Qwen3-VL's takes one of any size, see
/// [`GridConfig`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VisionConfig {
    /// Elements of a patch's row.
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    /// Pixels of a side of the image; 0 where it has any size.
    pub(crate) image_size: usize,
    /// Pixels of a side of a patch.
    pub(crate) patch_size: usize,
    /// Rows that an image becomes; where it has any size, the most.
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
    /// What there is for images of any size; `None`: they are scaled to the fixed one. Artifacts from before it have no byte of it.
    pub(crate) grid: Option<GridConfig>,
}

/// A tower for images of any size (Qwen3-VL): squares of patches become rows, whose places the rotary embeddings of tower and text model
/// have, and which attend to what is before them only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GridConfig {
    /// Learned positions of a side of their square, which are interpolated.
    pub(crate) positions: usize,
    /// Layers of the tower whose features are added to the stream behind the first layers of the text model, in order (deepstack).
    pub(crate) feature_layers: Vec<usize>,
    /// Fewest and most pixels that an image is scaled to.
    pub(crate) min_pixels: usize,
    pub(crate) max_pixels: usize,
    /// Rotary pairs of the text model whose positions are an image's rows from the top, and from the left: `(h, w)` of `mrope_section`.
    pub(crate) sections: [usize; 2],
}

/// Patches of a row of the stream from left to right, and from top to bottom, where images have any size.
const GRID_SIDE: usize = 2;
/// Most rows of an image of any size unless a compile requests another number: one of 1024 × 1024 pixels.
const DEFAULT_IMAGE_ROWS: usize = 1024;
/// Most layers with features: one operation joins them with the rows.
const MAX_FEATURES: usize = 3;
/// Base of the frequencies of the tower's rotary embedding.
const GRID_ROPE_THETA: f64 = 10_000.0;

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
        if self.grid.is_some() { GRID_SIDE } else { self.patches_across() / self.rows_across() }
    }

    /// Pixels of a side of the part of an image that becomes a row.
    pub(crate) fn row_size(&self) -> usize {
        self.pooled_side() * self.patch_size
    }

    /// Sets the fewest and the most pixels of an image of any size, and so its rows: at most [`DEFAULT_IMAGE_ROWS`].
    pub(super) fn set_pixels(&mut self, [fewest, most]: [usize; 2]) {
        let of_row = self.row_pixels();
        let rows = most / of_row;
        self.image_rows = rows.clamp(1, DEFAULT_IMAGE_ROWS);
        // Pixels that are no whole row count where a picture's scale is computed.
        let most = if rows > DEFAULT_IMAGE_ROWS { DEFAULT_IMAGE_ROWS * of_row } else { most.max(of_row) };
        if let Some(grid) = &mut self.grid {
            (grid.min_pixels, grid.max_pixels) = (fewest.clamp(1, most), most);
        }
    }

    /// Sets the most rows of an image of any size, whatever its limit of pixels was.
    pub(crate) fn set_most_rows(&mut self, rows: usize) {
        let most = rows * self.row_pixels();
        self.image_rows = rows;
        if let Some(grid) = &mut self.grid {
            (grid.min_pixels, grid.max_pixels) = (grid.min_pixels.min(most), most);
        }
    }

    /// Sets the fewest rows of an image of any size, at most as many as its most.
    pub(crate) fn set_fewest_rows(&mut self, rows: usize) {
        let fewest = rows * self.row_pixels();
        if let Some(grid) = &mut self.grid {
            grid.min_pixels = fewest.min(grid.max_pixels);
        }
    }

    /// Takes rows and pixels of images of any size from the same tower in an artifact.
    pub(crate) fn take_size_of(&mut self, other: &VisionConfig) {
        if let (Some(grid), Some(of_other)) = (&mut self.grid, &other.grid) {
            self.image_rows = other.image_rows;
            (grid.min_pixels, grid.max_pixels) = (of_other.min_pixels, of_other.max_pixels);
        }
    }

    /// Pixels of the part of an image that becomes a row.
    fn row_pixels(&self) -> usize {
        (self.row_size() * self.row_size()).max(1)
    }

    /// Elements of a row of an image where a step of a text model with a stream of `text_hidden` reads it: with its features.
    pub(crate) fn row_width(&self, text_hidden: usize) -> usize {
        text_hidden * (1 + self.grid.as_ref().map_or(0, |grid| grid.feature_layers.len()))
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
            ("image_size", if self.grid.is_some() { 1 } else { self.image_size }, limits::IMAGE_SIZE),
            ("mm_tokens_per_image", self.image_rows, if self.grid.is_some() { MAX_IMAGE_ROWS } else { MAX_ROWS }),
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
        if let Some(grid) = &self.grid {
            self.check_grid(grid)?;
        } else if rows * rows != self.image_rows || across == 0 || !across.is_multiple_of(rows) {
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

    fn check_grid(&self, grid: &GridConfig) -> Result<(), String> {
        let head_dim = self.hidden_size / self.heads;
        if !head_dim.is_multiple_of(4) {
            return Err(format!("heads of the vision tower have {head_dim} elements, expected a multiple of 4"));
        }
        if !(2..=limits::IMAGE_SIZE).contains(&grid.positions) {
            let found = grid.positions;
            return Err(format!(
                "the vision tower has {found} positions of a side, expected 2 to {}",
                limits::IMAGE_SIZE
            ));
        }
        let layers = &grid.feature_layers;
        let are_in_order =
            layers.is_sorted_by(|one, next| one < next) && layers.iter().all(|layer| *layer < self.layers);
        if layers.len() > MAX_FEATURES || !are_in_order {
            return Err(format!(
                "deepstack_visual_indexes is {layers:?}, expected at most {MAX_FEATURES} of {} layers in order",
                self.layers
            ));
        }
        let most = (self.image_rows + 1) * self.row_pixels() - 1;
        if !(1..=grid.max_pixels).contains(&grid.min_pixels) || grid.max_pixels > most {
            let (fewest, found) = (grid.min_pixels, grid.max_pixels);
            return Err(format!("an image has {fewest} to {found} pixels, expected 1 to {most}"));
        }
        Ok(())
    }

    /// Frequencies of the rotary embedding of images of any size, by transformers' `Qwen3VLVisionRotaryEmbedding`: a quarter of a head.
    pub(crate) fn grid_frequencies(&self) -> Vec<f64> {
        let half = self.hidden_size / self.heads / 2;
        (0..half / 2).map(|pair| GRID_ROPE_THETA.powf(-((2 * pair) as f64) / half as f64)).collect()
    }

    /// Places from left to right, or from top to bottom, that a patch may have: an image may be one row of the stream high.
    pub(crate) fn grid_places(&self) -> usize {
        self.image_rows * self.pooled_side()
    }

    /// The tensors in `ModelConfig::tensor_shapes`, of a text model with a stream of `text_hidden` elements.
    pub(super) fn add_shapes(&self, text_hidden: usize, shapes: &mut BTreeMap<String, Vec<usize>>) {
        if let Some(grid) = &self.grid {
            return self.add_grid_shapes(grid, text_hidden, shapes);
        }
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

    /// The same for images of any size.
    fn add_grid_shapes(&self, grid: &GridConfig, text_hidden: usize, shapes: &mut BTreeMap<String, Vec<usize>>) {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let mut add = |name: String, shape: &[usize]| {
            shapes.insert(format!("{}{name}", VisionConfig::PREFIX), shape.to_vec());
        };
        // The two frames of a video that a patch is made of; an image is both.
        for frame in 0..2 {
            add(format!("patch_embed.frame.{frame}.weight"), &[hidden, self.patch_width()]);
        }
        add("patch_embed.proj.bias".into(), &[hidden]);
        add("pos_embed.weight".into(), &[grid.positions * grid.positions, hidden]);
        let mut norm_and_linears = |norm: [&str; 2], width: usize, linears: [(&str, usize, usize); 2]| {
            let [block, norm] = norm;
            for kind in ["weight", "bias"] {
                add(format!("{block}.{norm}.{kind}"), &[width]);
            }
            for (name, rows, cols) in linears {
                add(format!("{block}.{name}.weight"), &[rows, cols]);
                add(format!("{block}.{name}.bias"), &[rows]);
            }
        };
        for layer in 0..self.layers {
            let block = &format!("blocks.{layer}");
            norm_and_linears(
                [block, "norm1"],
                hidden,
                [("attn.qkv", 3 * hidden, hidden), ("attn.proj", hidden, hidden)],
            );
            let mlp = [("mlp.linear_fc1", inner, hidden), ("mlp.linear_fc2", hidden, inner)];
            norm_and_linears([block, "norm2"], hidden, mlp);
        }
        let joined = self.patches_per_row() * hidden;
        let linears = [("linear_fc1", joined, joined), ("linear_fc2", text_hidden, joined)];
        norm_and_linears(["merger", "norm"], hidden, linears);
        for index in 0..grid.feature_layers.len() {
            norm_and_linears([&format!("deepstack_merger_list.{index}"), "norm"], joined, linears);
        }
    }

    /// What canonical names of its tensors begin with.
    const PREFIX: &str = "vision.";

    /// Whether a canonical tensor is one of a vision tower or projector.
    pub(crate) fn has(canonical: &str) -> bool {
        canonical.starts_with(VisionConfig::PREFIX)
    }
}
