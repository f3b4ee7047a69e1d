//! Distribution of artifacts: cut into layers for an OCI registry, fetched and assembled again, and kept in a store that all pulls
//! of a user share.
//!
//! ```text
//! artifact ──► parts ──► layers ──► push ──► registry ──► pull ──► store ──► the same artifact
//!              head │ a section │ kernels of one target │ 32 MiB of weights
//! ```
//!
//! A layer is named by its SHA-256, so that equal layers of two artifacts are sent, fetched and stored once: for another set of
//! kernels with the same weights, only the kernels are transferred. A client fetches the kernels of its own target only; the
//! assembled artifact then has fewer targets and is otherwise the same.
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

pub use client::install_tls;
pub use error::RegistryError;
pub use manifest::Manifest;
pub use progress::{Transfer, TransferProgress};
pub use pull::{PullOptions, Pulled, Targets, pull};
pub use push::{CHUNK_BYTES, PushOptions, Pushed, push};
pub use reference::OciReference;
pub use signing::{Signed, SigningKey, Trust};
pub use store::{Removed, Store, Stored, copy_to, signature_of};

/// Checks that a manifest and the head of an artifact describe one artifact, and returns the names of its targets: the only answers
/// of a registry that are parsed before layers are fetched.
///
/// # Errors
/// A message for people, for bytes that do not.
#[doc(hidden)]
pub fn check_description(manifest: &[u8], head: &[u8]) -> Result<Vec<String>, String> {
    let manifest = Manifest::decode(manifest)?;
    Ok(assembly::Assembly::plan(head, &manifest.layers, |_| true)?.targets)
}
