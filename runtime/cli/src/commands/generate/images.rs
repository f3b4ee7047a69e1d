//! Pictures that a prompt is about: files that `--image` or a message of a chat names.

use std::path::{Path, PathBuf};

use unicorn_runtime::{Image, Model};
use unicorn_text::{Picture, TextError};

use crate::error::CliError;

/// Largest file of a picture that is read, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reads and decodes pictures.
///
/// # Errors
/// For the first file that cannot be read or is no picture, naming it.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Picture>, CliError> {
    let one = |path: &PathBuf| {
        let len_bytes = std::fs::metadata(path).map_err(|error| CliError::at(path, error))?.len();
        if len_bytes > MAX_FILE_BYTES {
            let what = format!("file has {len_bytes} bytes, expected a picture of at most {MAX_FILE_BYTES}");
            return Err(CliError::new(format!("{}: {what}", path.display())));
        }
        let bytes = std::fs::read(path).map_err(|error| CliError::at(path, error))?;
        Picture::decode(&bytes).map_err(|error| CliError::new(format!("{}: {error}", path.display())))
    };
    paths.iter().map(one).collect()
}

/// The pictures as the model has them in a text.
///
/// # Errors
/// When the model takes no images, or the device fails.
pub fn encoded(model: &Model, pictures: &[Picture]) -> Result<Vec<Image>, CliError> {
    if pictures.is_empty() {
        return Ok(Vec::new());
    }
    let Some(section) = model.image() else {
        let name = &model.meta().model.name;
        return Err(CliError::new(format!(
            "{name} takes text alone: --image needs a model with a vision tower, such as Gemma 3 from 4B on or Qwen3-VL, compiled from its \
             Hugging Face folder without --no-vision"
        )));
    };
    let encoded = |picture: &Picture| Ok(model.encode_image(&picture.patches(section)?)?);
    pictures.iter().map(encoded).collect::<Result<_, TextError>>().map_err(CliError::from)
}

/// Extensions of files that are taken as pictures in a message.
const EXTENSIONS: [&str; 6] = ["png", "jpg", "jpeg", "webp", "gif", "bmp"];

/// The files of pictures that a message names, as `ollama run` takes them, and its text without them. A path may be in quotes, or have
/// backslashes before its spaces, as terminals paste it.
pub fn named_in(message: &str, exists: impl Fn(&Path) -> bool) -> (Vec<PathBuf>, String) {
    let (mut paths, mut text, mut rest) = (Vec::new(), String::new(), message);
    while !rest.is_empty() {
        let begins_word = text.is_empty() || text.ends_with(char::is_whitespace);
        if let Some((path, len)) = word(rest).filter(|_| begins_word)
            && is_picture(&path)
            && exists(&path)
        {
            paths.push(path);
            rest = rest[len..].trim_start();
            continue;
        }
        let next = rest.chars().next().expect("it is not empty");
        text.push(next);
        rest = &rest[next.len_utf8()..];
    }
    (paths, text.trim_end().to_owned())
}

fn is_picture(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_lowercase);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
}

/// The path that the text begins with, and the bytes that it takes there.
fn word(text: &str) -> Option<(PathBuf, usize)> {
    let mut chars = text.char_indices();
    if let Some((_, quote @ ('"' | '\''))) = chars.next() {
        let end = text[1..].find(quote)?;
        return Some((text[1..1 + end].into(), end + 2));
    }
    let (mut path, mut is_escaped) = (String::new(), false);
    for (at, char) in text.char_indices() {
        match char {
            '\\' if !is_escaped => {
                is_escaped = true;
                continue;
            }
            _ if char.is_whitespace() && !is_escaped => return Some((path.into(), at)),
            _ => path.push(char),
        }
        is_escaped = false;
    }
    Some((path.into(), text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_pictures_that_exist() {
        let named = |message: &str| {
            let (paths, text) = named_in(message, |path| path != Path::new("gone.png"));
            (paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(), text)
        };
        assert_eq!(named("what is in ./a.png ?"), (vec!["./a.png".into()], "what is in ?".into()));
        assert_eq!(
            named(r"/pictures/a\ b.JPG and 'c d.webp'"),
            (vec!["/pictures/a b.JPG".into(), "c d.webp".into()], "and".into())
        );
        assert_eq!(named("is gone.png there? a.txt, b.png."), (vec![], "is gone.png there? a.txt, b.png.".into()));
        assert_eq!(named("it's \"quoted"), (vec![], "it's \"quoted".into()));
    }
}
