//! The kernels of a vision tower that no text model has, and how many rows of an image they can bind.

use unicorn_artifact::plan::MAX_BINDING_BYTES;
use unicorn_artifact::step::MAX_IMAGE_ROWS;
use unicorn_artifact::{ImageGrid, ImageSection};
use unicorn_kernels::elementwise::{ElementwiseOp, ElementwiseSpec};
use unicorn_kernels::flash::FlashSpec;
use unicorn_kernels::image_attention::ImageAttentionSpec;
use unicorn_kernels::image_pool::ImagePoolSpec;
use unicorn_kernels::image_positions::ImagePositionsSpec;
use unicorn_kernels::image_rope::ImageRopeSpec;
use unicorn_kernels::layer_norm::LayerNormSpec;
use unicorn_kernels::{KernelSpec, Number, Role};

use super::{Operand, Selector, stride};
use crate::error::{CompileError, Result};
use crate::fuse::{FusedNode, FusedOp};
use crate::graph::ValueId;
use crate::import::{ModelConfig, VisionConfig};

/// Lanes of a layer norm's workgroup: every device has as many, and whole subgroups of them.
const LAYER_NORM_LANES: usize = 128;

/// How the host passes images to the programs of a model; `None`: it has no vision tower.
pub(crate) fn image_section(config: &ModelConfig) -> Option<ImageSection> {
    let vision = config.vision.as_ref()?;
    Some(ImageSection {
        rows: vision.image_rows as u32,
        image_size: vision.image_size as u32,
        patch_size: vision.patch_size as u32,
        patch_stride: stride(vision.patch_width()) as u32,
        row_stride: stride(vision.row_width(config.hidden_size)) as u32,
        mean: vision.mean,
        deviation: vision.deviation,
        // As Gemma 3's processor has it; Qwen3-VL's adds nothing.
        around: if vision.grid.is_some() { "" } else { "\n\n" }.into(),
        begin_token: vision.begin_token,
        row_token: vision.row_token,
        end_token: vision.end_token,
        grid: vision.grid.as_ref().map(|grid| ImageGrid {
            side: vision.pooled_side() as u32,
            row_width: vision.row_width(config.hidden_size) as u32,
            min_pixels: grid.min_pixels as u32,
            max_pixels: grid.max_pixels as u32,
        }),
    })
}

/// Sets the fewest and the most rows of an image of any size: those requested, or those that the model has, as far as kernels can bind their
/// values.
pub(crate) fn limit_image_rows(config: &mut ModelConfig, fewest: Option<u32>, most: Option<u32>) -> Result<()> {
    let refused = |expected: &str| {
        let (option, which, found) = match most {
            Some(most) => ("image_max_tokens", "most", most),
            None => ("image_min_tokens", "fewest", fewest.unwrap_or_default()),
        };
        let what = format!("{which} tokens of an image are {found}, expected {expected}");
        Err(CompileError::Option { option, what })
    };
    let is_asked = fewest.is_some() || most.is_some();
    let limit = match &config.vision {
        None if is_asked => return refused("no number, since the model is compiled without a vision tower"),
        Some(vision) if vision.grid.is_none() && is_asked => {
            return refused(&format!("no number, since each image has {} in this model", vision.image_rows));
        }
        Some(vision) if vision.grid.is_some() => most_image_rows(config, vision),
        _ => return Ok(()),
    };
    let vision = config.vision.as_mut().expect("matched");
    let rows = most.map_or(vision.image_rows.min(limit), |rows| rows as usize);
    if !(1..=limit).contains(&rows) {
        return refused(&format!("1 to {limit} for this model"));
    }
    if rows != vision.image_rows {
        vision.set_most_rows(rows);
    }
    match fewest.map(|fewest| fewest as usize) {
        None => Ok(()),
        Some(fewest) if (1..=rows).contains(&fewest) => {
            vision.set_fewest_rows(fewest);
            Ok(())
        }
        Some(fewest) => {
            let what = format!("fewest tokens of an image are {fewest}, expected 1 to the most, {rows}");
            Err(CompileError::Option { option: "image_min_tokens", what })
        }
    }
}

/// Most rows that an image of any size can have in this model: a kernel binds each of the tower's values, and the rows with their features, as a whole.
fn most_image_rows(config: &ModelConfig, vision: &VisionConfig) -> usize {
    let of_patch = [3 * vision.hidden_size, vision.intermediate_size, vision.patch_width()];
    let of_patches = of_patch.map(|width| vision.patches_per_row() * stride(width));
    let widest = of_patches.into_iter().fold(stride(vision.row_width(config.hidden_size)), usize::max);
    (MAX_BINDING_BYTES as usize / size_of::<f32>() / widest).clamp(1, MAX_IMAGE_ROWS)
}

