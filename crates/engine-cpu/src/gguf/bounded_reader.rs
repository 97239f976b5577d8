//! Little-endian reading that knows how much of the file is left, so that no count can promise more than there is.

use crate::error::Fault;
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

    fn claim(&mut self, len: u64, what: &str) -> Result<(), Fault> {
        if len > self.file_len - self.position {
            return Err(Fault::malformed(format!("it ends inside {what}")));
        }
        self.position += len;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        self.claim(N as u64, what)?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of things that each take at least `min_item_bytes` of what is left of the file.
    pub(super) fn count(&mut self, what: &str, limit: u64, min_item_bytes: u64) -> Result<usize, Fault> {
        let count = self.u64(what)?;
        let left = self.file_len - self.position;
        if count.checked_mul(min_item_bytes).is_none_or(|bytes| bytes > left) {
            return Err(Fault::malformed(format!("{what} is {count}, more than the file can hold")));
        }
        if count > limit {
            return Err(Fault::unsupported(format!(
                "{what} is {count}, and this engine reads {limit} at most"
            )));
        }
        usize::try_from(count).map_err(|_| Fault::malformed(format!("{what} is {count}")))
    }

    pub(super) fn string(&mut self, what: &str) -> Result<String, Fault> {
        let len = self.count(what, MAX_STRING_BYTES, 1)?;
        self.claim(len as u64, what)?;
        let mut bytes = vec![0; len];
        self.source.read_exact(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| Fault::malformed(format!("{what} is not UTF-8")))
    }
}
