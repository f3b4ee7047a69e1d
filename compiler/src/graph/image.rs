//! What makes rows of the stream of an image: patches, SigLIP's encoder, means over squares of patches, Gemma's projector.
//!
//! ```text
//! patches ─► matrix + bias + position ─► layers ─► norm ─► mean of squares ─► RMS norm ─► matrix ─► rows of the text model's stream
//!            each: x + attention(norm(x)), x + mlp(norm(x))
//! ```

use unicorn_kernels::Activation;

use super::{Builder, MatrixRef, Op, ValueId, VectorRef};
use crate::import::VisionConfig;

impl Builder<'_> {
    /// The rows that an image becomes.
    pub(super) fn image_rows(&mut self, vision: &VisionConfig) -> ValueId {
        let (hidden, inner) = (vision.hidden_size, vision.intermediate_size);
        let patches_per_row = vision.patches_per_row();
        let patches = self.push_rows("image.patches", vision.patch_width(), patches_per_row, |out| Op::Patches { out });
        let embedded = self.image_linear(patches, "embeddings.patch_embedding", hidden);
        let bias = plain("embeddings.position_embedding.weight");
        let mut stream =
            self.push_rows("image.stream", hidden, patches_per_row, |out| Op::RowBias { input: embedded, bias, out });
        for layer in 0..vision.layers {
            let name = |part: &str| format!("encoder.layers.{layer}.{part}");
            let normed = self.layer_norm(stream, &name("layer_norm1"), vision.eps);
            let [query, key, value] = ["q_proj", "k_proj", "v_proj"]
                .map(|part| self.image_linear(normed, &name(&format!("self_attn.{part}")), hidden));
            let scale = ((hidden / vision.heads) as f32).powf(-0.5);
            let n_heads = vision.heads;
            let sources = [query, key, value].map(|source| (source, 0));
            let push = |out| Op::ImageAttention { sources, n_heads, scale, out };
            let mixed = self.push_rows("image.mixed", hidden, patches_per_row, push);
            let right = self.image_linear(mixed, &name("self_attn.out_proj"), hidden);
            stream =
                self.push_rows("image.stream", hidden, patches_per_row, |out| Op::Add { left: stream, right, out });
            let normed = self.layer_norm(stream, &name("layer_norm2"), vision.eps);
            let input = self.image_linear(normed, &name("mlp.fc1"), inner);
            let activation = Activation::GeluTanh;
            let active =
                self.push_rows("image.active", inner, patches_per_row, |out| Op::Activate { input, activation, out });
            let right = self.image_linear(active, &name("mlp.fc2"), hidden);
            stream =
                self.push_rows("image.stream", hidden, patches_per_row, |out| Op::Add { left: stream, right, out });
        }
        let input = self.layer_norm(stream, "post_layernorm", vision.eps);
        let (across, side) = (vision.rows_across(), vision.pooled_side());
        let pooled = self.push("image.pooled", hidden, |out| Op::ImagePool { input, across, side, out });
        let weight = VectorRef { offset: self.config.norm_offset, ..plain("projector.mm_soft_emb_norm.weight") };
        let input = self.push("image.normed", hidden, |out| Op::Norm { input: pooled, weight, out });
        let (rows, cols) = (self.config.hidden_size, hidden);
        let matrix = MatrixRef { tensor: tensor("projector.mm_input_projection.weight"), rows, cols, experts: None };
        self.push("image.rows", rows, |out| Op::MatMul { input, matrix, out })
    }

    pub(super) fn layer_norm(&mut self, input: ValueId, name: &str, eps: f32) -> ValueId {
        let (weight, bias) = (plain(&format!("{name}.weight")), plain(&format!("{name}.bias")));
        let (width, per_row) = (self.width(input), self.values[input.0].rows_per_token);
        self.push_rows("image.normed", width, per_row, |out| Op::LayerNorm { input, weight, bias, eps, out })
    }

    /// A matrix and a bias, of each patch or row.
    pub(super) fn image_linear(&mut self, input: ValueId, name: &str, rows: usize) -> ValueId {
        let per_row = self.values[input.0].rows_per_token;
        let bias = plain(&format!("{name}.bias"));
        let short = name.rsplit_once('.').map_or(name, |(_, last)| last);
        let product = self.image_product(input, name, rows);
        self.push_rows(&format!("image.{short}_biased"), rows, per_row, |out| Op::Bias { input: product, bias, out })
    }

    /// A matrix, of each patch or row.
    pub(super) fn image_product(&mut self, input: ValueId, name: &str, rows: usize) -> ValueId {
        let (cols, per_row) = (self.width(input), self.values[input.0].rows_per_token);
        let matrix = MatrixRef { tensor: tensor(&format!("{name}.weight")), rows, cols, experts: None };
        let short = name.rsplit_once('.').map_or(name, |(_, last)| last);
        self.push_rows(&format!("image.{short}"), rows, per_row, |out| Op::MatMul { input, matrix, out })
    }
}

fn tensor(name: &str) -> String {
    format!("vision.{name}")
}

pub(super) fn plain(name: &str) -> VectorRef {
    VectorRef { tensor: tensor(name), offset: 0.0, scale: 1.0 }
}
