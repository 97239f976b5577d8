//! The IDs of keys, with which each stored secret begins.

use std::fmt;

pub(super) const KEY_ID_BYTES: usize = 8;

/// The format of stored secrets.
const VERSION: u8 = 1;

/// The version and the ID of the key.
pub(crate) const HEADER_BYTES: usize = 1 + KEY_ID_BYTES;

/// Names a key, in stored secrets and in messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EncryptionKeyId([u8; KEY_ID_BYTES]);

impl EncryptionKeyId {
    pub(super) fn new(bytes: [u8; KEY_ID_BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// `None` if the bytes are not a stored secret of a known format.
    pub(crate) fn of_secret(stored: &[u8]) -> Option<Self> {
        match stored.split_first() {
            Some((&VERSION, rest)) => rest.get(..KEY_ID_BYTES).and_then(Self::from_stored),
            _ => None,
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The first bytes of each secret that this key encrypts.
    pub(crate) fn header(self) -> [u8; HEADER_BYTES] {
        let mut header = [VERSION; HEADER_BYTES];
        header[1..].copy_from_slice(&self.0);
        header
    }
}

impl fmt::Display for EncryptionKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for EncryptionKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
