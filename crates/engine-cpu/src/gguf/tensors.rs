//! The tensor table of a GGUF file: names, shapes, types and offsets, checked to be in bounds and not to overlap.

use super::bounded_reader::BoundedReader;
use crate::error::ModelFileError;
use crate::limits::{MAX_DIMENSIONS, MAX_TENSOR_ELEMENTS};
use std::collections::HashMap;
use std::fmt;
use std::io::Read;

/// Minimum size of an entry: a name's length, a number of dimensions, a type and an offset.
pub(super) const MIN_INFO_BYTES: u64 = 8 + 4 + 4 + 8;

chancery_domain::closed_enum! {
    /// The supported tensor types.
    pub enum TensorType {
        F32 = "F32",
        F16 = "F16",
        Bf16 = "BF16",
        Q4_0 = "Q4_0",
        Q4_1 = "Q4_1",
        Q5_0 = "Q5_0",
        Q5_1 = "Q5_1",
        Q8_0 = "Q8_0",
        Q4K = "Q4_K",
        Q5K = "Q5_K",
        Q6K = "Q6_K",
    }
}

impl TensorType {
    /// The type's number in the GGUF format.
    pub fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Bf16 => 30,
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// GGUF's name of a type that this engine does not support.
    fn unsupported_name(code: u32) -> Option<&'static str> {
        Some(match code {
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            20 => "IQ4_NL",
            21 => "IQ3_S",
            22 => "IQ2_S",
            23 => "IQ4_XS",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            34 => "TQ1_0",
            35 => "TQ2_0",
            39 => "MXFP4",
            40 => "NVFP4",
            _ => return None,
        })
    }

    /// Values in one block; a row is a whole number of blocks.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q4K => 2 + 2 + 12 + 128,
            Self::Q5K => 2 + 2 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Row length first, as in the file.
    pub dimensions: Vec<usize>,
    pub kind: TensorType,
    /// Relative to the start of the tensor data.
    pub(super) offset: u64,
    pub(crate) byte_len: u64,
}

pub(super) fn read_infos<R: Read>(
    reader: &mut BoundedReader<R>,
    count: usize,
) -> Result<Vec<(String, TensorInfo)>, ModelFileError> {
    let mut infos = Vec::with_capacity(count);
    for _ in 0..count {
        let name = reader.string("a tensor's name")?;
        let rank = reader.u32(&name)?;
        if !(1..=MAX_DIMENSIONS).contains(&rank) {
            return Err(ModelFileError::malformed(format!("the tensor `{name}` has {rank} dimensions")));
        }
        let mut dimensions = Vec::with_capacity(rank as usize);
        let mut elements = 1_u64;
        for _ in 0..rank {
            let dimension = reader.u64(&name)?;
            elements = elements
                .checked_mul(dimension)
                .filter(|elements| (1..=MAX_TENSOR_ELEMENTS).contains(elements))
                .ok_or_else(|| {
                    ModelFileError::malformed(format!("the tensor `{name}` has an invalid shape"))
                })?;
            dimensions.push(usize::try_from(dimension).unwrap_or(usize::MAX));
        }
        let code = reader.u32(&name)?;
        let kind = TensorType::from_code(code).ok_or_else(|| {
            let format = TensorType::unsupported_name(code).map_or(code.to_string(), str::to_owned);
            ModelFileError::unsupported(format!("tensor `{name}` with number format {format}"))
        })?;
        if !dimensions[0].is_multiple_of(kind.block_len()) {
            return Err(ModelFileError::malformed(format!(
                "the rows of the tensor `{name}` are not whole {kind} blocks"
            )));
        }
        let byte_len = elements / kind.block_len() as u64 * kind.block_bytes() as u64;
        let offset = reader.u64(&name)?;
        infos.push((name, TensorInfo { dimensions, kind, offset, byte_len }));
    }
    Ok(infos)
}

/// Checks that every tensor is aligned, lies within the `data_len` bytes, and overlaps no other.
pub(super) fn check_layout(
    mut infos: Vec<(String, TensorInfo)>,
    alignment: u64,
    data_len: u64,
) -> Result<HashMap<String, TensorInfo>, ModelFileError> {
    infos.sort_by_key(|(_, info)| info.offset);
    let mut free_from = 0;
    let mut tensors = HashMap::with_capacity(infos.len());
    for (name, info) in infos {
        if info.offset % alignment != 0 {
            return Err(ModelFileError::malformed(format!("the tensor `{name}` is not aligned")));
        }
        if info.offset < free_from {
            return Err(ModelFileError::malformed(format!("the tensor `{name}` overlaps another")));
        }
        free_from = info
            .offset
            .checked_add(info.byte_len)
            .filter(|end| *end <= data_len)
            .ok_or_else(|| ModelFileError::malformed(format!("file ends inside tensor `{name}`")))?;
        if tensors.contains_key(&name) {
            return Err(ModelFileError::malformed(format!("duplicate tensor `{name}`")));
        }
        tensors.insert(name, info);
    }
    Ok(tensors)
}
