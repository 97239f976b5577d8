//! Little-endian reader that knows how much of the file is left, so that no count can claim more than the file
//! contains.

use crate::error::ModelFileError;
use crate::limits::MAX_STRING_BYTES;
use std::io::Read;

pub(super) struct BoundedReader<R> {
    source: R,
    position: u64,
    file_len: u64,
}

impl<R: Read> BoundedReader<R> {
    pub(super) fn new(source: R, file_len: u64) -> Self {
        Self { source, position: 0, file_len }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn into_inner(self) -> R {
        self.source
    }

    fn check_remaining(&mut self, len: u64, what: &str) -> Result<(), ModelFileError> {
        if len > self.file_len - self.position {
            return Err(ModelFileError::malformed(format!("file ends inside {what}")));
        }
        self.position += len;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], ModelFileError> {
        self.check_remaining(N as u64, what)?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, ModelFileError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, ModelFileError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a count of items that each take at least `min_item_bytes`, and checks that the rest of the file can hold
    /// them.
    pub(super) fn count(
        &mut self,
        what: &str,
        limit: u64,
        min_item_bytes: u64,
    ) -> Result<usize, ModelFileError> {
        let count = self.u64(what)?;
        let left = self.file_len - self.position;
        if count.checked_mul(min_item_bytes).is_none_or(|bytes| bytes > left) {
            return Err(ModelFileError::malformed(format!("{what} is {count}, more than the file can hold")));
        }
        if count > limit {
            return Err(ModelFileError::unsupported(format!(
                "{what} is {count}; at most {limit} is supported"
            )));
        }
        usize::try_from(count).map_err(|_| ModelFileError::malformed(format!("{what} is {count}")))
    }

    pub(super) fn string(&mut self, what: &str) -> Result<String, ModelFileError> {
        let len = self.count(what, MAX_STRING_BYTES, 1)?;
        self.check_remaining(len as u64, what)?;
        let mut bytes = vec![0; len];
        self.source.read_exact(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| ModelFileError::malformed(format!("{what} is not UTF-8")))
    }
}
