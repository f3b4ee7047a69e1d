//! Models in a registry: fetched once, with the kernels for this machine's device, and kept in the user's store.

use std::path::PathBuf;

use indicatif::ProgressStyle;
use unicorn_artifact::account::size;
use unicorn_registry::{OciReference, PullOptions, Pulled, Store, Targets, Trust};

use super::compile;
use crate::args::LoadArgs;
use crate::error::CliError;
use crate::terminal::output::{note, progress_bar};

/// Whether a text is meant as a name in a registry. Such a name is not a path: a folder called `oci:` is reached as `./oci:`.
pub fn is_reference(text: &str) -> bool {
    OciReference::is_meant(text)
}

/// Reads a name in a registry.
///
/// # Errors
/// When it is not a name in a registry.
pub fn reference(text: &str) -> Result<OciReference, CliError> {
    Ok(text.parse()?)
}

/// The user's store.
///
/// # Errors
/// When there is no place for it.
pub fn store() -> Result<Store, CliError> {
    Store::of_user()
        .ok_or_else(|| CliError::new("there is no folder for artifacts: set HOME or XDG_DATA_HOME to an absolute path"))
}

/// The stored artifact of a name, with kernels for the device that `load` chooses; fetched if the store lacks it or them. A name
/// that the store has needs no registry.
pub fn artifact(text: &str, load: &LoadArgs) -> Result<PathBuf, CliError> {
    let name = reference(text)?.to_string();
    let targets = match &load.target {
        Some(target) => Targets::Named(vec![target.clone()]),
        None => targets(load)?,
    };
    let (Targets::Named(fitting) | Targets::FirstOf(fitting)) = &targets else { unreachable!("all is not asked for") };
    let stored = store()?.find(&name).filter(|stored| stored.targets.iter().any(|target| fitting.contains(target)));
    match stored {
        Some(stored) => Ok(stored.path),
        None => Ok(pull(text, targets, None, load.plain_http)?.stored.path),
    }
}

/// The targets that fit the device that `load` chooses.
pub fn targets(load: &LoadArgs) -> Result<Targets, CliError> {
    compile::fitting_targets(load).map(Targets::FirstOf)
}

/// Fetches the artifact that a name refers to now; with `trust`, only one with a trusted signature.
pub fn pull(text: &str, targets: Targets, trust: Option<&Trust>, plain_http: bool) -> Result<Pulled, CliError> {
    let (reference, store) = (reference(text)?, store()?);
    note(format_args!("fetching {reference}"));
    let bar = progress_bar().with_style(
        ProgressStyle::with_template("fetching {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            .expect("the template is a constant"),
    );
    let progress = |transfer: unicorn_registry::Transfer| {
        bar.set_length(transfer.total_bytes);
        bar.set_position(transfer.done_bytes);
    };
    let on_wait = || note("another process fetches it; waiting for it");
    let mut options = PullOptions::default();
    (options.plain_http, options.targets, options.trust) = (plain_http, targets, trust);
    (options.progress, options.on_wait) = (&progress, &on_wait);
    let pulled = unicorn_registry::pull(&store, &reference, &options);
    bar.finish_and_clear();
    let pulled = pulled?;
    let (stored, moved) = (&pulled.stored, size(pulled.moved_bytes));
    note(format_args!("fetched {moved} of {}, with kernels for {}", size(stored.bytes), stored.targets.join(", ")));
    Ok(pulled)
}
