//! The bytes that a model was read from, and their hash.

use std::sync::Arc;

use unicorn_artifact::MappedFile;

/// Everything that a model was read from, hashed on request, which reads every weight once.
pub(super) enum SourceBytes {
    /// A GGUF file as one sequence of bytes, or a config.json without a model.
    Whole(SourcePart),
    /// Files by name, each behind its name and both lengths.
    Named(Vec<(String, SourcePart)>),
}

pub(super) enum SourcePart {
    Read(Vec<u8>),
    Mapped(Arc<MappedFile>),
}

pub(super) fn hash_named(files: &[(String, SourcePart)], hasher: &mut blake3::Hasher) {
    for (name, part) in files {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        hasher.update(&(part.bytes().len() as u64).to_le_bytes());
        part.hash_into(hasher);
    }
}

impl SourcePart {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            SourcePart::Read(bytes) => bytes,
            SourcePart::Mapped(map) => map.bytes(),
        }
    }

    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        match self {
            SourcePart::Read(bytes) => {
                hasher.update(bytes);
            }
            SourcePart::Mapped(map) => map.hash_into(hasher, crate::hash_on_all_cores),
        }
    }
}
