//! Pushes an artifact to a registry.

use std::path::Path;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use oci_client::RegistryOperation;
use unicorn_artifact::{ArtifactView, LicenseSection, MappedFile, Meta};

use crate::client::{Connection, PARALLEL, runtime};
use crate::error::RegistryError;
use crate::manifest::{self, Layer, MANIFEST_TYPE, MAX_MANIFEST_BYTES, Manifest};
use crate::parts::{self, Part};
use crate::progress::{Counter, TransferProgress, unreported};
use crate::reference::OciReference;
use crate::sha256;
use crate::signing::SigningKey;

/// Bytes of a chunk of weights, the most that an interrupted transfer loses for each of its connections.
pub const CHUNK_BYTES: u64 = 32 << 20;

/// How an artifact is pushed. [`push`] checks it.
///
/// ```
/// let options = unicorn_registry::PushOptions::default().with(|options| options.plain_http = true);
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct PushOptions<'a> {
    /// Whether the registry has no TLS. Default: it has TLS.
    pub plain_http: bool,
    /// Bytes of a chunk of weights, at least 1. Default: [`CHUNK_BYTES`]. Layers are shared only with artifacts that were pushed
    /// with the same size.
    pub chunk_bytes: u64,
    /// Signs the artifact. Default: none.
    pub signing_key: Option<&'a SigningKey>,
    /// Receives the progress. Default: it does nothing.
    pub progress: TransferProgress<'a>,
}

impl Default for PushOptions<'_> {
    fn default() -> Self {
        PushOptions { plain_http: false, chunk_bytes: CHUNK_BYTES, signing_key: None, progress: &unreported }
    }
}

impl PushOptions<'_> {
    /// These options with some of them changed, such as `|options| options.plain_http = true`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Checks that an artifact can be pushed with these options.
    ///
    /// # Errors
    /// [`RegistryError::Option`], naming the field.
    pub fn check(&self) -> Result<(), RegistryError> {
        match self.chunk_bytes {
            0 => Err(RegistryError::Option {
                option: "chunk_bytes",
                what: "chunks of weights have 0 bytes, expected at least 1".into(),
            }),
            _ => Ok(()),
        }
    }
}

/// Result of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Digest of the manifest, for references by digest: `sha256:` and 64 digits.
    pub digest: String,
    /// Length of the artifact.
    pub total_bytes: u64,
    /// Bytes that the registry did not have.
    pub moved_bytes: u64,
}

