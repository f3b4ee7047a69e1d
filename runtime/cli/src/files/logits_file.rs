//! Logits on disk: a safetensors file with the one tensor `logits`, f32 [rows, vocabulary].

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use tempfile::NamedTempFile;
use unicorn_artifact::MappedFile;

use crate::error::CliError;
use crate::files::output_file::partial_beside;
use crate::terminal::interrupt;

/// Writes row by row to a temporary file in the same folder: all rows at once can be larger than memory. Errors of rows are
/// returned at the end, because rows come from a callback that cannot fail.
pub struct LogitsWriter {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    written: io::Result<()>,
}

impl LogitsWriter {
    /// Begins a file of `n_rows` rows that will be named `path`.
    pub fn create(path: &Path, n_rows: usize, vocab_size: usize) -> Result<LogitsWriter, CliError> {
        let len_bytes = 4 * n_rows * vocab_size;
        let mut header = serde_json::json!({
            "logits": { "dtype": "F32", "shape": [n_rows, vocab_size], "data_offsets": [0, len_bytes] }
        })
        .to_string();
        // The format requires that data starts at a multiple of 8.
        header += &" ".repeat(header.len().next_multiple_of(8) - header.len());

        let partial = partial_beside(path).map_err(|error| CliError::at(path, error))?;
        interrupt::remove_partial(partial.path().to_owned());
        let mut file = BufWriter::new(partial);
        let length = (header.len() as u64).to_le_bytes();
        let written = file.write_all(&length).and_then(|()| file.write_all(header.as_bytes()));
        Ok(LogitsWriter { path: path.to_owned(), file, written })
    }

    pub fn row(&mut self, logits: &[f32]) {
        if self.written.is_ok() {
            self.written = self.file.write_all(bytemuck::cast_slice(logits));
        }
    }

    /// Gives the file its name.
    pub fn finish(self) -> Result<(), CliError> {
        let LogitsWriter { path, file, written } = self;
        let named = written.and_then(|()| {
            let file = file.into_inner().map_err(|error| error.into_error())?;
            file.persist(&path).map_err(|error| error.error)
        });
        named.map(drop).map_err(|error| CliError::at(&path, error))
    }
}

/// Rows of a finished file.
pub struct LogitsFile {
    file: MappedFile,
    data_offset: usize,
    n_rows: usize,
    vocab_size: usize,
}

impl LogitsFile {
    /// # Errors
    /// If the file cannot be read, is not safetensors, or holds other logits than f32 [rows, `vocab_size`].
    pub fn open(path: &Path, vocab_size: usize) -> Result<LogitsFile, CliError> {
        let at = |error: &dyn std::fmt::Display| CliError::at(path, error);
        let file = MappedFile::open(path).map_err(|error| at(&error))?;
        let (header_bytes, header) = SafeTensors::read_metadata(file.bytes())
            .map_err(|error| at(&format!("file is not safetensors: {error}")))?;
        let tensor = header.info("logits").ok_or_else(|| at(&"tensor \"logits\" is missing"))?;
        let n_rows = match *tensor.shape {
            [n_rows, columns] if columns == vocab_size => n_rows,
            ref shape => {
                return Err(at(&format!("tensor \"logits\" must have shape [rows, {vocab_size}], found {shape:?}")));
            }
        };
        if tensor.dtype != Dtype::F32 {
            return Err(at(&format!("tensor \"logits\" must be f32, found {:?}", tensor.dtype)));
        }
        let data_offset = LENGTH_BYTES + header_bytes + tensor.data_offsets.0;
        Ok(LogitsFile { file, data_offset, n_rows, vocab_size })
    }

    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Logits of row `index`, one a vocabulary entry.
    pub fn row(&self, index: usize) -> Vec<f32> {
        let row_bytes = 4 * self.vocab_size;
        let start = self.data_offset + index * row_bytes;
        let words = self.file.bytes()[start..start + row_bytes].chunks_exact(4);
        words.map(|word| f32::from_le_bytes(word.try_into().expect("chunks of 4 bytes"))).collect()
    }
}

/// Bytes of the header's length, which the file begins with.
const LENGTH_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_logits_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.safetensors");
        let mut writer = LogitsWriter::create(&path, 2, 3).unwrap();
        writer.row(&[1.0, 2.0, 3.0]);
        writer.row(&[4.0, 5.0, 6.0]);
        assert!(!path.exists());
        writer.finish().unwrap();

        let bytes = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let logits = tensors.tensor("logits").unwrap();
        assert_eq!((logits.dtype(), logits.shape()), (Dtype::F32, &[2, 3][..]));

        let file = LogitsFile::open(&path, 3).unwrap();
        assert_eq!((file.n_rows(), file.row(0), file.row(1)), (2, vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]));
        let error = LogitsFile::open(&path, 4).err().unwrap();
        assert!(matches!(error, CliError::Failed(message) if message.contains("shape [rows, 4], found [2, 3]")));
    }
}
