//! A reader that knows what it has read as one number, so that a file can be told from the one that was read before. It
//! guards against a file that was replaced, not against one that was made to look the same.

use rustc_hash::FxHasher;
use std::fmt;
use std::hash::Hasher;
use std::io::{Read, Result, Seek, SeekFrom};

pub struct Fingerprinted<R> {
    inner: R,
    seen: FxHasher,
}

impl<R> Fingerprinted<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, seen: FxHasher::default() }
    }

    /// The same for the same reads of the same bytes.
    pub fn fingerprint(&self) -> u64 {
        self.seen.finish()
    }
}

impl<R: fmt::Debug> fmt::Debug for Fingerprinted<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fingerprinted").field(&self.inner).field(&self.fingerprint()).finish()
    }
}

impl<R: Read> Read for Fingerprinted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.inner.read(buffer)?;
        self.seen.write(&buffer[..read]);
        Ok(read)
    }
}

impl<R: Seek> Seek for Fingerprinted<R> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.inner.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn other_bytes_have_another_fingerprint() {
        let fingerprint = |bytes: &[u8]| {
            let mut reader = Fingerprinted::new(Cursor::new(bytes));
            reader.read_to_end(&mut Vec::new()).unwrap();
            reader.fingerprint()
        };
        let mut bytes = vec![7; 100_000];
        let before = fingerprint(&bytes);
        assert_eq!(fingerprint(&bytes), before);
        for place in [0, 31_337, 99_999] {
            bytes[place] ^= 1;
            assert_ne!(fingerprint(&bytes), before, "byte {place}");
            bytes[place] ^= 1;
        }
        assert_ne!(fingerprint(&bytes[1..]), before);
    }
}
