//! SHA-256 of files, in hexadecimal digits.

use crate::limits::COPY_BUFFER_BYTES;
use crate::progress::{Progress, Stage};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

/// 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sha256Hex(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid SHA-256 {0:?}: use 64 hexadecimal digits, as `sha256sum` prints them")]
pub struct InvalidSha256(String);

impl Sha256Hex {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the whole file and reports the progress.
    pub(crate) fn of_file(path: &Path, progress: &dyn Progress) -> io::Result<Self> {
        let mut file = File::open(path)?;
        progress.start(Stage::Checking, Some(file.metadata()?.len()));
        let mut hash = Sha256::new();
        let mut buffer = vec![0; COPY_BUFFER_BYTES];
        let mut done_bytes = 0;
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            hash.update(&buffer[..count]);
            done_bytes += count as u64;
            progress.set(done_bytes);
        }
        progress.finish();
        Ok(Self(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

impl FromStr for Sha256Hex {
    type Err = InvalidSha256;

    fn from_str(text: &str) -> Result<Self, InvalidSha256> {
        match text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(InvalidSha256(text.to_owned())),
        }
    }
}

impl fmt::Display for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoProgress;

    #[test]
    fn file_hash_is_the_published_test_vector() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        let expected = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
        assert_eq!(Sha256Hex::of_file(&path, &NoProgress).unwrap(), expected.parse().unwrap());
        for invalid in ["", "abc", &expected[1..], &expected.replace('B', "x")] {
            assert!(invalid.parse::<Sha256Hex>().unwrap_err().to_string().contains("64 hexadecimal digits"));
        }
    }
}
