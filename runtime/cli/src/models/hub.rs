//! Models of the Hugging Face Hub: fetched once into the folder that the hub's own programs share.

use indicatif::ProgressStyle;
use unicorn_artifact::account::size;
use unicorn_registry::Transfer;
use unicorn_registry::hub::{HubModel, HubReference, HubSettings, cached, fetch};

use crate::error::CliError;
use crate::terminal::output::{note, progress_bar};

/// Whether a text is meant as a name on the hub. Such a name is not a path: a folder called `hf:` is reached as `./hf:`.
pub fn is_reference(text: &str) -> bool {
    HubReference::is_meant(text)
}

/// Reads a name on the hub.
///
/// # Errors
/// When it is not a name on the hub.
pub fn reference(text: &str) -> Result<HubReference, CliError> {
    Ok(text.parse()?)
}

/// The model of a name, fetched if the cache lacks it. A name that the cache has needs no hub.
pub fn model(text: &str) -> Result<HubModel, CliError> {
    match cached(&reference(text)?, &settings()?) {
        Some(model) => Ok(model),
        None => fetched(text),
    }
}

/// Fetches what a name leads to now.
pub fn fetched(text: &str) -> Result<HubModel, CliError> {
    let (reference, settings) = (reference(text)?, settings()?);
    note(format_args!("fetching {reference}"));
    let bar = progress_bar().with_style(
        ProgressStyle::with_template("fetching {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            .expect("the template is a constant"),
    );
    let progress = |transfer: Transfer| {
        bar.set_length(transfer.total_bytes);
        bar.set_position(transfer.done_bytes);
    };
    let fetched = fetch(&reference, &settings, &progress, &|| note("another process fetches it; waiting for it"));
    bar.finish_and_clear();
    let model = fetched?;
    note(format_args!(
        "fetched {} of commit {} into {}",
        size(model.moved_bytes),
        model.commit,
        settings.cache.display()
    ));
    Ok(model)
}

fn settings() -> Result<HubSettings, CliError> {
    let none = "there is no folder for models of the hub: set HOME or HF_HOME to an absolute path";
    HubSettings::of_user().ok_or_else(|| CliError::new(none))
}
