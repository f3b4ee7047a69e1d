//! `logits`: what the model makes of given tokens, for comparison with another implementation.

use std::fs::Permissions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use tempfile::NamedTempFile;

use super::args::LogitsArgs;
use super::error::CliError;
use super::load::load;

pub fn run(args: &LogitsArgs) -> Result<(), CliError> {
    let bytes = std::fs::read(&args.tokens).map_err(|error| CliError::at(&args.tokens, error))?;
    let tokens = read_tokens(&bytes).map_err(|error| CliError::at(&args.tokens, error))?;
    let model = load(&args.artifact, &args.load, Some(tokens.len() as u32))?;
    let mut session = model.session()?;
    if let Some(chunk) = args.chunk {
        session.set_chunk_tokens(chunk);
    }

    let output = |error| CliError::at(&args.output, error);
    let mut writer =
        LogitsWriter::create(&args.output, tokens.len(), model.meta().model.vocab_size as usize).map_err(output)?;
    let mut written = Ok(());
    session.feed_with_logits(&tokens, &mut |_, logits| {
        if written.is_ok() {
            written = writer.row(logits);
        }
    })?;
    written.map_err(output)?;
    writer.finish(&args.output).map_err(output)
}

/// Tensor `tokens` of a safetensors file: i32, i64 or u32, one dimension, at least one token.
fn read_tokens(bytes: &[u8]) -> Result<Vec<u32>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| format!("file is not safetensors: {error}"))?;
    let tensor = file
        .tensor("tokens")
        .map_err(|_| format!("tensor \"tokens\" is missing, found {}", file.names().join(", ")))?;
    if tensor.shape().len() != 1 || tensor.shape()[0] == 0 {
        return Err(format!("tensor \"tokens\" must have one dimension and an element, found {:?}", tensor.shape()));
    }
    let data = tensor.data();
    let ids: Vec<i64> = match tensor.dtype() {
        Dtype::I32 => words(data).map(|word| i64::from(i32::from_le_bytes(word))).collect(),
        Dtype::U32 => words(data).map(|word| i64::from(u32::from_le_bytes(word))).collect(),
        Dtype::I64 => words(data).map(i64::from_le_bytes).collect(),
        other => return Err(format!("tensor \"tokens\" must be i32, i64 or u32, found {other:?}")),
    };
    ids.into_iter().map(|id| u32::try_from(id).map_err(|_| format!("token id {id} is not an id"))).collect()
}

/// Little-endian numbers of N bytes each.
fn words<const N: usize>(data: &[u8]) -> impl Iterator<Item = [u8; N]> {
    data.chunks_exact(N).map(|word| word.try_into().expect("chunks of exactly N bytes"))
}

/// A safetensors file with the one tensor `logits`, f32 [rows, vocabulary], written row by row beside its final name:
/// all rows at once can be larger than memory.
struct LogitsWriter {
    file: BufWriter<NamedTempFile>,
}

impl LogitsWriter {
    fn create(path: &Path, n_rows: usize, vocab_size: usize) -> std::io::Result<LogitsWriter> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // As readable as any file that a user makes; temporary files are private otherwise.
        let readable = Permissions::from_mode(0o666);
        let mut file = BufWriter::new(tempfile::Builder::new().permissions(readable).tempfile_in(folder)?);
        let len_bytes = 4 * n_rows * vocab_size;
        let mut header = serde_json::json!({
            "logits": { "dtype": "F32", "shape": [n_rows, vocab_size], "data_offsets": [0, len_bytes] }
        })
        .to_string();
        // The format asks for data that begins on a multiple of 8.
        header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        Ok(LogitsWriter { file })
    }

    fn row(&mut self, logits: &[f32]) -> std::io::Result<()> {
        self.file.write_all(bytemuck::cast_slice(logits))
    }

    fn finish(self, path: &Path) -> std::io::Result<()> {
        let file = self.file.into_inner().map_err(|error| error.into_error())?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    fn tokens_file(dtype: Dtype, shape: Vec<usize>, data: &[u8]) -> Vec<u8> {
        safetensors::serialize([("tokens", TensorView::new(dtype, shape, data).unwrap())], None).unwrap()
    }

    #[test]
    fn tokens_of_each_integer_type_are_read() {
        let i32s: Vec<u8> = [5i32, 7].iter().flat_map(|id| id.to_le_bytes()).collect();
        let i64s: Vec<u8> = [5i64, 7].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(read_tokens(&tokens_file(Dtype::I32, vec![2], &i32s)), Ok(vec![5, 7]));
        assert_eq!(read_tokens(&tokens_file(Dtype::U32, vec![2], &i32s)), Ok(vec![5, 7]));
        assert_eq!(read_tokens(&tokens_file(Dtype::I64, vec![2], &i64s)), Ok(vec![5, 7]));
    }

    #[test]
    fn other_tensors_are_refused_by_name() {
        let error = |bytes: &[u8]| read_tokens(bytes).unwrap_err();
        assert!(error(b"not safetensors").contains("not safetensors"));
        assert!(error(&tokens_file(Dtype::F32, vec![1], &[0; 4])).contains("F32"));
        assert!(error(&tokens_file(Dtype::I32, vec![1, 1], &[0; 4])).contains("[1, 1]"));
        assert!(error(&tokens_file(Dtype::I32, vec![1], &[0xff; 4])).contains("-1"));
    }

    #[test]
    fn written_logits_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.safetensors");
        let mut writer = LogitsWriter::create(&path, 2, 3).unwrap();
        writer.row(&[1.0, 2.0, 3.0]).unwrap();
        writer.row(&[4.0, 5.0, 6.0]).unwrap();
        assert!(!path.exists());
        writer.finish(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let logits = file.tensor("logits").unwrap();
        assert_eq!((logits.dtype(), logits.shape()), (Dtype::F32, &[2, 3][..]));
        let values: Vec<f32> = words(logits.data()).map(f32::from_le_bytes).collect();
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}