impl Selector<'_> {
    /// Patches, copied from where the host wrote them.
    pub(super) fn patches(&mut self, node: &FusedNode, out: ValueId) {
        let stride = self.stride_of(out);
        let spec = ElementwiseSpec {
            op: ElementwiseOp::Copy,
            width: self.graph.values[out.0].width,
            input_stride: stride,
            output_stride: stride,
            rows_per_token: self.graph.values[out.0].rows_per_token,
        };
        let rows = self.rows_of(out);
        self.push(node, KernelSpec::Elementwise(spec), rows, 0, |role| match role {
            Role::Input => Operand::HostRows { len: rows * stride },
            _ => Operand::Value(out),
        });
        self.quantize(node, out);
    }

    pub(super) fn layer_norm(&mut self, node: &FusedNode) {
        let FusedOp::LayerNorm { input, weight_and_bias, eps, out } = node.op else {
            unreachable!("called for layer norms")
        };
        let spec = LayerNormSpec {
            width: self.graph.values[out.0].width,
            stride: self.stride_of(out),
            eps: Number::new(eps),
            rows_per_token: self.graph.values[out.0].rows_per_token,
            lanes: LAYER_NORM_LANES,
            subgroup_size: self.target.subgroup_size,
        };
        let weights = Operand::Weight(self.weights.vector(weight_and_bias));
        self.push(node, KernelSpec::LayerNorm(spec), self.rows_of(out), 0, |role| match role {
            Role::Input => Operand::Value(input),
            Role::Bias => weights,
            _ => Operand::Value(out),
        });
        self.quantize(node, out);
    }

    pub(super) fn image_attention(&mut self, node: &FusedNode) {
        let FusedOp::ImageAttention { sources, n_heads, scale, out } = node.op else {
            unreachable!("called for attention of images")
        };
        let [query, key, value] = sources.map(|(value, _)| Operand::Value(value));
        let spec = ImageAttentionSpec {
            n_heads,
            head_dim: self.graph.values[out.0].width / n_heads,
            input_strides: sources.map(|(value, _)| self.stride_of(value)),
            input_firsts: sources.map(|(_, first)| first),
            output_stride: self.stride_of(out),
            scale: Number::new(scale),
            rows_per_token: self.graph.values[out.0].rows_per_token,
        };
        let spec = match self.patch_flash(&spec) {
            Some(flash) => KernelSpec::Flash(flash),
            None => KernelSpec::ImageAttention(spec),
        };
        self.push(node, spec, self.rows_of(out), 0, |role| match role {
            Role::Input | Role::InputQuads => query,
            Role::Second | Role::PatchKeys => key,
            Role::Third | Role::PatchValues => value,
            _ => Operand::Value(out),
        });
        self.quantize(node, out);
    }

    /// The same on matrix units, where the target has them.
    fn patch_flash(&self, spec: &ImageAttentionSpec) -> Option<FlashSpec> {
        let flash = FlashSpec::of_patches(spec, self.target.matrix?.flash, self.target.subgroup_size)?;
        (flash.tile.shared_bytes(&flash.cache) <= self.target.shared_memory_bytes).then_some(flash)
    }

    pub(super) fn image_pool(&mut self, node: &FusedNode) {
        let FusedOp::ImagePool { input, across, side, out } = node.op else { unreachable!("called for pools") };
        let spec = ImagePoolSpec { width: self.graph.values[out.0].width, stride: self.stride_of(out), across, side };
        self.push(node, KernelSpec::ImagePool(spec), self.rows_of(out), 0, |role| match role {
            Role::Input => Operand::Value(input),
            _ => Operand::Value(out),
        });
    }

    pub(super) fn image_positions(&mut self, node: &FusedNode) {
        let FusedOp::ImagePositions { input, learned, positions, side, out } = node.op else {
            unreachable!("called for positions")
        };
        let spec =
            ImagePositionsSpec { width: self.graph.values[out.0].width, stride: self.stride_of(out), positions, side };
        let learned = Operand::Weight(self.weights.vector(learned));
        self.push(node, KernelSpec::ImagePositions(spec), self.rows_of(out), 0, |role| match role {
            Role::Input => Operand::Value(input),
            Role::Bias => learned,
            _ => Operand::Value(out),
        });
    }

    pub(super) fn image_rope(&mut self, node: &FusedNode, input: ValueId, n_heads: usize, out: ValueId) {
        let vision = self.config.vision.as_ref().expect("a vision tower has rotated patches");
        let spec = ImageRopeSpec {
            n_heads,
            head_dim: self.graph.values[out.0].width / n_heads,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
            side: vision.pooled_side(),
        };
        let table = Operand::Weight(self.weights.image_rope());
        self.push(node, KernelSpec::ImageRope(spec), self.rows_of(out), 0, |role| match role {
            Role::Input => Operand::Value(input),
            Role::RopeTable => table,
            _ => Operand::Value(out),
        });
    }

    pub(super) fn image_features(&mut self, node: &FusedNode, input: ValueId, first: usize, out: ValueId) {
        let spec = ElementwiseSpec {
            op: ElementwiseOp::ImageFeatures { first, stride: self.image_stride() },
            width: self.graph.values[out.0].width,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
            rows_per_token: 1,
        };
        let len = self.kind.rows * self.image_stride();
        self.push(node, KernelSpec::Elementwise(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(input),
            Role::InputRows => Operand::HostRows { len },
            _ => Operand::Value(out),
        });
        self.quantize(node, out);
    }

    /// Elements between rows of images where a step reads them.
    pub(super) fn image_stride(&self) -> usize {
        let hidden = self.config.hidden_size;
        stride(self.config.vision.as_ref().map_or(hidden, |vision| vision.row_width(hidden)))
    }
}
