//! The models with goldens.

use std::path::{Path, PathBuf};

/// `tests/models`, or the folder that `UNICORN_TEST_MODELS` names: a test program may run on a machine without the sources.
pub fn models() -> PathBuf {
    let elsewhere = std::env::var_os("UNICORN_TEST_MODELS").map(PathBuf::from);
    elsewhere.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("models"))
}

/// The folders of the tiny models, sorted by name.
///
/// # Panics
/// When there are too few of them.
pub fn tiny_models() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(models().join("tiny")).expect("tests/models/tiny");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    folders.sort();
    assert!(folders.len() >= 40, "a golden model of each family, found {}", folders.len());
    folders
}

/// A number that a model keeps when other models are added: the sum of the bytes of its folder's name.
///
/// # Panics
/// When the path ends without a name.
pub fn number(folder: &Path) -> usize {
    let name = folder.file_name().expect("a name").as_encoded_bytes();
    name.iter().map(|&byte| usize::from(byte)).sum()
}

/// About one of `every` models, the same ones when others are added; all where [`everything`] is asked for.
pub fn one_of(every: usize) -> impl Iterator<Item = PathBuf> {
    let every = if everything() { 1 } else { every };
    tiny_models().into_iter().filter(move |folder| (number(folder) + 1).is_multiple_of(every))
}

/// Whether `UNICORN_EVERY_CASE` is set: each test takes each model, format and kernel that it has, which takes hours on two cores.
pub fn everything() -> bool {
    std::env::var_os("UNICORN_EVERY_CASE").is_some()
}
