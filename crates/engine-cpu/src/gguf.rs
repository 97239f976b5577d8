//! Reads GGUF model files (versions 2 and 3, little endian): the header into memory, tensors one at a time. It does not
//! use mmap, so that truncating an open file is an error and does not kill the process with SIGBUS. Every count, length
//! and offset is checked against the file's length and `limits` before use.

mod bounded_reader;
mod fingerprinted;
mod metadata;
mod tensors;

pub use metadata::{Array, Metadata, Value};
pub use tensors::{TensorInfo, TensorType};

use crate::error::{LoadError, ModelFileError};
use crate::limits::{MAX_ALIGNMENT, MAX_METADATA_KEYS, MAX_TENSORS};
use bounded_reader::BoundedReader;
use fingerprinted::FingerprintReader;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;

/// An open model file: its parsed header, and tensors that are read by name.
#[derive(Debug)]
pub struct Gguf<R> {
    source: R,
    metadata: Metadata,
    tensors: HashMap<String, TensorInfo>,
    data_start: u64,
}

/// A model file on disk.
pub type ModelFile = BufReader<FingerprintReader<File>>;

impl Gguf<ModelFile> {
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let open = || {
            // Checked before opening: opening a named pipe blocks until it has a writer.
            if !std::fs::metadata(path)?.is_file() {
                return Err(ModelFileError::unsupported("not a regular file"));
            }
            let file = File::open(path)?;
            let file_len = file.metadata()?.len();
            Gguf::read(BufReader::with_capacity(1 << 20, FingerprintReader::new(file)), file_len)
        };
        open().map_err(|error| LoadError::rejected(path, error))
    }

    /// Hash of everything read so far: equal after the same reads of the same file.
    pub fn fingerprint(&self) -> u64 {
        self.source.get_ref().fingerprint()
    }
}

