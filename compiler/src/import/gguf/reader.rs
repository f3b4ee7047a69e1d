//! [`Gguf`]: a GGUF file parsed into metadata and tensors, with every length and offset checked.
//!
//! ```text
//!   "GGUF" | version u32 | tensor count u64 | metadata count u64
//!   metadata: key string, value                                        (see value.rs)
//!   tensors:  name string, n dims u32, dims u64 (columns first), type u32, offset u64 from the data's start
//!   padding to general.alignment (32 when absent)
//!   data:     each tensor at its offset, a multiple of the alignment
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use super::cursor::Cursor;
use super::tensor_type;
use super::value::{Array, Value};
use crate::error::{CompileError, Result};
use crate::import::SourceDType;

/// The file's parts, borrowed from its bytes.
pub struct Gguf<'a> {
    path: &'a Path,
    /// The bytes of the file, followed by those of appended files.
    parts: Vec<&'a [u8]>,
    metadata: BTreeMap<&'a str, Value<'a>>,
    pub tensors: BTreeMap<&'a str, TensorInfo>,
}

/// Where a tensor is stored. The range is inside the file and the last dimension is whole blocks.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Outermost first, columns last: the reverse of the file's order. 1 to 4 dimensions, none of them 0.
    pub shape: Vec<usize>,
    pub dtype: SourceDType,
    /// Index of the model's file that holds it.
    pub part: usize,
    /// Offset in that file.
    pub offset_bytes: usize,
    pub len_bytes: usize,
}

const MAGIC: [u8; 4] = *b"GGUF";
const MAX_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT_BYTES: u64 = 32;

impl<'a> Gguf<'a> {
    /// Parses `bytes`; `path` only names the file in errors.
    ///
    /// # Errors
    /// When the bytes are not a little-endian GGUF of version 2 or 3, are cut, repeat a key or a tensor, or place a
    /// tensor outside of themselves; and when a tensor's type is not one that we read.
    pub fn read(path: &'a Path, bytes: &'a [u8]) -> Result<Gguf<'a>> {
        let mut cursor = Cursor::new(path, bytes);
        let mut gguf = Gguf { path, parts: vec![bytes], metadata: BTreeMap::new(), tensors: BTreeMap::new() };
        let magic: [u8; 4] = cursor.array("magic")?;
        if magic != MAGIC {
            return Err(gguf.malformed(format!("magic is not GGUF: expected {MAGIC:02x?}, found {magic:02x?}")));
        }
        gguf.check_version(cursor.u32("version")?)?;
        let tensor_count = cursor.u64("tensor count")?;
        let metadata_count = cursor.u64("metadata count")?;
        // No memory is reserved by the counts, which are not trusted; each entry that is read takes bytes of the file.
        for _ in 0..metadata_count {
            gguf.read_metadata(&mut cursor)?;
        }
        let alignment = gguf.alignment()?;
        let mut infos = Vec::new();
        for _ in 0..tensor_count {
            infos.push(RawTensorInfo::read(&mut cursor, &gguf)?);
        }
        let data_start = (cursor.position() as u64).next_multiple_of(alignment);
        for info in infos {
            let (name, placed) = info.place(data_start, alignment, &gguf)?;
            gguf.add_tensor(name, placed)?;
        }
        Ok(gguf)
    }

    /// Adds the tensors of another file of the same model.
    ///
    /// # Errors
    /// When both hold the same tensor.
    pub fn append(&mut self, other: Gguf<'a>) -> Result<()> {
        let first_part = self.parts.len();
        self.parts.extend(other.parts);
        for (name, info) in other.tensors {
            self.add_tensor(name, TensorInfo { part: first_part + info.part, ..info })?;
        }
        Ok(())
    }

    fn add_tensor(&mut self, name: &'a str, info: TensorInfo) -> Result<()> {
        match self.tensors.entry(name) {
            Entry::Vacant(vacant) => drop(vacant.insert(info)),
            Entry::Occupied(_) => return Err(self.malformed(format!("tensor {name} appears twice"))),
        }
        Ok(())
    }

    /// The value of `key` where it is a whole number that is not negative.
    pub fn unsigned(&self, key: &str) -> Result<Option<usize>> {
        let convert = |value: &Value| value.as_unsigned().and_then(|value| value.try_into().ok());
        self.typed(key, "an integer that is not negative", convert)
    }

    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |value| if let Value::Bool(value) = value { Some(*value) } else { None })
    }

    pub fn string(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", |value| if let Value::String(value) = value { Some(*value) } else { None })
    }

    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>> {
        self.typed(key, "an array", |value| if let Value::Array(value) = value { Some(*value) } else { None })
    }

    pub fn value(&self, key: &str) -> Option<&Value<'a>> {
        self.metadata.get(key)
    }

    pub fn tensor_bytes(&self, info: &TensorInfo) -> &'a [u8] {
        &self.parts[info.part][info.offset_bytes..][..info.len_bytes]
    }

    /// The value of a key that every model has.
    pub fn require<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.malformed(format!("metadata has no {key}")))
    }

    pub fn malformed(&self, what: impl Into<String>) -> CompileError {
        CompileError::malformed(self.path, what)
    }

    fn typed<T>(&self, key: &str, expected: &str, convert: impl Fn(&Value<'a>) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.malformed(format!("{key} is {}, expected {expected}", value.kind()))),
        }
    }

    fn check_version(&self, version: u32) -> Result<()> {
        match version {
            2 | 3 => Ok(()),
            1 => Err(self.unsupported_version("version 1", "expected 2 or 3; convert the model again")),
            // A small number with its bytes in the reverse order.
            _ if version.swap_bytes() <= 3 => {
                Err(self.unsupported_version("big-endian file", "expected little-endian; convert the model for it"))
            }
            _ => Err(self.unsupported_version(&format!("version {version}"), "expected 2 or 3")),
        }
    }

    fn unsupported_version(&self, found: &str, detail: &str) -> CompileError {
        CompileError::Unsupported {
            what: format!("GGUF {found}"),
            detail: format!("{}: {detail}", self.path.display()),
        }
    }

    fn read_metadata(&mut self, cursor: &mut Cursor<'a>) -> Result<()> {
        let key = cursor.string("metadata key")?;
        let value = Value::read(cursor, self.path, key)?;
        match self.metadata.entry(key) {
            Entry::Vacant(vacant) => drop(vacant.insert(value)),
            Entry::Occupied(_) => return Err(self.malformed(format!("metadata key {key} appears twice"))),
        }
        Ok(())
    }

    fn alignment(&self) -> Result<u64> {
        let key = "general.alignment";
        let alignment = self.unsigned(key)?.map_or(DEFAULT_ALIGNMENT_BYTES, |bytes| bytes as u64);
        // ggml takes an u32; a power of two of that size cannot overflow any sum with a position in a file.
        if !alignment.is_power_of_two() || alignment > u64::from(u32::MAX) {
            return Err(self.malformed(format!("{key} is {alignment}, expected a power of two below 2^32")));
        }
        Ok(alignment)
    }
}

