//! A vision tower's tensors as folders have them: names of transformers 4 and 5, the weights of the convolution over patches, and Gemma
//! 3's projection, which is stored transposed.

use super::config::ModelConfig;
use super::source_layout::{Elements, Gaps};
use super::transposed::Stack;
use super::vision_config::{CHANNELS, VisionConfig};

/// The canonical name of a tensor of a vision tower or projector; `None`: it is another tensor, or one that nothing reads.
pub(super) fn canonical(source_name: &str) -> Option<String> {
    let name = source_name.strip_prefix("model.").unwrap_or(source_name);
    if let Some(rest) = name.strip_prefix("multi_modal_projector.") {
        return Some(format!("vision.projector.{}", if rest == PROJECTION { OUR_PROJECTION } else { rest }));
    }
    if let Some(rest) = name.strip_prefix("visual.") {
        return Some(format!("vision.{rest}"));
    }
    let rest = name.strip_prefix("vision_tower.")?;
    let rest = rest.strip_prefix("vision_model.").unwrap_or(rest);
    // The head that pools a whole image is for SigLIP's own training; position ids are numbers in order.
    let is_read = !rest.starts_with("head.") && rest != "embeddings.position_ids";
    is_read.then(|| format!("vision.{rest}"))
}

/// The folder's name of the projection, and ours.
const PROJECTION: &str = "mm_input_projection_weight";
const OUR_PROJECTION: &str = "mm_input_projection.weight";

/// The content of the folder's tensor: a matrix whose elements are in another order, or in more axes.
pub(super) fn stack(config: &ModelConfig, canonical: &str) -> Option<Stack> {
    let vision = config.vision.as_ref()?;
    let (width, hidden) = (vision.patch_width(), vision.hidden_size);
    if vision.grid.is_some() {
        return frames(vision, canonical);
    }
    let (shape, elements) = match canonical.strip_prefix("vision.")? {
        "embeddings.patch_embedding.weight" => {
            let shape = vec![hidden, CHANNELS, vision.patch_size, vision.patch_size];
            (shape, Elements { first: 0, row: width, column: 1, gaps: None })
        }
        "projector.mm_input_projection.weight" => {
            let text = config.hidden_size;
            (vec![hidden, text], Elements { first: 0, row: 1, column: text, gaps: None })
        }
        _ => return None,
    };
    Some(Stack { shape, parts: vec![(canonical.to_owned(), elements)] })
}

const FRAMES_TOGETHER: &str = "vision.patch_embed.proj.weight";

/// The convolution over one frame of a patch, which GGUF files have as a tensor of its own; `None`: ours is another tensor.
pub(super) fn frame(config: &ModelConfig, ours: &str) -> Option<Stack> {
    let vision = config.vision.as_ref()?;
    let (side, width) = (vision.patch_size, vision.patch_width());
    let elements = Elements { first: 0, row: width, column: 1, gaps: None };
    ours.starts_with("vision.patch_embed.frame.").then(|| Stack {
        shape: vec![vision.hidden_size, CHANNELS, side, side],
        parts: vec![(ours.to_owned(), elements)],
    })
}

/// The convolution over the two frames of a patch, frame by frame of each channel.
fn frames(vision: &VisionConfig, canonical: &str) -> Option<Stack> {
    const FRAMES: usize = 2;
    let (side, width) = (vision.patch_size, vision.patch_width());
    let run = side * side;
    let of_frame = |frame: usize| {
        let gaps = Some(Gaps { run, len: (FRAMES - 1) * run });
        let elements = Elements { first: frame * run, row: FRAMES * width, column: 1, gaps };
        (format!("vision.patch_embed.frame.{frame}.weight"), elements)
    };
    (canonical == FRAMES_TOGETHER).then(|| Stack {
        shape: vec![vision.hidden_size, CHANNELS, FRAMES, side, side],
        parts: (0..FRAMES).map(of_frame).collect(),
    })
}
