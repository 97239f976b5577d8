//! Errors of encrypted secrets. None of them contains a secret.

use super::key_id::EncryptionKeyId;

#[derive(Clone, Debug, thiserror::Error)]
pub enum SecretError {
    /// The text is the key source's own: it names the setting and the fix.
    #[error("{0}")]
    NoKey(String),
    #[error(
        "{location}: the key {key} is missing, with which {secret} is encrypted in the database; use the file or variable that has it, the same on every node"
    )]
    UnknownKey { location: String, key: EncryptionKeyId, secret: &'static str },
    #[error(
        "{secret} in the database cannot be decrypted: it was changed, or copied from another row; restore the database, or delete that row"
    )]
    Rejected { secret: &'static str },
    #[error("another `chancery secrets rotate` is running, with the key {other}; wait until it has finished")]
    OtherRotation { other: EncryptionKeyId },
    #[error("a secret is too long to be encrypted")]
    TooLong,
}
