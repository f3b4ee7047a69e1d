//! The small files of a model's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::json::parse_json;
use super::source_bytes::{SourceBytes, SourcePart};
use crate::error::{CompileError, Result};

/// The small files of a folder. Each file that was read is kept for the hash of the source.
pub(super) struct SourceFiles {
    pub folder: PathBuf,
    read: BTreeMap<String, Vec<u8>>,
}

impl SourceFiles {
    pub fn new(folder: &Path) -> SourceFiles {
        SourceFiles { folder: folder.to_owned(), read: BTreeMap::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn required(&mut self, name: &str) -> Result<Vec<u8>> {
        let path = self.path(name);
        let bytes = std::fs::read(&path).map_err(CompileError::io(&path))?;
        self.read.insert(name.to_owned(), bytes.clone());
        Ok(bytes)
    }

    /// `None` when there is no such file.
    pub fn optional(&mut self, name: &str) -> Result<Option<Vec<u8>>> {
        if self.path(name).exists() { self.required(name).map(Some) } else { Ok(None) }
    }

    /// `None` when there is no such file.
    pub fn optional_json(&mut self, name: &str) -> Result<Option<Value>> {
        let bytes = self.optional(name)?;
        bytes.map(|bytes| parse_json(&self.path(name), &bytes)).transpose()
    }

    /// Each small file and then each weight file, both by name.
    pub fn into_source(self, weights: impl Iterator<Item = (String, SourcePart)>) -> SourceBytes {
        let small = self.read.into_iter().map(|(name, content)| (name, SourcePart::Read(content)));
        SourceBytes::Named(small.chain(weights).collect())
    }
}
