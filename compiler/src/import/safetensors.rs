//! [`SafetensorsFile`]: one mapped `.safetensors` file whose header was checked against its length.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Dtype, SafeTensors, TensorInfo};
use unicorn_artifact::MappedFile;

use super::source_layout::SourceDType;
use crate::error::{CompileError, Result};

/// The tensors are stored one after the other, without gaps or overlaps, and end where the file ends.
pub(super) struct SafetensorsFile {
    pub path: PathBuf,
    pub map: Arc<MappedFile>,
    pub tensors: BTreeMap<String, StoredTensor>,
}

/// A tensor as the header describes it; `offset_bytes` counts from the start of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub offset_bytes: usize,
    pub bytes: usize,
}

impl SafetensorsFile {
    pub fn open(path: &Path) -> Result<SafetensorsFile> {
        let map = MappedFile::open(path).map_err(CompileError::io(path))?;
        let tensors = read_header(path, map.bytes())?;
        Ok(SafetensorsFile { path: path.to_owned(), map: Arc::new(map), tensors })
    }

    pub fn file_name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Checks the header of a whole file; `path` is for messages.
fn read_header(path: &Path, file: &[u8]) -> Result<BTreeMap<String, StoredTensor>> {
    let (header_bytes, header) = SafeTensors::read_metadata(file)
        .map_err(|error| CompileError::malformed(path, explain(file, &error.to_string())))?;
    let data_start = HEADER_LENGTH_BYTES + header_bytes;
    let stored = |info: &TensorInfo| StoredTensor {
        dtype: info.dtype,
        shape: info.shape.clone(),
        offset_bytes: data_start + info.data_offsets.0,
        bytes: info.data_offsets.1 - info.data_offsets.0,
    };
    Ok(header.tensors().into_iter().map(|(name, info)| (name, stored(info))).collect())
}

impl StoredTensor {
    /// The element type, if it is one that weights may have.
    pub fn weight_dtype(&self) -> Option<SourceDType> {
        match self.dtype {
            Dtype::F32 => Some(SourceDType::F32),
            Dtype::F16 => Some(SourceDType::F16),
            Dtype::BF16 => Some(SourceDType::Bf16),
            _ => None,
        }
    }
}

/// The file begins with the length of its JSON header as u64.
const HEADER_LENGTH_BYTES: usize = 8;

/// Names the wrong number of a refused file; `refusal` is the safetensors crate's own, shorter message.
fn explain(file: &[u8], refusal: &str) -> String {
    if file.starts_with(b"version https://git-lfs") {
        return "file is a Git LFS pointer, expected the weights that it stands for; git lfs pull fetches them"
            .to_owned();
    }
    let Some((length, rest)) = file.split_first_chunk::<HEADER_LENGTH_BYTES>() else {
        return format!("file has {} bytes, expected a safetensors header of 8 or more", file.len());
    };
    let header_bytes = u64::from_le_bytes(*length);
    let Some((header, data)) = usize::try_from(header_bytes).ok().and_then(|bytes| rest.split_at_checked(bytes)) else {
        return format!(
            "header is {header_bytes} bytes long by its own length, but only {} follow in the file",
            rest.len()
        );
    };
    let Ok(mut entries) = serde_json::from_slice::<BTreeMap<String, serde_json::Value>>(header) else {
        return format!("header is not a safetensors header: {refusal}");
    };
    entries.remove("__metadata__");
    let mut tensors = Vec::new();
    for (name, entry) in entries {
        match serde_json::from_value::<TensorInfo>(entry) {
            Ok(info) => tensors.push((info.data_offsets, name, info)),
            Err(error) => return format!("tensor {name} is badly described in the header: {error}"),
        }
    }
    tensors.sort_by_key(|(data_offsets, ..)| *data_offsets);

    let mut expected_start = 0;
    for ((start, end), name, info) in &tensors {
        if *start != expected_start || end < start {
            return format!(
                "tensor {name} has data offsets {start}..{end}, expected a start of {expected_start}, where the tensor \
                 before it ends"
            );
        }
        let elements = info.shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let bits = elements.and_then(|elements| elements.checked_mul(info.dtype.bitsize()));
        if bits.is_none_or(|bits| bits % 8 != 0 || bits / 8 != end - start) {
            let needed = bits.map_or("more than fit any file".to_owned(), |bits| (bits / 8).to_string());
            return format!(
                "tensor {name} has {} bytes at {start}..{end}, expected {needed} for {} {:?}",
                end - start,
                info.dtype,
                info.shape
            );
        }
        expected_start = *end;
    }
    if expected_start != data.len() {
        let last = tensors.last().map_or("none", |(_, name, _)| name);
        return format!(
            "tensor data is {} bytes long, expected {expected_start}, where the last tensor, {last}, ends",
            data.len()
        );
    }
    refusal.to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data_bytes, 0);
        file
    }

    fn refusal(file: &[u8]) -> String {
        read_header(Path::new("w.safetensors"), file).unwrap_err().to_string()
    }

    const TWO: &str = r#"{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
        "b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}"#;

    #[test]
    fn a_good_header_gives_offsets_in_the_file() {
        let tensors = read_header(Path::new("w.safetensors"), &file(TWO, 16)).unwrap();
        let offset_bytes = 8 + TWO.len() + 12;
        assert_eq!(tensors["b"], StoredTensor { dtype: Dtype::F32, shape: vec![1], offset_bytes, bytes: 4 });
        assert_eq!(tensors["a"].weight_dtype(), Some(SourceDType::Bf16));
    }

    #[test]
    fn a_cut_file_is_an_error_with_the_bytes_that_are_left() {
        assert_eq!(
            refusal(&file(TWO, 15)),
            "w.safetensors: tensor data is 15 bytes long, expected 16, where the last tensor, b, ends"
        );
        assert_eq!(refusal(&[1, 2]), "w.safetensors: file has 2 bytes, expected a safetensors header of 8 or more");
    }

    #[test]
    fn a_header_longer_than_the_file_is_refused_whatever_its_length() {
        for length in [100, u64::from(u32::MAX), u64::MAX] {
            let mut file = length.to_le_bytes().to_vec();
            file.extend(b"{}");
            let expected = format!("header is {length} bytes long by its own length, but only 2 follow in the file");
            assert_eq!(refusal(&file), format!("w.safetensors: {expected}"));
        }
    }

    #[test]
    fn a_git_lfs_pointer_is_named_as_such() {
        let message = refusal(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n");
        assert!(message.contains("Git LFS pointer"), "{message}");
    }

    #[test]
    fn overlapping_tensors_are_refused_by_name() {
        let header = TWO.replace("[12,16]", "[8,12]");
        let message = refusal(&file(&header, 12));
        assert!(message.contains("tensor b has data offsets 8..12, expected a start of 12"), "{message}");
    }

    #[test]
    fn a_shape_that_its_bytes_cannot_hold_is_refused() {
        let message = refusal(&file(&TWO.replace("[2,3]", "[2,4]"), 16));
        assert!(message.contains("tensor a has 12 bytes at 0..12, expected 16 for BF16 [2, 4]"), "{message}");
        let message = refusal(&file(&TWO.replace("[2,3]", "[4294967296,4294967296]"), 16));
        assert!(message.contains("expected more than fit any file"), "{message}");
    }

    #[test]
    fn a_header_that_is_no_header_is_refused() {
        let message = refusal(&file("[1]", 0));
        assert!(message.contains("header is not a safetensors header"), "{message}");
        let message = refusal(&file(r#"{"a":{"dtype":"Q7","shape":[1],"data_offsets":[0,4]}}"#, 4));
        assert!(message.contains("tensor a is badly described in the header"), "{message}");
    }

    proptest! {
        /// For any bytes, reading returns, and accepted ranges are inside the file.
        #[test]
        fn any_damage_is_an_error_or_stays_inside(at in 0usize..160, byte: u8, cut in 0usize..200) {
            let mut damaged = file(TWO, 16);
            let at = at % damaged.len();
            damaged[at] = byte;
            damaged.truncate(damaged.len().saturating_sub(cut.saturating_sub(100)));
            if let Ok(tensors) = read_header(Path::new("w.safetensors"), &damaged) {
                prop_assert!(tensors.values().all(|tensor| tensor.offset_bytes + tensor.bytes <= damaged.len()));
            }
        }
    }
}
