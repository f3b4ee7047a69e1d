//! A vision tower's tensors as Gemma 3's folders have them: names of transformers 4 and 5, the weights of the convolution over patches,
//! and a projection that is stored transposed.

use super::config::ModelConfig;
use super::source_layout::Elements;
use super::transposed::Stack;
use super::vision_config::CHANNELS;

/// The canonical name of a tensor of a vision tower or projector; `None`: it is another tensor, or one that nothing reads.
pub(super) fn canonical(source_name: &str) -> Option<String> {
    let name = source_name.strip_prefix("model.").unwrap_or(source_name);
    if let Some(rest) = name.strip_prefix("multi_modal_projector.") {
        return Some(format!("vision.projector.{}", if rest == PROJECTION { OUR_PROJECTION } else { rest }));
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
    let vision = config.vision?;
    let (width, hidden) = (vision.patch_width(), vision.hidden_size);
    let (shape, elements) = match canonical.strip_prefix("vision.")? {
        "embeddings.patch_embedding.weight" => {
            let shape = vec![hidden, CHANNELS, vision.patch_size, vision.patch_size];
            (shape, Elements { first: 0, row: width, column: 1 })
        }
        "projector.mm_input_projection.weight" => {
            let text = config.hidden_size;
            (vec![hidden, text], Elements { first: 0, row: 1, column: text })
        }
        _ => return None,
    };
    Some(Stack { shape, parts: vec![(canonical.to_owned(), elements)] })
}