/// Sends the artifact at `path` to a registry, except for the layers that it has. After an interruption, another call continues;
/// the name is set when all layers are there.
///
/// # Errors
/// For options that do not [`check`](PushOptions::check), when the file is not an artifact, and when the registry refuses it.
pub fn push(path: &Path, reference: &OciReference, options: &PushOptions<'_>) -> Result<Pushed, RegistryError> {
    options.check()?;
    if reference.inner().tag().is_none() || reference.inner().digest().is_some() {
        let what = "reference is by digest".into();
        return Err(RegistryError::Reference { text: reference.to_string(), what });
    }
    let file = Arc::new(MappedFile::open(path).map_err(RegistryError::io(path))?);
    let view = ArtifactView::parse(file.bytes()).map_err(|error| (path, error))?;
    for section in view.weights() {
        section.verify().map_err(|error| (path, error))?;
    }
    let parts = parts::cut(file.bytes(), options.chunk_bytes).map_err(|error| (path, error))?;
    let (meta, license) = (view.meta.clone(), view.license.clone());
    drop(view);
    let signature = options.signing_key.map(|key| {
        let hash = sha256::hash_in(file.file(), 0, file.bytes().len() as u64).map_err(RegistryError::io(path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok::<_, RegistryError>(key.sign(&name, &hash))
    });
    let signature = signature.transpose()?;
    runtime()?.block_on(push_parts(&file, reference, parts, (&meta, license.as_ref()), signature, options))
}

async fn push_parts(
    file: &Arc<MappedFile>,
    reference: &OciReference,
    parts: Vec<Part>,
    (meta, license): (&Meta, Option<&LicenseSection>),
    signature: Option<Vec<u8>>,
    options: &PushOptions<'_>,
) -> Result<Pushed, RegistryError> {
    let connection = &Connection::open(reference, options.plain_http).await?;
    let in_words = |error| RegistryError::registry(reference, &error);
    let authorised = connection.client.auth(reference.inner(), &connection.auth, RegistryOperation::Push).await;
    authorised.map_err(in_words)?;

    let total_bytes = parts.iter().map(|part| part.range.end - part.range.start).sum();
    let counter = &Counter::new(total_bytes, options.progress);
    let sent = parts.into_iter().map(|part| async move {
        let layer = push_part(connection, reference, file.clone(), part, counter).await;
        layer.map_err(|error| RegistryError::registry(reference, &error))
    });
    let layers: Vec<Layer> = stream::iter(sent).buffered(PARALLEL).try_collect().await?;

    let signatures: Vec<_> = signature.iter().map(|bundle| manifest::signature_layer(bundle)).collect();
    for (layer, bundle) in signatures.iter().zip(signature) {
        push_blob(connection, reference, &layer.digest, bundle).await.map_err(in_words)?;
    }
    let config = manifest::config(meta, license, &layers, &signatures);
    let manifest = Manifest::new(&config, layers, signatures);
    push_blob(connection, reference, &manifest.config.digest, config).await.map_err(in_words)?;
    let body = manifest.encode();
    if body.len() > MAX_MANIFEST_BYTES {
        let what = format!("manifest would have {} bytes, expected at most {MAX_MANIFEST_BYTES}", body.len());
        return Err(RegistryError::content(reference, what));
    }
    let digest = sha256::digest(&body);
    let content_type = MANIFEST_TYPE.parse().expect("the type is a constant");
    connection.client.push_manifest_raw(reference.inner(), body, content_type).await.map_err(in_words)?;
    Ok(Pushed { digest, total_bytes, moved_bytes: counter.transfer().moved_bytes })
}

async fn push_part(
    connection: &Connection,
    reference: &OciReference,
    file: Arc<MappedFile>,
    part: Part,
    counter: &Counter<'_>,
) -> oci_client::errors::Result<Layer> {
    let size = part.range.end - part.range.start;
    let range = part.range.start as usize..part.range.end as usize;
    // Hashing takes long, so it runs on other threads than those that wait for the registry.
    let hashed = tokio::task::spawn_blocking(move || {
        let digest = sha256::digest(&file.bytes()[range.clone()]);
        (file, range, digest)
    });
    let (file, range, digest) = hashed.await.expect("hashing does not panic");
    if connection.client.blob_exists(reference.inner(), &digest).await? {
        counter.kept(size);
    } else {
        let bytes = file.bytes()[range.clone()].to_vec();
        file.release(range);
        connection.client.push_blob(reference.inner(), bytes, &digest).await?;
        counter.moved(size);
    }
    Ok(Layer { name: part.name, digest, size })
}

/// Sends a small blob unless it is there.
async fn push_blob(
    connection: &Connection,
    reference: &OciReference,
    digest: &str,
    bytes: Vec<u8>,
) -> oci_client::errors::Result<()> {
    if !connection.client.blob_exists(reference.inner(), digest).await? {
        connection.client.push_blob(reference.inner(), bytes, digest).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_without_bytes_are_refused_before_anything_is_read() {
        let reference = "oci://registry.example/models/smol:1".parse().unwrap();
        let options = PushOptions::default().with(|options| options.chunk_bytes = 0);
        let refused = push(Path::new("missing"), &reference, &options).unwrap_err();
        assert!(matches!(refused, RegistryError::Option { option: "chunk_bytes", .. }), "{refused}");
        assert_eq!(refused.to_string(), "chunks of weights have 0 bytes, expected at least 1");
        assert!(matches!(
            push(Path::new("missing"), &reference, &PushOptions::default()),
            Err(RegistryError::Io { .. })
        ));
    }
}