/// A tensor as the file announces it.
struct RawTensorInfo<'a> {
    name: &'a str,
    shape: Vec<u64>,
    type_id: u32,
    offset: u64,
}

impl<'a> RawTensorInfo<'a> {
    fn read(cursor: &mut Cursor<'a>, gguf: &Gguf) -> Result<RawTensorInfo<'a>> {
        let name = cursor.string("tensor name")?;
        let what = format!("tensor {name}");
        let n_dimensions = cursor.u32(&what)?;
        if !(1..=MAX_DIMENSIONS).contains(&n_dimensions) {
            return Err(gguf.malformed(format!("{what} has {n_dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")));
        }
        let mut shape = (0..n_dimensions).map(|_| cursor.u64(&what)).collect::<Result<Vec<_>>>()?;
        shape.reverse();
        Ok(RawTensorInfo { name, shape, type_id: cursor.u32(&what)?, offset: cursor.u64(&what)? })
    }

    /// Checks the announced place against the file, whose tensor data begins at `data_start`.
    fn place(self, data_start: u64, alignment: u64, gguf: &Gguf) -> Result<(&'a str, TensorInfo)> {
        let file_bytes = gguf.parts[0].len();
        let RawTensorInfo { name, shape, type_id, offset } = self;
        let dtype = tensor_type::from_id(type_id).map_err(|type_name| CompileError::TensorType {
            path: gguf.path.to_owned(),
            tensor: name.into(),
            found: type_name,
            supported: tensor_type::SUPPORTED,
        })?;
        if !offset.is_multiple_of(alignment) {
            let what = format!("tensor {name} begins at offset {offset}, expected a multiple of {alignment}");
            return Err(gguf.malformed(what));
        }
        let lie = || {
            gguf.malformed(format!(
                "tensor {name} of shape {shape:?} at offset {offset} is not inside the file of {file_bytes} bytes"
            ))
        };
        let shape: Vec<usize> =
            shape.iter().map(|&n| usize::try_from(n).ok().filter(|&n| n > 0)).collect::<Option<_>>().ok_or_else(lie)?;
        let (cols, outer) = shape.split_last().expect("a tensor has at least one dimension");
        let row_bytes = dtype.row_bytes(*cols).ok_or_else(|| {
            let (block, _) = dtype.block();
            gguf.malformed(format!("tensor {name} has {cols} columns, expected whole blocks of {block} for {dtype}"))
        })?;
        let len_bytes = outer.iter().try_fold(row_bytes, |bytes, n| bytes.checked_mul(*n)).ok_or_else(lie)?;
        let start = data_start.checked_add(offset).and_then(|start| usize::try_from(start).ok()).ok_or_else(lie)?;
        if start.checked_add(len_bytes).is_none_or(|end| end > file_bytes) {
            return Err(lie());
        }
        Ok((name, TensorInfo { shape, dtype, part: 0, offset_bytes: start, len_bytes }))
    }
}
