//! Artifacts that travel: cut into layers for an OCI registry, fetched and assembled again, and kept in a store that all pulls of a
//! user share.
//!
//! ```text
//! artifact ──► parts ──► layers ──► push ──► registry ──► pull ──► store ──► the same artifact
//!              head │ a section │ kernels of one target │ 32 MiB of weights
//! ```
//!
//! A layer is named by its SHA-256, so that what two artifacts have in common is sent, fetched and stored once: another set of kernels
//! for the same weights costs the kernels. A client fetches the kernels of its own target alone; the assembled artifact then has fewer
//! targets and is otherwise the same.
//!
//! This crate handles sections, registries and folders. It uses no models, devices, Vulkan or terminals, and the engine does not
//! depend on it.

#![deny(missing_docs)]

mod error;
mod progress;
mod sha256;

mod reference;

mod parts;

mod signing;

mod manifest;

mod assembly;

mod client;
mod credentials;

mod push;

mod store;

mod pull;

pub mod hub;

// The packages whose types are part of this one's public signatures, so that one dependency is enough.
pub use unicorn_artifact;

pub use error::RegistryError;
pub use manifest::Manifest;
pub use progress::{Transfer, TransferProgress};
pub use pull::{PullOptions, Pulled, Targets, pull};
pub use push::{CHUNK_BYTES, PushOptions, Pushed, push};
pub use reference::OciReference;
pub use signing::{Signed, SigningKey, Trust};
pub use store::{Removed, Store, Stored, copy_to, signature_of};

/// Checks that a manifest and the head of an artifact describe one artifact, and names its targets: all that is read of a registry's
/// answers before layers are fetched.
///
/// # Errors
/// In words, for bytes that do not.
#[doc(hidden)]
pub fn check_description(manifest: &[u8], head: &[u8]) -> Result<Vec<String>, String> {
    let manifest = Manifest::decode(manifest)?;
    Ok(assembly::Assembly::plan(head, &manifest.layers, |_| true)?.targets)
}
