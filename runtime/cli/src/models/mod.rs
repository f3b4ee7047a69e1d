//! What a command's MODEL is: an artifact, a GGUF file or Hugging Face folder that is compiled once for this machine's device
//! and kept in the user's cache folder, a name in a registry, from which it is fetched once into the user's store, or a name on the Hugging
//! Face Hub, from which it is fetched once into the hub's own cache folder, and compiled if it is not an artifact.
//!
//! ```text
//! MODEL ──► is it hf:…? ── yes ──► in the hub's cache? ── no ──► fetched there ──► its file or folder is MODEL
//!             │ no
//!             ▼
//!           is it oci://…? ── yes ──► in the store, with kernels for the device? ── no ──► fetched there ──► that path
//!             │ no
//!             ▼
//!           is it an artifact? ── yes ──────────────────────────────────────────────► its own path
//!             │ no
//!             └─► device ──► target ──► key of source, target and compiler ──► in the cache? ── yes ──► that path
//!                                                                               └── no ──► compiled there
//! ```

mod cache;
mod compile;
pub mod hub;
mod identity;
pub mod pulled;
mod unusable;

use std::path::{Path, PathBuf};

use unicorn_artifact::view::is_artifact;

use crate::args::LoadArgs;
use crate::error::CliError;

pub use unusable::check_is_artifact;

/// What a command gives to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Text, for which the model needs a tokenizer.
    Text,
    /// Token ids, or nothing.
    Tokens,
}

/// The artifact of `model`, for a command that runs it on the device that `load` chooses. Compiles a model that is not compiled
/// yet, which takes seconds to minutes and is announced.
///
/// # Errors
/// When `model` is neither an artifact nor a model that can be compiled, or lacks the tokenizer that `input` needs, and as for a compile.
pub fn artifact(model: &Path, load: &LoadArgs, input: Input) -> Result<PathBuf, CliError> {
    check(model)?;
    if let Some(name) = name_in_registry(model) {
        check_is_whole(model, load)?;
        return pulled::artifact(name, load);
    }
    if let Some(name) = name_on_hub(model) {
        return compiled(&hub::model(name)?.path, load, input);
    }
    compiled(model, load, input)
}

/// The artifact of a file or folder.
///
/// # Errors
/// When it lacks the tokenizer that `input` needs, and as for a compile.
pub fn compiled(model: &Path, load: &LoadArgs, input: Input) -> Result<PathBuf, CliError> {
    if !is_artifact(model) {
        return compile::for_this_machine(model, load, input);
    }
    check_is_whole(model, load)?;
    Ok(model.to_owned())
}

/// Checks that an artifact is given without options of a vision tower, which are a compile's.
fn check_is_whole(artifact: &Path, load: &LoadArgs) -> Result<(), CliError> {
    let Some(option) = load.option_of_vision() else { return Ok(()) };
    Err(CliError::new(format!(
        "{} is an artifact, and {option} has an effect only when a model is compiled: give it with the GGUF file or the folder",
        artifact.display()
    )))
}

/// Checks what can be seen without reading all of `model`.
///
/// # Errors
/// When it is neither an artifact nor a model that can be compiled.
pub fn check(model: &Path) -> Result<(), CliError> {
    if let Some(name) = name_on_hub(model) {
        return hub::reference(name).map(drop);
    }
    match name_in_registry(model) {
        Some(name) => pulled::reference(name).map(drop),
        None if is_artifact(model) => Ok(()),
        None => unusable::check_is_model(model),
    }
}

fn name_on_hub(model: &Path) -> Option<&str> {
    model.to_str().filter(|text| hub::is_reference(text))
}

fn name_in_registry(model: &Path) -> Option<&str> {
    model.to_str().filter(|text| pulled::is_reference(text))
}
