//! Models of the Hugging Face Hub, in the cache that the Hub's own programs share: files are used whichever program has fetched
//! them.
//!
//! ```text
//! hf:owner/name@rev ──► /api/models/owner/name/revision/rev ──► commit, files with sizes and hashes
//!                                  │ selected: an artifact │ safetensors and what describes them │ GGUF
//!                                  ▼
//!                       /owner/name/resolve/commit/file ──► blobs/HASH.incomplete ──► blobs/HASH ──► snapshots/commit/file
//! ```
//!
//! Only two calls of the hub are needed. hf-hub 1.0 also makes them, with 220 crates in its tree, among them an upload client and a
//! storage protocol; this module makes them with the HTTP client of the registry's client, and with SHA-1, by which the hub names
//! small files.

mod cache;
mod client;
mod download;
mod reference;
mod select;
mod settings;

use std::path::PathBuf;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::client::{PARALLEL, runtime};
use crate::error::RegistryError;
use crate::hub::cache::Cache;
use crate::hub::client::Hub;
use crate::hub::select::{Selection, select};
use crate::progress::{Counter, TransferProgress};

pub use client::describe;
pub use reference::HubReference;
pub use settings::HubSettings;

/// A model that is in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// An artifact, a GGUF file (of a split model, the first), or a folder with safetensors.
    pub path: PathBuf,
    /// The commit of the repository.
    pub commit: String,
    /// Bytes that were received over the network for it.
    pub moved_bytes: u64,
}

/// The model of a reference in the cache, without a request to the hub: a fetched revision with all files that its model needs.
pub fn cached(reference: &HubReference, settings: &HubSettings) -> Option<HubModel> {
    let cache = Cache::of(reference, settings);
    let commit = cache.commit_of(reference.revision())?;
    let names = cache.names(&commit);
    let selection = select(&names, reference.part()).ok()?;
    let path = cache.snapshot(&commit).join(&selection.main);
    cache.is_complete(&commit, &selection).then_some(HubModel { path, commit, moved_bytes: 0 })
}

/// Fetches the current model of a reference, except files that are there. `on_wait` is called before a wait for another process.
///
/// # Errors
/// When the hub does not answer, refuses, or sends bytes with another hash, when the repository has no model or several, and when
/// the disk is full.
pub fn fetch(
    reference: &HubReference,
    settings: &HubSettings,
    progress: TransferProgress<'_>,
    on_wait: &(dyn Fn() + Sync),
) -> Result<HubModel, RegistryError> {
    let hub = Hub::open(reference, settings)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let repository = hub.repository().await?;
        let names: Vec<String> = repository.files.iter().map(|file| file.name.clone()).collect();
        let Selection { main, files, .. } =
            select(&names, reference.part()).map_err(|what| RegistryError::hub(reference, what))?;
        let files: Vec<_> = repository.files.iter().filter(|file| files.contains(&file.name)).collect();
        let cache = Cache::of(reference, settings);
        cache.check_space(&files)?;
        let counter = Counter::new(files.iter().map(|file| file.size).sum(), progress);
        let (hub, cache) = (&hub, &cache);
        let counted = &counter;
        let fetched = files.iter().map(|file| download::blob(hub, cache, &repository.commit, file, counted, on_wait));
        stream::iter(fetched).buffer_unordered(PARALLEL).try_collect::<()>().await?;
        // Names are made last, so that a snapshot made here has all files of its model.
        files.iter().try_for_each(|file| cache.link(&repository.commit, file))?;
        cache.set_commit(reference.revision(), &repository.commit)?;
        let path = cache.snapshot(&repository.commit).join(main);
        Ok(HubModel { path, commit: repository.commit, moved_bytes: counter.transfer().moved_bytes })
    })
}
