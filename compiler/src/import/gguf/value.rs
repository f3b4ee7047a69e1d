//! [`Value`]: one metadata value of a GGUF file, borrowed from its bytes.
//!
//! ```text
//!   type u32 | scalar of 1, 2, 4 or 8 bytes
//!   type u32 | string: length u64, UTF-8
//!   type u32 | array:  element type u32, count u64, elements (scalars or strings; arrays of arrays are refused)
//! ```

use std::path::Path;

use super::cursor::Cursor;
use crate::error::{CompileError, Result};

/// Integers and floats are widened: no reader here depends on the width that a writer chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
}

/// Elements stay in the file's bytes until they are requested; they were checked when the array was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    element: ElementType,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Value<'a> {
    pub fn read(cursor: &mut Cursor<'a>, path: &Path, key: &str) -> Result<Value<'a>> {
        let what = format!("value of {key}");
        let type_id = cursor.u32(&what)?;
        if type_id != ARRAY_TYPE {
            return ElementType::from_id(type_id, path, key)?.read(cursor, &what);
        }
        let element = match cursor.u32(&what)? {
            ARRAY_TYPE => {
                return Err(CompileError::malformed(
                    path,
                    format!("{what} is an array of arrays, expected scalars or strings"),
                ));
            }
            id => ElementType::from_id(id, path, key)?,
        };
        let count = cursor.u64(&what)?;
        let start = cursor.clone();
        match element.size_bytes() {
            // A count beyond the file overflows to a length that no file has.
            Some(size) => drop(cursor.take(count.saturating_mul(size), &what)?),
            None => (0..count).try_for_each(|_| cursor.string(&what).map(drop))?,
        }
        let mut elements = start.clone();
        let bytes = elements.take((cursor.position() - start.position()) as u64, &what)?;
        // Each element takes at least a byte of the file, so the count fits.
        Ok(Value::Array(Array { element, count: count as usize, bytes }))
    }

    /// For errors: what was found where something else was expected.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Unsigned(_) | Value::Signed(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a bool",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
        }
    }

    /// A whole number that is not negative, whichever integer type holds it.
    pub fn as_unsigned(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(value) => Some(value),
            Value::Signed(value) => value.try_into().ok(),
            _ => None,
        }
    }

    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::Float(value) => Some(value),
            Value::Unsigned(value) => Some(value as f64),
            Value::Signed(value) => Some(value as f64),
            _ => None,
        }
    }
}

impl<'a> Array<'a> {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn values(self) -> impl Iterator<Item = Value<'a>> {
        let mut cursor = Cursor::new(Path::new("array"), self.bytes);
        (0..self.count).map(move |_| self.element.read(&mut cursor, "element").expect("elements were read once before"))
    }
}

const ARRAY_TYPE: u32 = 9;

#[derive(Clone, Copy, Debug, PartialEq)]
enum ElementType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    U64,
    I64,
    F64,
}

impl ElementType {
    fn from_id(id: u32, path: &Path, key: &str) -> Result<ElementType> {
        Ok(match id {
            0 => ElementType::U8,
            1 => ElementType::I8,
            2 => ElementType::U16,
            3 => ElementType::I16,
            4 => ElementType::U32,
            5 => ElementType::I32,
            6 => ElementType::F32,
            7 => ElementType::Bool,
            8 => ElementType::String,
            10 => ElementType::U64,
            11 => ElementType::I64,
            12 => ElementType::F64,
            _ => {
                return Err(CompileError::malformed(path, format!("type of {key} is {id}, expected 0 to 12")));
            }
        })
    }

    /// `None` for strings, whose lengths differ.
    fn size_bytes(self) -> Option<u64> {
        match self {
            ElementType::U8 | ElementType::I8 | ElementType::Bool => Some(1),
            ElementType::U16 | ElementType::I16 => Some(2),
            ElementType::U32 | ElementType::I32 | ElementType::F32 => Some(4),
            ElementType::U64 | ElementType::I64 | ElementType::F64 => Some(8),
            ElementType::String => None,
        }
    }

    fn read<'a>(self, cursor: &mut Cursor<'a>, what: &str) -> Result<Value<'a>> {
        Ok(match self {
            ElementType::U8 => Value::Unsigned(u8::from_le_bytes(cursor.array(what)?).into()),
            ElementType::I8 => Value::Signed(i8::from_le_bytes(cursor.array(what)?).into()),
            ElementType::U16 => Value::Unsigned(u16::from_le_bytes(cursor.array(what)?).into()),
            ElementType::I16 => Value::Signed(i16::from_le_bytes(cursor.array(what)?).into()),
            ElementType::U32 => Value::Unsigned(cursor.u32(what)?.into()),
            ElementType::I32 => Value::Signed(i32::from_le_bytes(cursor.array(what)?).into()),
            ElementType::U64 => Value::Unsigned(cursor.u64(what)?),
            ElementType::I64 => Value::Signed(i64::from_le_bytes(cursor.array(what)?)),
            ElementType::F32 => Value::Float(f32::from_le_bytes(cursor.array(what)?).into()),
            ElementType::F64 => Value::Float(f64::from_le_bytes(cursor.array(what)?)),
            ElementType::Bool => Value::Bool(cursor.array(what)? != [0]),
            ElementType::String => Value::String(cursor.string(what)?),
        })
    }
}
