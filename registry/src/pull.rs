//! Pulls an artifact from a registry into the store.
//!
//! The file is assembled in the store, each layer at its own place, so that no byte is stored twice. The hash of a layer is known
//! before its first byte arrives: an interrupted pull finds its layers again by hashing the file's content, and equal layers are
//! copied from other artifacts of the store.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use oci_client::client::BlobResponse;
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OciDescriptor;
use sha2::{Digest, Sha256};
use unicorn_artifact::account::size;
use unicorn_artifact::codec::MAX_SECTION_BYTES;
use unicorn_artifact::hash::hash;
use unicorn_artifact::header::{MAX_HEAD_BYTES, hex};
use unicorn_artifact::write::new_file_permissions;
use unicorn_artifact::{ArtifactView, ReadError};

use crate::assembly::Assembly;
use crate::client::{Connection, PARALLEL, runtime};
use crate::error::{RegistryError, is_transient};
use crate::manifest::{Layer, MANIFEST_TYPE, Manifest};
use crate::parts::PartName;
use crate::progress::{Counter, TransferProgress, unreported};
use crate::reference::OciReference;
use crate::sha256;
use crate::signing::{MAX_BUNDLE_BYTES, Signed, Trust};
use crate::store::{Record, Store, Stored, StoredLayer, signature_of};

/// Requests for one layer without received bytes after which the pull gives up; bytes that were pulled until then are kept.
const ATTEMPTS: u32 = 5;
/// Delay before the first of them is repeated; doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// Which kernels are fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// The kernels of all targets: the file is the one that was pushed.
    All,
    /// The kernels of these targets.
    Named(Vec<String>),
    /// The kernels of the first of the artifact's targets that is one of these.
    FirstOf(Vec<String>),
}

/// How an artifact is pulled. [`pull`] checks it.
///
/// ```
/// use unicorn_registry::{PullOptions, Targets};
///
/// let options = PullOptions::default().with(|options| options.targets = Targets::Named(vec!["rdna3".into()]));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct PullOptions<'a> {
    /// Whether the registry has no TLS. Default: it has TLS.
    pub plain_http: bool,
    /// Which kernels are fetched, in addition to those that the store has under the same name. Default: those of all targets.
    pub targets: Targets,
    /// Signers of which one must have signed it; the kernels of all targets, which a signature covers, are then fetched. Default:
    /// it needs no signature.
    pub trust: Option<&'a Trust>,
    /// Receives the progress. Default: it does nothing.
    pub progress: TransferProgress<'a>,
    /// Called before a wait for another process that pulls the same artifact. Default: it does nothing.
    pub on_wait: &'a dyn Fn(),
}

impl Default for PullOptions<'_> {
    fn default() -> Self {
        PullOptions { plain_http: false, targets: Targets::All, trust: None, progress: &unreported, on_wait: &|| () }
    }
}

impl PullOptions<'_> {
    /// These options with some of them changed, such as `|options| options.plain_http = true`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Checks that an artifact can be pulled with these options.
    ///
    /// # Errors
    /// [`RegistryError::Option`], naming the field.
    pub fn check(&self) -> Result<(), RegistryError> {
        match &self.targets {
            Targets::Named(names) | Targets::FirstOf(names) if names.is_empty() => Err(RegistryError::Option {
                option: "targets",
                what: "targets are none, expected at least one, or all".into(),
            }),
            _ => Ok(()),
        }
    }
}

/// Result of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The artifact in the store.
    pub stored: Stored,
    /// Bytes that were received over the network for it.
    pub moved_bytes: u64,
    /// The verified signature, if one was required.
    pub signed: Option<Signed>,
}

/// Fetches the artifact of a reference into the store, except for the layers that are there.
///
/// # Errors
/// For options that do not [`check`](PullOptions::check), when the registry does not answer or sends bytes that do not match its
/// manifest, when they are not an artifact, and when the disk is full.
pub fn pull(store: &Store, reference: &OciReference, options: &PullOptions<'_>) -> Result<Pulled, RegistryError> {
    options.check()?;
    let runtime = runtime()?;
    let pull = Pull {
        store,
        reference,
        options,
        connection: runtime.block_on(Connection::open(reference, options.plain_http))?,
    };
    runtime.block_on(pull.run())
}

