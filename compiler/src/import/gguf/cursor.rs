//! A position in the bytes of a GGUF file that never passes their end.

use std::path::Path;

use crate::error::{CompileError, Result};

/// Reads little-endian values one after the other; each read names what it reads, for the error when the file is cut.
#[derive(Clone)]
pub struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    /// `path` only names the file in errors.
    pub fn new(path: &'a Path, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { path, bytes, position: 0 }
    }

    /// Offset of the next byte, from the start of the bytes.
    pub fn position(&self) -> usize {
        self.position
    }

    pub fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A length of 8 bytes, then that many bytes of UTF-8.
    pub fn string(&mut self, what: &str) -> Result<&'a str> {
        let len_bytes = self.u64(what)?;
        let start = self.position;
        let text = self.take(len_bytes, what)?;
        std::str::from_utf8(text).map_err(|_| self.malformed(format!("{what} at byte {start} is not UTF-8")))
    }

    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("take gives as many bytes as were requested"))
    }

    /// The next `len_bytes` bytes. The length may come from the file, so it is checked before it is used.
    pub fn take(&mut self, len_bytes: u64, what: &str) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.position..];
        if len_bytes > rest.len() as u64 {
            return Err(self.malformed(format!(
                "{what} at byte {} needs {len_bytes} bytes, the file has {} left",
                self.position,
                rest.len()
            )));
        }
        let taken = &rest[..len_bytes as usize];
        self.position += taken.len();
        Ok(taken)
    }

    fn malformed(&self, what: String) -> CompileError {
        CompileError::malformed(self.path, what)
    }
}
