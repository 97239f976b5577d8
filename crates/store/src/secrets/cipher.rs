//! AES-256-GCM for one secret of one row:
//!
//! 1. A stored secret is a version byte, the ID of its key, a random nonce, and the ciphertext with its tag.
//! 2. Version, key ID, column and row are authenticated too. A secret that was copied to another row or column, or that
//!    was changed by one bit, does not decrypt.
//! 3. The ID of a key is derived from it and says nothing about it, so that a secret names its key.
//!
//! Nonces are random. They are safe for 2^32 secrets of one key (NIST SP 800-38D), more than any firm has sign-ins.

use super::column::SecretColumn;
use super::error::SecretError;
use super::key_id::{EncryptionKeyId, HEADER_BYTES, KEY_ID_BYTES};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chancery_domain::{OsRandomness, Randomness};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

const KEY_BYTES: usize = 32;

/// Separates this use of a key from its use as a cipher's key.
const KEY_ID_PURPOSE: &[u8] = b"chancery encryption key ID\0";

/// A key that encrypts secrets in the database. It has no `Display`, and its `Debug` shows the ID only.
#[derive(Clone)]
pub struct EncryptionKey {
    id: EncryptionKeyId,
    bytes: [u8; KEY_BYTES],
    cipher: LessSafeKey,
}

/// The text is not a key. It is not in the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 32 random bytes in base64, as `openssl rand -base64 32` prints them")]
pub struct InvalidEncryptionKey;

impl EncryptionKey {
    pub fn generate(randomness: &dyn Randomness) -> Result<Self, InvalidEncryptionKey> {
        let mut bytes = [0; KEY_BYTES];
        randomness.fill(&mut bytes);
        Self::from_bytes(bytes)
    }

    fn from_bytes(bytes: [u8; KEY_BYTES]) -> Result<Self, InvalidEncryptionKey> {
        let cipher = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| InvalidEncryptionKey)?;
        let hash: [u8; 32] = Sha256::new().chain_update(KEY_ID_PURPOSE).chain_update(bytes).finalize().into();
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(&hash[..KEY_ID_BYTES]);
        Ok(Self { id: EncryptionKeyId::new(id), bytes, cipher: LessSafeKey::new(cipher) })
    }

    pub fn id(&self) -> EncryptionKeyId {
        self.id
    }

    /// The key itself, for a key file.
    pub fn reveal(&self) -> String {
        STANDARD.encode(self.bytes)
    }

    pub(crate) fn seal(
        &self,
        column: SecretColumn,
        row: &[u8],
        secret: &[u8],
    ) -> Result<Vec<u8>, SecretError> {
        let mut nonce = [0; NONCE_LEN];
        OsRandomness.fill(&mut nonce);
        let header = self.id.header();
        let mut sealed = secret.to_vec();
        let aad = Aad::from(associated_data(&header, column, row));
        self.cipher
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .map_err(|_| SecretError::TooLong)?;
        Ok([header.as_slice(), nonce.as_slice(), sealed.as_slice()].concat())
    }

    /// Fails unless this key sealed exactly this for this row.
    pub(crate) fn open(
        &self,
        column: SecretColumn,
        row: &[u8],
        stored: &[u8],
    ) -> Result<Vec<u8>, SecretError> {
        let rejected = || SecretError::Rejected { secret: column.secret };
        let (header, rest) = stored.split_at_checked(HEADER_BYTES).ok_or_else(rejected)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN).ok_or_else(rejected)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| rejected())?;
        let mut sealed = sealed.to_vec();
        let aad = Aad::from(associated_data(header, column, row));
        let secret = self.cipher.open_in_place(nonce, aad, &mut sealed).map_err(|_| rejected())?;
        Ok(secret.to_vec())
    }
}

/// The header has a fixed length and a column's name has no NUL, so no two rows have the same data.
fn associated_data(header: &[u8], column: SecretColumn, row: &[u8]) -> Vec<u8> {
    [header, column.name.as_bytes(), b"\0".as_slice(), row].concat()
}

impl FromStr for EncryptionKey {
    type Err = InvalidEncryptionKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = STANDARD.decode(text).map_err(|_| InvalidEncryptionKey)?;
        Self::from_bytes(bytes.try_into().map_err(|_| InvalidEncryptionKey)?)
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EncryptionKey").field(&self.id).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::column::{SHARED_SECRET, SIGNING_KEY};
    use chancery_domain::SeededRandomness;

    fn key(seed: u64) -> EncryptionKey {
        EncryptionKey::generate(&SeededRandomness::new(seed)).unwrap()
    }

    #[test]
    fn secret_opens_only_in_its_own_row_and_column_with_its_own_key() {
        let sealed = key(1).seal(SHARED_SECRET, b"portal", b"secret").unwrap();
        assert_eq!(key(1).open(SHARED_SECRET, b"portal", &sealed).unwrap(), b"secret");
        for (key, column, row) in [
            (key(2), SHARED_SECRET, "portal"),
            (key(1), SIGNING_KEY, "portal"),
            (key(1), SHARED_SECRET, "portal-2"),
            (key(1), SHARED_SECRET, ""),
        ] {
            let opened = key.open(column, row.as_bytes(), &sealed);
            assert!(matches!(opened, Err(SecretError::Rejected { .. })), "{opened:?}");
        }
    }

    #[test]
    fn secret_with_one_changed_bit_does_not_open() {
        let sealed = key(1).seal(SHARED_SECRET, b"portal", b"secret").unwrap();
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert!(key(1).open(SHARED_SECRET, b"portal", &changed).is_err(), "byte {index}");
            assert!(key(1).open(SHARED_SECRET, b"portal", &sealed[..index]).is_err(), "{index} bytes");
        }
    }

    #[test]
    fn same_secret_is_never_stored_as_the_same_bytes() {
        let seal = || key(1).seal(SHARED_SECRET, b"portal", b"secret").unwrap();
        assert_ne!(seal(), seal());
    }

    #[test]
    fn stored_secret_names_its_key() {
        let sealed = key(1).seal(SHARED_SECRET, b"portal", b"").unwrap();
        assert_eq!(EncryptionKeyId::of_secret(&sealed), Some(key(1).id()));
        assert_eq!(sealed[..HEADER_BYTES], key(1).id().header());
        assert_ne!(key(1).id(), key(2).id());
        assert_eq!(key(1).id().to_string().len(), 16);
        for not_sealed in ["", "\u{1}", "plain text"] {
            assert_eq!(EncryptionKeyId::of_secret(not_sealed.as_bytes()), None, "{not_sealed:?}");
        }
    }

    #[test]
    fn key_round_trips_as_text_and_debug_output_hides_it() {
        let text = key(1).reveal();
        assert_eq!(text.parse::<EncryptionKey>().unwrap().id(), key(1).id());
        assert_eq!(format!("{:?}", key(1)), format!("EncryptionKey({})", key(1).id()));
        for invalid in ["", "secret", &text[..40], &format!("{text}{text}"), &format!(" {text}")] {
            assert_eq!(invalid.parse::<EncryptionKey>().err(), Some(InvalidEncryptionKey), "{invalid}");
        }
    }
}
