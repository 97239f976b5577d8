//! The key-value part of a GGUF header, with typed lookups whose errors name a missing or mistyped key.

use super::bounded_reader::BoundedReader;
use crate::error::ModelFileError;
use crate::limits::MAX_ARRAY_ITEMS;
use std::collections::HashMap;
use std::io::Read;

/// Minimum size of an entry: a key's length, a type and one byte.
pub(super) const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
}

#[derive(Debug, Default)]
pub struct Metadata(HashMap<String, Value>);

impl Metadata {
    pub(super) fn read<R: Read>(reader: &mut BoundedReader<R>, count: usize) -> Result<Self, ModelFileError> {
        let mut entries = HashMap::new();
        for _ in 0..count {
            let key = reader.string("a key's name")?;
            let kind = reader.u32("a key's type")?;
            let value = read_value(reader, kind, &key)?;
            if entries.insert(key.clone(), value).is_some() {
                return Err(ModelFileError::malformed(format!("duplicate metadata key `{key}`")));
            }
        }
        Ok(Self(entries))
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn required(&self, key: &str) -> Result<&Value, ModelFileError> {
        self.get(key).ok_or_else(|| ModelFileError::malformed(format!("missing metadata key `{key}`")))
    }

    /// Reads a non-negative number, whichever integer type it has in the file.
    pub fn u64(&self, key: &str) -> Result<u64, ModelFileError> {
        match self.required(key)? {
            Value::Unsigned(value) => Ok(*value),
            Value::Signed(value) if *value >= 0 => Ok(value.unsigned_abs()),
            _ => Err(wrong_type(key, "a non-negative integer")),
        }
    }

    pub fn f32(&self, key: &str) -> Result<f32, ModelFileError> {
        match self.required(key)? {
            Value::Float(value) if value.is_finite() => Ok(*value as f32),
            _ => Err(wrong_type(key, "a finite number")),
        }
    }

    pub fn bool(&self, key: &str) -> Result<bool, ModelFileError> {
        match self.required(key)? {
            Value::Bool(value) => Ok(*value),
            _ => Err(wrong_type(key, "true or false")),
        }
    }

    pub fn string(&self, key: &str) -> Result<&str, ModelFileError> {
        match self.required(key)? {
            Value::String(value) => Ok(value),
            _ => Err(wrong_type(key, "a string")),
        }
    }

    pub fn strings(&self, key: &str) -> Result<&[String], ModelFileError> {
        match self.required(key)? {
            Value::Array(Array::Strings(values)) => Ok(values),
            _ => Err(wrong_type(key, "a list of strings")),
        }
    }

    pub fn integers(&self, key: &str) -> Result<&[i64], ModelFileError> {
        match self.required(key)? {
            Value::Array(Array::Integers(values)) => Ok(values),
            _ => Err(wrong_type(key, "a list of integers")),
        }
    }

    pub fn floats(&self, key: &str) -> Result<&[f64], ModelFileError> {
        match self.required(key)? {
            Value::Array(Array::Floats(values)) => Ok(values),
            _ => Err(wrong_type(key, "a list of numbers")),
        }
    }

    /// Calls `look_up` if the key is present; a key with the wrong type is still an error.
    pub fn optional<'a, T>(
        &'a self,
        key: &str,
        look_up: impl FnOnce(&'a Self, &str) -> Result<T, ModelFileError>,
    ) -> Result<Option<T>, ModelFileError> {
        if self.0.contains_key(key) { look_up(self, key).map(Some) } else { Ok(None) }
    }
}

fn wrong_type(key: &str, expected: &str) -> ModelFileError {
    ModelFileError::malformed(format!("the key `{key}` is not {expected}"))
}

/// Value types of the GGUF format.
mod kind {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

fn read_value<R: Read>(reader: &mut BoundedReader<R>, kind: u32, key: &str) -> Result<Value, ModelFileError> {
    Ok(match kind {
        kind::U8 => Value::Unsigned(u8::from_le_bytes(reader.array(key)?).into()),
        kind::I8 => Value::Signed(i8::from_le_bytes(reader.array(key)?).into()),
        kind::U16 => Value::Unsigned(u16::from_le_bytes(reader.array(key)?).into()),
        kind::I16 => Value::Signed(i16::from_le_bytes(reader.array(key)?).into()),
        kind::U32 => Value::Unsigned(u32::from_le_bytes(reader.array(key)?).into()),
        kind::I32 => Value::Signed(i32::from_le_bytes(reader.array(key)?).into()),
        kind::U64 => Value::Unsigned(u64::from_le_bytes(reader.array(key)?)),
        kind::I64 => Value::Signed(i64::from_le_bytes(reader.array(key)?)),
        kind::F32 => Value::Float(f32::from_le_bytes(reader.array(key)?).into()),
        kind::F64 => Value::Float(f64::from_le_bytes(reader.array(key)?)),
        kind::BOOL => Value::Bool(read_bool(reader, key)?),
        kind::STRING => Value::String(reader.string(key)?),
        kind::ARRAY => Value::Array(read_array(reader, key)?),
        other => {
            return Err(ModelFileError::malformed(format!("the key `{key}` has the unknown type {other}")));
        }
    })
}

fn read_bool<R: Read>(reader: &mut BoundedReader<R>, key: &str) -> Result<bool, ModelFileError> {
    match reader.array(key)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => {
            Err(ModelFileError::malformed(format!("the key `{key}` is {other}, expected true or false")))
        }
    }
}

/// Nested arrays are rejected: no supported model has one, and they would need a depth limit.
fn read_array<R: Read>(reader: &mut BoundedReader<R>, key: &str) -> Result<Array, ModelFileError> {
    let item_kind = reader.u32(key)?;
    let min_item_bytes = match item_kind {
        kind::U8 | kind::I8 | kind::BOOL => 1,
        kind::U16 | kind::I16 => 2,
        kind::U32 | kind::I32 | kind::F32 => 4,
        kind::U64 | kind::I64 | kind::F64 | kind::STRING => 8,
        kind::ARRAY => {
            return Err(ModelFileError::unsupported(format!("nested list in metadata key `{key}`")));
        }
        other => {
            return Err(ModelFileError::malformed(format!("the key `{key}` lists the unknown type {other}")));
        }
    };
    let count = reader.count(key, MAX_ARRAY_ITEMS, min_item_bytes)?;
    Ok(match item_kind {
        kind::STRING => Array::Strings((0..count).map(|_| reader.string(key)).collect::<Result<_, _>>()?),
        kind::BOOL => Array::Bools((0..count).map(|_| read_bool(reader, key)).collect::<Result<_, _>>()?),
        kind::F32 | kind::F64 => {
            let mut floats = Vec::with_capacity(count);
            for _ in 0..count {
                if let Value::Float(value) = read_value(reader, item_kind, key)? {
                    floats.push(value);
                }
            }
            Array::Floats(floats)
        }
        _ => {
            let mut integers = Vec::with_capacity(count);
            for _ in 0..count {
                integers.push(match read_value(reader, item_kind, key)? {
                    Value::Unsigned(value) => i64::try_from(value)
                        .map_err(|_| ModelFileError::malformed(format!("the key `{key}` lists {value}")))?,
                    Value::Signed(value) => value,
                    _ => return Err(wrong_type(key, "a list of integers")),
                });
            }
            Array::Integers(integers)
        }
    })
}
