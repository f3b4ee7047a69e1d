//! `logits`: what the model computes for given tokens, for comparison with another implementation.

use safetensors::{Dtype, SafeTensors};

use crate::args::LogitsArgs;
use crate::error::CliError;
use crate::files::logits_file::LogitsWriter;
use crate::files::output_file::check_replaced;
use crate::load::{load, note_recoveries};

pub fn run(args: &LogitsArgs) -> Result<(), CliError> {
    check_replaced(&args.output, "the logits", &[&args.tokens])?;
    let bytes = std::fs::read(&args.tokens).map_err(|error| CliError::at(&args.tokens, error))?;
    let tokens = read_tokens(&bytes).map_err(|error| CliError::at(&args.tokens, error))?;
    let model = load(&args.artifact, &args.load, Some(tokens.len() as u32))?;
    let mut session = model.session()?;
    if let Some(chunk) = args.chunk {
        session.set_chunk_tokens(chunk);
    }

    let vocab_size = model.meta().model.vocab_size as usize;
    let mut writer = LogitsWriter::create(&args.output, tokens.len(), vocab_size)?;
    session.feed_with_logits(&tokens, &mut |_, logits| writer.row(logits))?;
    note_recoveries(&model);
    writer.finish()
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
}
