//! The folder of the models with goldens.

use std::path::{Path, PathBuf};

/// `tests/models`, or the folder that `UNICORN_TEST_MODELS` names: a test program may run on a machine without the sources.
pub fn models() -> PathBuf {
    let elsewhere = std::env::var_os("UNICORN_TEST_MODELS").map(PathBuf::from);
    elsewhere.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("models"))
}
