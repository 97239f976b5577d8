//! A reader that hashes everything it reads, to detect that a file differs from the one read before. The hash is not
//! cryptographic: it detects a replaced file, not a forged one.

use rustc_hash::FxHasher;
use std::fmt;
use std::hash::Hasher;
use std::io::{Read, Result, Seek, SeekFrom};

pub struct FingerprintReader<R> {
    inner: R,
    hasher: FxHasher,
}

impl<R> FingerprintReader<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, hasher: FxHasher::default() }
    }

    /// Equal for the same reads of the same bytes.
    pub fn fingerprint(&self) -> u64 {
        self.hasher.finish()
    }
}

impl<R: fmt::Debug> fmt::Debug for FingerprintReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FingerprintReader").field(&self.inner).field(&self.fingerprint()).finish()
    }
}

impl<R: Read> Read for FingerprintReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.write(&buffer[..read]);
        Ok(read)
    }
}

impl<R: Seek> Seek for FingerprintReader<R> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.inner.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn different_bytes_have_different_fingerprints() {
        let fingerprint = |bytes: &[u8]| {
            let mut reader = FingerprintReader::new(Cursor::new(bytes));
            reader.read_to_end(&mut Vec::new()).unwrap();
            reader.fingerprint()
        };
        let mut bytes = vec![7; 100_000];
        let before = fingerprint(&bytes);
        assert_eq!(fingerprint(&bytes), before);
        for index in [0, 31_337, 99_999] {
            bytes[index] ^= 1;
            assert_ne!(fingerprint(&bytes), before, "byte {index}");
            bytes[index] ^= 1;
        }
        assert_ne!(fingerprint(&bytes[1..]), before);
    }
}
