//! Idempotency keys, so that a retried request does not run again. The caller chooses the key. A fingerprint tells whether a
//! second request with the key is the same request.

use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// 1 to 255 visible ASCII characters, unique within an account for a day.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it must be 1 to {} visible ASCII characters, without spaces", IdempotencyKey::MAX_LENGTH)]
pub struct IdempotencyKeyError;

impl IdempotencyKey {
    pub const MAX_LENGTH: usize = 255;

    /// Skips validation, because only validated keys are stored.
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IdempotencyKey {
    type Err = IdempotencyKeyError;

    fn from_str(text: &str) -> Result<Self, IdempotencyKeyError> {
        let is_visible = |byte: u8| byte.is_ascii_graphic();
        let fits = (1..=Self::MAX_LENGTH).contains(&text.len());
        (fits && text.bytes().all(is_visible)).then(|| Self(text.to_owned())).ok_or(IdempotencyKeyError)
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// SHA-256 of a request's path and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

/// Domain separation: distinguishes these hashes from those of other data and of later layouts.
const DOMAIN_TAG: &[u8] = b"chancery request 1";

impl Fingerprint {
    /// `canonical_body` must be the same for equivalent bodies.
    pub fn of(path: &str, canonical_body: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(DOMAIN_TAG);
        hasher.update((path.len() as u64).to_be_bytes());
        hasher.update(path);
        hasher.update(canonical_body);
        Self(hasher.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_visible_ascii_of_bounded_length() {
        let longest = "k".repeat(255);
        for good in ["a", "~!", "order-17/2026", "\"quoted\"", longest.as_str()] {
            assert_eq!(good.parse::<IdempotencyKey>().unwrap().as_str(), good);
        }
        let too_long = "k".repeat(256);
        for bad in ["", " ", "a b", "a\t", "a\n", "a\0", "\u{7f}", "schlüssel", too_long.as_str()] {
            assert_eq!(bad.parse::<IdempotencyKey>(), Err(IdempotencyKeyError), "{bad:?}");
        }
    }

    #[test]
    fn fingerprint_separates_path_and_body() {
        assert_eq!(Fingerprint::of("/a", b"{}"), Fingerprint::of("/a", b"{}"));
        assert_ne!(Fingerprint::of("/a", b"{}"), Fingerprint::of("/a{", b"}"));
        assert_ne!(Fingerprint::of("/a", b"{}"), Fingerprint::of("/b", b"{}"));
    }
}
