//! Small JSON files that this program keeps: read with a limit, written whole or not at all.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::CliError;

/// Largest file that is read; larger than any that is written.
const MAX_BYTES: u64 = 4 << 20;

/// # Errors
/// When there is no such file, or it is too large or not what it should be.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other(format!("is not a file of at most {MAX_BYTES} bytes")));
    }
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// Renames the file into place, so that no reader gets a part of it.
///
/// # Errors
/// When it cannot be written to the folder or the disk.
pub fn write(path: &Path, value: &impl Serialize) -> Result<(), CliError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let text = serde_json::to_string_pretty(value).expect("a record is plain data") + "\n";
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    });
    written.map(drop).map_err(|error| CliError::at(path, error))
}

/// 32 bytes of 64 lower-case hexadecimal digits.
///
/// # Errors
/// When it is something else.
pub fn key(digits: &str) -> io::Result<[u8; 32]> {
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.as_bytes().as_chunks::<2>().0.iter().map(byte).collect();
    let key = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let is_it = |key: &[u8; 32]| unicorn_artifact::header::hex(key) == digits;
    key.filter(is_it).ok_or_else(|| io::Error::other("its key is not 64 hexadecimal digits"))
}