struct Pull<'a> {
    store: &'a Store,
    reference: &'a OciReference,
    options: &'a PullOptions<'a>,
    connection: Connection,
}

impl Pull<'_> {
    async fn run(&self) -> Result<Pulled, RegistryError> {
        let (manifest, digest) = self.manifest().await?;
        let wanted = self.wanted(&manifest)?;
        let head = self.head(&manifest).await?;
        let assembly = Assembly::plan(&head, &manifest.layers, |target| wanted.iter().any(|name| name == target));
        let assembly = assembly.map_err(|what| self.content(what))?;
        let record =
            Record { manifest: digest, targets: assembly.targets.clone(), layers: stored_layers(&manifest, &assembly) };
        let reference = self.reference.to_string();
        if let Some(id) = self.store.assembled(&record.manifest, &record.targets) {
            let path = self.store.artifact_path(&id);
            let signed = self.options.trust.map(|trust| trust.verify(&path, &signature_of(&path))).transpose()?;
            return Ok(Pulled {
                stored: self.store.keep(None, None, &id, &reference, &record)?,
                moved_bytes: 0,
                signed,
            });
        }

        let key = sha256::digest(format!("{} {}", record.manifest, record.targets.join(" ")).as_bytes());
        let key = sha256::digits(&key).expect("it was just made");
        let (path, file) = self.store.partial(key, self.options.on_wait)?;
        let file = Arc::new(file);
        // Before the weights, so that an untrusted signer is refused early.
        let signature = self.signature(&manifest).await?;
        let moved_bytes = self.fill(&path, &file, &manifest, &assembly).await?;
        let finished = self.finish(&file, &assembly);
        let (id, signed) = match finished.and_then(|id| Ok((id, self.signed(&file, &assembly, signature.as_deref())?)))
        {
            Ok(finished) => finished,
            Err(error) => {
                // Every layer has its digest, so that another attempt would fail as well: the file is removed.
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
        };
        // A file with fewer targets than were signed has no signature.
        let signature = signature.as_deref().filter(|_| assembly.is_whole());
        Ok(Pulled { stored: self.store.keep(Some(&path), signature, &id, &reference, &record)?, moved_bytes, signed })
    }

    /// The bundle of the artifact's signature, if it has one.
    async fn signature(&self, manifest: &Manifest) -> Result<Option<Vec<u8>>, RegistryError> {
        let Some(descriptor) = manifest.signatures.first() else {
            return match self.options.trust {
                Some(_) => Err(self.content("artifact has no signature, expected one of those that are trusted")),
                None => Ok(None),
            };
        };
        let layer = Layer { name: PartName::Signature, digest: descriptor.digest.clone(), size: descriptor.size };
        let bundle = self.small(&layer, MAX_BUNDLE_BYTES).await?;
        if let Some(trust) = self.options.trust {
            trust.signer(&bundle).map_err(|what| self.content(what))?;
        }
        Ok(Some(bundle))
    }

    /// Verifies the signature of the assembled file, if one is required.
    fn signed(
        &self,
        file: &File,
        assembly: &Assembly,
        signature: Option<&[u8]>,
    ) -> Result<Option<Signed>, RegistryError> {
        let (Some(trust), Some(signature)) = (self.options.trust, signature) else { return Ok(None) };
        let hash = sha256::hash_in(file, 0, assembly.len_bytes).map_err(RegistryError::io(self.store.folder()))?;
        trust.verify_bytes(signature, &self.reference.to_string(), &hash).map(Some).map_err(|what| self.content(what))
    }

    async fn manifest(&self) -> Result<(Manifest, String), RegistryError> {
        let Connection { client, auth } = &self.connection;
        let inner = self.reference.inner();
        let (bytes, _) =
            client.pull_manifest_raw(inner, auth, &[MANIFEST_TYPE]).await.map_err(|error| self.registry(&error))?;
        let digest = sha256::digest(&bytes);
        if inner.digest().is_some_and(|expected| expected != digest) {
            return Err(self.content(format!("manifest has {digest}, expected the digest of the reference")));
        }
        Ok((Manifest::decode(&bytes).map_err(|what| self.content(what))?, digest))
    }

    /// Names of the targets whose kernels are fetched.
    fn wanted(&self, manifest: &Manifest) -> Result<Vec<String>, RegistryError> {
        let names = manifest.layers.iter().filter_map(|layer| match &layer.name {
            PartName::Kernels(name) => Some(name.clone()),
            _ => None,
        });
        let found: Vec<String> = names.collect();
        let (mut wanted, asked) = match &self.options.targets {
            Targets::All => return Ok(found),
            _ if self.options.trust.is_some() => return Ok(found),
            Targets::Named(names) => (names.clone(), names),
            Targets::FirstOf(names) => {
                (found.iter().find(|name| names.contains(name)).into_iter().cloned().collect(), names)
            }
        };
        if wanted.is_empty() || wanted.iter().any(|name| !found.contains(name)) {
            return Err(RegistryError::Target {
                reference: self.reference.to_string(),
                wanted: asked.join(", "),
                found: found.join(", "),
            });
        }
        // Kernels for other devices of this user are kept when the artifact is pulled again.
        let before = self.store.find(&self.reference.to_string()).map_or(Vec::new(), |stored| stored.targets);
        wanted.extend(before.into_iter().filter(|name| found.contains(name)));
        Ok(wanted)
    }

    async fn head(&self, manifest: &Manifest) -> Result<Vec<u8>, RegistryError> {
        let layer = manifest.layers.first().filter(|layer| layer.name == PartName::Head);
        let layer = layer.ok_or_else(|| self.content("manifest does not begin with the head of an artifact"))?;
        self.small(layer, MAX_HEAD_BYTES as u64).await
    }

    /// Fetches a layer into memory.
    async fn small(&self, layer: &Layer, most_bytes: u64) -> Result<Vec<u8>, RegistryError> {
        if layer.size > most_bytes {
            return Err(
                self.content(format!("layer {} has {} bytes, expected at most {most_bytes}", layer.name, layer.size))
            );
        }
        let mut content = Vec::new();
        let counter = Counter::new(layer.size, &|_| ());
        self.fetch(layer, &counter, |at, bytes| {
            content.truncate(at as usize);
            content.extend(bytes);
            Ok(())
        })
        .await?;
        Ok(content)
    }

    /// Writes every layer to its place in the file; returns the bytes that were received over the network.
    async fn fill(
        &self,
        path: &Path,
        file: &Arc<File>,
        manifest: &Manifest,
        assembly: &Assembly,
    ) -> Result<u64, RegistryError> {
        let in_file = |error| RegistryError::io(path)(error);
        let before = file.metadata().map_err(in_file)?;
        let is_resumed = before.len() == assembly.len_bytes;
        let present_bytes = before.blocks() * 512;
        if let Some(free) =
            self.store.free_bytes().filter(|free| *free < assembly.len_bytes.saturating_sub(present_bytes))
        {
            let folder = self.store.folder().to_owned();
            return Err(RegistryError::Space { folder, needed: size(assembly.len_bytes), free: size(free) });
        }
        file.set_len(assembly.len_bytes).map_err(in_file)?;

        let total_bytes = assembly.places.iter().map(|&(number, _)| manifest.layers[number].size).sum();
        let (counter, known) = (&Counter::new(total_bytes, self.options.progress), &self.store.layers());
        let filled = assembly.places.iter().map(|&(number, at)| async move {
            let layer = &manifest.layers[number];
            if (is_resumed && holds(file, layer, at).await) || copy_known(known, file, layer, at).await {
                counter.kept(layer.size);
                return Ok(());
            }
            self.fetch(layer, counter, |done, bytes| file.write_all_at(bytes, at + done)).await
        });
        stream::iter(filled).buffer_unordered(PARALLEL).try_collect::<()>().await?;
        Ok(counter.transfer().moved_bytes)
    }

    /// Fetches and hashes a layer, and passes each piece and its place to `put`. After an interruption, only the rest is requested.
    async fn fetch(
        &self,
        layer: &Layer,
        counter: &Counter<'_>,
        mut put: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<(), RegistryError> {
        let (mut hasher, mut done) = (Sha256::new(), 0);
        let (mut attempt, mut wait) = (0, FIRST_WAIT);
        loop {
            let begun = done;
            match self.fetch_from(layer, counter, &mut hasher, &mut done, &mut put).await {
                Ok(()) => break,
                Err(Failure::Here(error)) => return Err(RegistryError::io(self.store.folder())(error)),
                Err(Failure::Length(found)) => {
                    return Err(
                        self.content(format!("layer {} has {found} bytes, expected {}", layer.name, layer.size))
                    );
                }
                Err(Failure::There(error)) => {
                    // Any received bytes count as progress.
                    (attempt, wait) = if done > begun { (1, FIRST_WAIT) } else { (attempt + 1, wait) };
                    if !is_transient(&error) || attempt == ATTEMPTS {
                        return Err(self.registry(&error));
                    }
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
            }
        }
        let found = sha256::finish(hasher);
        if found != layer.digest {
            counter.lost(done);
            return Err(self.content(format!(
                "layer {} has {found}, expected {}: the registry's copy is damaged; push the artifact again",
                layer.name, layer.digest
            )));
        }
        Ok(())
    }

    /// One request: the rest of a layer from byte `done` on.
    async fn fetch_from(
        &self,
        layer: &Layer,
        counter: &Counter<'_>,
        hasher: &mut Sha256,
        done: &mut u64,
        put: &mut impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let size = i64::try_from(layer.size).unwrap_or(i64::MAX);
        let descriptor = OciDescriptor { digest: layer.digest.clone(), size, ..OciDescriptor::default() };
        let (client, inner) = (&self.connection.client, self.reference.inner());
        let mut stream = match *done {
            0 => client.pull_blob_stream(inner, &descriptor).await.map_err(Failure::There)?.stream,
            from => {
                match client.pull_blob_stream_partial(inner, &descriptor, from, None).await.map_err(Failure::There)? {
                    BlobResponse::Partial(partial) => partial.stream,
                    // This registry does not support ranges.
                    BlobResponse::Full(full) => {
                        counter.lost(std::mem::take(done));
                        *hasher = Sha256::new();
                        full.stream
                    }
                }
            }
        };
        while *done < layer.size {
            let piece = match stream.next().await {
                Some(Ok(piece)) => piece,
                Some(Err(error)) => return Err(Failure::There(OciDistributionError::IoError(error))),
                None => return Err(Failure::There(OciDistributionError::IoError(io::ErrorKind::UnexpectedEof.into()))),
            };
            if piece.len() as u64 > layer.size - *done {
                return Err(Failure::Length(format!("at least {}", *done + piece.len() as u64)));
            }
            put(*done, &piece).map_err(Failure::Here)?;
            hasher.update(&piece);
            *done += piece.len() as u64;
            counter.moved(piece.len() as u64);
        }
        Ok(())
    }

    /// Writes the parts that no layer holds, checks the artifact as a reader does, and returns its ID.
    fn finish(&self, file: &File, assembly: &Assembly) -> Result<String, RegistryError> {
        let in_store = |error| RegistryError::io(self.store.folder())(error);
        let mut hashes = Vec::new();
        for (_, section) in &assembly.by_target {
            let section_bytes = section.end - section.start;
            if section_bytes > MAX_SECTION_BYTES as u64 {
                return Err(
                    self.content(format!("kernels have {section_bytes} bytes, expected at most {MAX_SECTION_BYTES}"))
                );
            }
            file.write_all_at(&(assembly.targets.len() as u64).to_le_bytes(), section.start).map_err(in_store)?;
            let mut bytes = vec![0; section_bytes as usize];
            file.read_exact_at(&mut bytes, section.start).map_err(in_store)?;
            hashes.push(hash(&bytes));
        }
        let head = assembly.head(&hashes);
        file.write_all_at(&head, 0).map_err(in_store)?;
        file.set_permissions(new_file_permissions()).and_then(|()| file.sync_all()).map_err(in_store)?;

        let unsound = |error: ReadError| match error {
            ReadError::File(error) => in_store(error),
            error => self.content(error),
        };
        let view = ArtifactView::read(file).map_err(unsound)?;
        view.weights().iter().try_for_each(|section| section.verify_in(file)).map_err(unsound)?;
        let names: Vec<&str> = view.kernels.targets.iter().map(|target| &target.name[..]).collect();
        if names != assembly.targets {
            let (found, expected) = (names.join(", "), assembly.targets.join(", "));
            return Err(self.content(format!("kernels are those of {found}, expected {expected}")));
        }
        Ok(hex(&head[32..64]))
    }

    fn content(&self, what: impl ToString) -> RegistryError {
        RegistryError::content(self.reference, what)
    }

    fn registry(&self, error: &OciDistributionError) -> RegistryError {
        RegistryError::registry(self.reference, error)
    }
}

/// Why a request ended early.
enum Failure {
    /// This machine's file system.
    Here(io::Error),
    /// The registry, or the network.
    There(OciDistributionError),
    /// More bytes than the layer has.
    Length(String),
}

fn stored_layers(manifest: &Manifest, assembly: &Assembly) -> Vec<StoredLayer> {
    let layer = |&(number, offset_bytes): &(usize, u64)| {
        let Layer { digest, size, .. } = &manifest.layers[number];
        StoredLayer { digest: digest.clone(), offset_bytes, size: *size }
    };
    assembly.places.iter().map(layer).collect()
}

/// Whether the file has the layer's content at its place.
async fn holds(file: &Arc<File>, layer: &Layer, at: u64) -> bool {
    let (file, expected, size) = (file.clone(), layer.digest.clone(), layer.size);
    let hashed =
        tokio::task::spawn_blocking(move || sha256::digest_in(&file, at, size).is_ok_and(|found| found == expected));
    hashed.await.unwrap_or(false)
}

/// Copies a layer from an artifact that has it. File systems that can share blocks do so.
async fn copy_known(
    known: &BTreeMap<String, (PathBuf, StoredLayer)>,
    file: &Arc<File>,
    layer: &Layer,
    at: u64,
) -> bool {
    let Some((path, from)) = known.get(&layer.digest).filter(|(_, from)| from.size == layer.size) else { return false };
    let (path, from, file_at) = (path.clone(), from.clone(), file.clone());
    let copied = tokio::task::spawn_blocking(move || {
        let mut source = File::open(path)?;
        source.seek(SeekFrom::Start(from.offset_bytes))?;
        // Opened again, because users of one handle share its position.
        let mut destination = File::options()
            .write(true)
            .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&*file_at)))?;
        destination.seek(SeekFrom::Start(at))?;
        io::copy(&mut io::Read::take(&mut source, from.size), &mut destination)
    });
    // The other artifact may have been damaged, or removed meanwhile: the copy is checked.
    matches!(copied.await, Ok(Ok(bytes)) if bytes == layer.size) && holds(file, layer, at).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_of_no_target_is_refused_before_the_registry_is_asked() {
        let reference = "oci://registry.example/models/smol:1".parse().unwrap();
        for none in [Targets::Named(Vec::new()), Targets::FirstOf(Vec::new())] {
            let options = PullOptions::default().with(|options| options.targets = none);
            let refused = pull(&Store::at("missing".into()), &reference, &options).unwrap_err();
            assert_eq!(refused.to_string(), "targets are none, expected at least one, or all");
        }
        PullOptions::default().check().unwrap();
    }
}
