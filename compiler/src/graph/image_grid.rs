//! What makes rows of the stream of an image of any size, as Qwen3-VL does: an encoder of patches whose places are learned and rotated, and
//! mergers of squares of them, one behind the last layer and one behind each layer with features.
//!
//! ```text
//! patches ─► two matrices, summed + bias + position ─► layers ─► merger ─► row, then features
//!            each: x + attention(rotated(norm(x))), x + mlp(norm(x))     merger: four patches ─► matrix ─► GELU ─► matrix
//! ```

use unicorn_kernels::Activation;

use super::image::plain;
use super::{Builder, ColumnsBlock, ColumnsPart, Op, ValueId};
use crate::import::{GridConfig, VisionConfig};

impl Builder<'_> {
    /// The rows that an image becomes, each with its features behind it.
    pub(super) fn grid_rows(&mut self, vision: &VisionConfig, grid: &GridConfig) -> ValueId {
        let (hidden, inner, per_row) = (vision.hidden_size, vision.intermediate_size, vision.patches_per_row());
        let mut stream = self.placed_patches(vision, grid);
        let mut features = Vec::new();
        for layer in 0..vision.layers {
            let name = |part: &str| format!("blocks.{layer}.{part}");
            let normed = self.layer_norm(stream, &name("norm1"), vision.eps);
            let qkv = self.image_linear(normed, &name("attn.qkv"), 3 * hidden);
            let (n_heads, scale) = (vision.heads, ((hidden / vision.heads) as f32).powf(-0.5));
            let rotated = self.push_rows("image.rotated", 2 * hidden, per_row, |out| Op::ImageRope {
                input: qkv,
                n_heads: 2 * n_heads,
                out,
            });
            let sources = [(rotated, 0), (rotated, hidden), (qkv, 2 * hidden)];
            let mixed = self.push_rows("image.mixed", hidden, per_row, |out| Op::ImageAttention {
                sources,
                n_heads,
                scale,
                out,
            });
            let right = self.image_linear(mixed, &name("attn.proj"), hidden);
            stream = self.push_rows("image.stream", hidden, per_row, |out| Op::Add { left: stream, right, out });
            let normed = self.layer_norm(stream, &name("norm2"), vision.eps);
            let input = self.image_linear(normed, &name("mlp.linear_fc1"), inner);
            let activation = Activation::GeluTanh;
            let active = self.push_rows("image.active", inner, per_row, |out| Op::Activate { input, activation, out });
            let right = self.image_linear(active, &name("mlp.linear_fc2"), hidden);
            stream = self.push_rows("image.stream", hidden, per_row, |out| Op::Add { left: stream, right, out });
            if grid.feature_layers.contains(&layer) {
                let merger = format!("deepstack_merger_list.{}", features.len());
                let joined = self.joined_patches(stream, vision);
                let normed = self.layer_norm(joined, &format!("{merger}.norm"), vision.eps);
                features.push(self.merged(normed, &merger));
            }
        }
        let normed = self.layer_norm(stream, "merger.norm", vision.eps);
        let joined = self.joined_patches(normed, vision);
        let rows = self.merged(joined, "merger");
        if features.is_empty() {
            return rows;
        }
        let width = self.config.hidden_size;
        let parts = [rows].into_iter().chain(features).map(|value| ColumnsPart { value, first: 0, width }).collect();
        let blocks = vec![ColumnsBlock { n_heads: 1, parts }];
        let all = vision.row_width(width);
        self.push("image.rows_and_features", all, |out| Op::HeadColumns { blocks, out })
    }

    /// Patches after the first matrices, with their positions.
    fn placed_patches(&mut self, vision: &VisionConfig, grid: &GridConfig) -> ValueId {
        let (hidden, per_row) = (vision.hidden_size, vision.patches_per_row());
        let patches = self.push_rows("image.patches", vision.patch_width(), per_row, |out| Op::Patches { out });
        let [left, right] =
            [0, 1].map(|frame| self.image_product(patches, &format!("patch_embed.frame.{frame}"), hidden));
        let sum = self.push_rows("image.frames", hidden, per_row, |out| Op::Add { left, right, out });
        let bias = plain("patch_embed.proj.bias");
        let input = self.push_rows("image.embedded", hidden, per_row, |out| Op::Bias { input: sum, bias, out });
        let (learned, positions, side) = (plain("pos_embed.weight"), grid.positions, vision.pooled_side());
        let push = |out| Op::ImagePositions { input, learned, positions, side, out };
        self.push_rows("image.stream", hidden, per_row, push)
    }

    /// The patches of each row, one behind the other.
    fn joined_patches(&mut self, value: ValueId, vision: &VisionConfig) -> ValueId {
        let (width, n_heads) = (vision.hidden_size, vision.patches_per_row());
        let blocks = vec![ColumnsBlock { n_heads, parts: vec![ColumnsPart { value, first: 0, width }] }];
        self.push("image.joined", n_heads * width, |out| Op::HeadColumns { blocks, out })
    }

    /// A row of the stream's width of a row's patches.
    fn merged(&mut self, joined: ValueId, merger: &str) -> ValueId {
        let width = self.width(joined);
        let input = self.image_linear(joined, &format!("{merger}.linear_fc1"), width);
        let activation = Activation::Gelu;
        let active = self.push("image.active", width, |out| Op::Activate { input, activation, out });
        self.image_linear(active, &format!("{merger}.linear_fc2"), self.config.hidden_size)
    }

    /// What a block adds to the stream, with the features of a step's rows of images, if the tower has any for this layer.
    pub(super) fn with_image_features(&mut self, input: ValueId) -> ValueId {
        let layer = self.layer.expect("inside a layer");
        let grid = self.config.vision.as_ref().and_then(|vision| vision.grid.as_ref());
        if grid.is_none_or(|grid| layer >= grid.feature_layers.len()) {
            return input;
        }
        let hidden = self.config.hidden_size;
        self.push("featured", hidden, |out| Op::ImageFeatures { input, first: (layer + 1) * hidden, out })
    }
}