impl<R: Read + Seek> Gguf<R> {
    /// Reads the header of a file of `file_len` bytes and checks that every tensor lies inside the file.
    pub fn read(source: R, file_len: u64) -> Result<Self, ModelFileError> {
        let mut reader = BoundedReader::new(source, file_len);
        if reader.array::<4>("the magic number")? != MAGIC {
            return Err(ModelFileError::malformed("missing `GGUF` magic"));
        }
        let version = reader.u32("the version")?;
        if !(2..=3).contains(&version) {
            return Err(ModelFileError::unsupported(format!(
                "GGUF version {version}; versions 2 and 3 are supported"
            )));
        }
        let tensor_count = reader.count("the number of tensors", MAX_TENSORS, tensors::MIN_INFO_BYTES)?;
        let key_count = reader.count("the number of keys", MAX_METADATA_KEYS, metadata::MIN_ENTRY_BYTES)?;
        let metadata = Metadata::read(&mut reader, key_count)?;
        let infos = tensors::read_infos(&mut reader, tensor_count)?;

        let alignment = match metadata.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(_) => metadata.u64("general.alignment")?,
        };
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            return Err(ModelFileError::malformed(format!("`general.alignment` is {alignment}")));
        }
        let data_start = reader
            .position()
            .checked_next_multiple_of(alignment)
            .filter(|start| *start <= file_len)
            .ok_or_else(|| ModelFileError::malformed("file ends before the tensor data"))?;
        let tensors = tensors::check_layout(infos, alignment, file_len - data_start)?;
        Ok(Self { source: reader.into_inner(), metadata, tensors, data_start })
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// How many parameters the model has: the elements of all tensors.
    pub fn parameters(&self) -> u64 {
        let elements =
            |info: &TensorInfo| info.dimensions.iter().map(|length| *length as u64).product::<u64>();
        self.tensors.values().map(elements).fold(0, u64::saturating_add)
    }

    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The raw bytes of one tensor.
    pub fn read_tensor(&mut self, name: &str) -> Result<Vec<u8>, ModelFileError> {
        let info = self
            .tensors
            .get(name)
            .ok_or_else(|| ModelFileError::malformed(format!("missing tensor `{name}`")))?;
        let len = usize::try_from(info.byte_len).map_err(|_| {
            ModelFileError::unsupported(format!("the tensor `{name}` is too large for this machine"))
        })?;
        let mut bytes = vec![0; len];
        self.source.seek(SeekFrom::Start(self.data_start + info.offset))?;
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
pub(crate) mod writer;

#[cfg(test)]
mod tests {
    use super::writer::GgufWriter;
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn sample() -> Vec<u8> {
        GgufWriter::new()
            .string("general.architecture", "llama")
            .u32("llama.block_count", 1)
            .f32("llama.rope.freq_base", 10_000.0)
            .bool("tokenizer.ggml.add_bos_token", false)
            .strings("tokenizer.ggml.tokens", &["a", "b", "ab"])
            .i32s("tokenizer.ggml.token_type", &[1, 1, 1])
            .f32s("tokenizer.ggml.scores", &[0.0, -1.0, 0.5])
            .tensor("token_embd.weight", &[32, 3], TensorType::Q4_0, &[7; 54])
            .tensor("output_norm.weight", &[32], TensorType::F32, &[0; 128])
            .finish()
    }

    fn read(bytes: &[u8]) -> Result<Gguf<Cursor<&[u8]>>, ModelFileError> {
        Gguf::read(Cursor::new(bytes), bytes.len() as u64)
    }

    /// Reads everything in a file, as loading a model would.
    fn read_all(bytes: &[u8]) -> Result<(), ModelFileError> {
        let mut file = read(bytes)?;
        let names: Vec<String> = file.tensor_names().map(str::to_owned).collect();
        for name in names {
            file.read_tensor(&name)?;
        }
        Ok(())
    }

    #[test]
    fn valid_gguf_file_round_trips() {
        let bytes = sample();
        let mut file = read(&bytes).unwrap();
        assert_eq!(file.metadata().string("general.architecture").unwrap(), "llama");
        assert_eq!(file.metadata().u64("llama.block_count").unwrap(), 1);
        assert_eq!(file.metadata().strings("tokenizer.ggml.tokens").unwrap(), ["a", "b", "ab"]);
        let info = file.tensor("token_embd.weight").unwrap();
        assert_eq!((info.dimensions.as_slice(), info.kind), ([32, 3].as_slice(), TensorType::Q4_0));
        assert_eq!(file.read_tensor("token_embd.weight").unwrap(), [7; 54]);
    }

    #[test]
    fn truncated_gguf_file_is_rejected() {
        let bytes = sample();
        // The writer pads the end to the alignment, so the cut must reach into the last tensor.
        for len in 0..bytes.len() - 32 {
            assert!(read_all(&bytes[..len]).is_err(), "a file cut to {len} bytes was accepted");
        }
    }

    #[test]
    fn count_beyond_the_file_is_rejected_before_allocation() {
        for field in [8, 16] {
            let mut bytes = sample();
            bytes[field..field + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert!(matches!(read(&bytes), Err(ModelFileError::Malformed(_))));
        }
    }

    #[test]
    fn out_of_bounds_or_overlapping_tensors_are_rejected() {
        let base = || GgufWriter::new().string("general.architecture", "llama");
        let past = base().tensor_at("t", &[1 << 20], TensorType::F32, 0, &[0; 64]).finish();
        assert!(matches!(read(&past), Err(ModelFileError::Malformed(_))));
        let overlapping = base()
            .tensor_at("a", &[16], TensorType::F32, 0, &[0; 64])
            .tensor_at("b", &[16], TensorType::F32, 32, &[0; 64])
            .finish();
        assert!(matches!(read(&overlapping), Err(ModelFileError::Malformed(_))));
        let huge = base().tensor_at("t", &[u64::MAX, u64::MAX], TensorType::F32, 0, &[]).finish();
        assert!(matches!(read(&huge), Err(ModelFileError::Malformed(_))));
    }

    #[test]
    fn unsupported_tensor_type_is_rejected_by_name() {
        let kind_of = |code: u32| {
            let mut bytes = GgufWriter::new().tensor("t", &[32], TensorType::F32, &[0; 128]).finish();
            // Offset of the type: after the magic number, the version, two counts, the name and one dimension.
            bytes[24 + 9 + 4 + 8..][..4].copy_from_slice(&code.to_le_bytes());
            read(&bytes).map(drop)
        };
        assert!(kind_of(0).is_ok());
        for (code, name) in [(11, "Q3_K"), (23, "IQ4_XS"), (99, "99")] {
            let message = kind_of(code).unwrap_err().to_string();
            assert!(message.contains(&format!("format {name}")) && message.contains("upstream"), "{message}");
        }
    }

    #[test]
    fn duplicate_key_or_tensor_is_rejected() {
        let keys = GgufWriter::new().u32("a", 1).u32("a", 2).finish();
        assert!(matches!(read(&keys), Err(ModelFileError::Malformed(_))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn corrupted_bytes_never_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
            let mut bytes = sample();
            for (index, value) in flips {
                let index = index.index(bytes.len());
                bytes[index] = value;
            }
            let _ = read_all(&bytes);
        }

        #[test]
        fn random_bytes_after_the_magic_number_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut bytes = b"GGUF\x03\0\0\0".to_vec();
            bytes.extend(tail);
            let _ = read_all(&bytes);
        }
    }
}
