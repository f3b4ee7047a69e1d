//! Images in texts: where they stand, and the tokens that are there for the model.

use unicorn_artifact::ImageSection;
use unicorn_runtime::Image;

use crate::error::TextError;

/// Stands for an image in a message's content: the character that Unicode has for objects in a text.
pub const IMAGE_MARK: char = '\u{fffc}';

/// A text without marks of images, for what people write.
pub fn without_marks(text: &str) -> String {
    text.replace(IMAGE_MARK, "")
}

/// The tokens of a text with images in the places of [`IMAGE_MARK`], in order. `encode` makes tokens of a piece of text, which follows
/// nothing if its second argument is true.
///
/// # Errors
/// [`TextError::Images`] where the text has not a place for each image, or the model takes none; and errors of `encode`.
pub fn encode_with_images(
    text: &str,
    images: &[Image],
    section: Option<&ImageSection>,
    mut encode: impl FnMut(&str, bool) -> Result<Vec<u32>, TextError>,
) -> Result<Vec<u32>, TextError> {
    if images.is_empty() {
        return encode(&without_marks(text), true);
    }
    let pieces: Vec<&str> = text.split(IMAGE_MARK).collect();
    let Some(section) = section.filter(|_| pieces.len() == images.len() + 1) else {
        return Err(TextError::Images { images: images.len(), places: section.map(|_| pieces.len() - 1) });
    };
    let mut tokens = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let (before, behind) = (index > 0, index < images.len());
        let around = |is_there: bool| if is_there { section.around.as_str() } else { "" };
        let piece = format!("{}{piece}{}", around(before), around(behind));
        tokens.extend(encode(&piece, index == 0)?);
        if let Some(image) = images.get(index) {
            tokens.push(section.begin_token);
            tokens.extend(image.tokens());
            tokens.push(section.end_token);
        }
    }
    Ok(tokens)
}
