//! Passwords: which ones are accepted, and how they are hashed and verified (argon2id, off the async threads, a few at
//! a time). This file knows nothing about accounts.

use crate::limits::{
    ARGON2_LANES, ARGON2_MEMORY_KIB, ARGON2_PASSES, HASH_QUEUE_TIMEOUT, MAX_CONCURRENT_HASHES,
    MAX_PASSWORD_CHARS, MIN_PASSWORD_CHARS, SALT_BYTES,
};
use argon2::password_hash::{PasswordHasher, PasswordVerifier, phc};
use argon2::{Algorithm, Argon2, Params, Version};
use chancery_domain::{EmailAddress, Randomness};
use chancery_store::PasswordHash;
use tokio::sync::Semaphore;
use unicode_normalization::UnicodeNormalization;

/// Global, because the memory it limits belongs to the process.
static HASH_SLOTS: Semaphore = Semaphore::const_new(MAX_CONCURRENT_HASHES);

/// Verified against when an address has no account, so that the response takes equally long. It is the hash of a random
/// password that was never stored, with the parameters in `limits`.
const DUMMY_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$a2VlcHMgdGltZSBldmVu$1nXrSgD5C0dkzoYOOMjmxpGDrpQ36CZbvZ+LJAGCnGQ";

/// The most common passwords that meet the minimum length, in lower case. Guesses are throttled, so only the top of the
/// list matters.
const COMMON_PASSWORDS: &str = include_str!("common_passwords.txt");

/// Why a new password is rejected. The texts are shown to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    #[error("Use at least {MIN_PASSWORD_CHARS} characters")]
    TooShort,
    #[error("Use at most {MAX_PASSWORD_CHARS} characters")]
    TooLong,
    #[error("This password is too common. Choose another.")]
    Common,
    #[error("Do not use your email address as your password")]
    EqualsEmail,
}

/// Why hashing failed, for the log.
#[derive(Debug, thiserror::Error)]
pub enum HashingError {
    #[error("password hashing queue is full")]
    Busy,
    #[error("password hashing failed: {0}")]
    Failed(String),
}

/// A password that passed `check`.
pub(crate) struct NewPassword(String);

impl NewPassword {
    /// No composition rules: they make passwords alike and hard to type, not hard to guess.
    pub(crate) fn check(typed: &str, email: &EmailAddress) -> Result<Self, PasswordError> {
        let password = normalize(typed).ok_or(PasswordError::TooLong)?;
        let chars = password.chars().count();
        if chars < MIN_PASSWORD_CHARS {
            return Err(PasswordError::TooShort);
        }
        let lowercase = password.to_lowercase();
        let name = email.as_str().split('@').next().unwrap_or_default();
        if lowercase == email.as_str() || lowercase == name {
            return Err(PasswordError::EqualsEmail);
        }
        let is_one_char = lowercase.chars().all(|c| lowercase.starts_with(c));
        if is_one_char || COMMON_PASSWORDS.lines().any(|common| common == lowercase) {
            return Err(PasswordError::Common);
        }
        Ok(Self(password))
    }
}

/// Normalizes to NFKC, so that the same text matches whatever keyboard typed it. Returns `None` if too long.
fn normalize(typed: &str) -> Option<String> {
    // A character takes at most four bytes, so longer input need not be normalized.
    if typed.len() > MAX_PASSWORD_CHARS * 4 {
        return None;
    }
    let password: String = typed.nfkc().collect();
    (password.chars().count() <= MAX_PASSWORD_CHARS).then_some(password)
}

fn argon2() -> Result<Argon2<'static>, HashingError> {
    let params = Params::new(ARGON2_MEMORY_KIB, ARGON2_PASSES, ARGON2_LANES, None).map_err(failed)?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

fn failed(error: impl std::fmt::Display) -> HashingError {
    HashingError::Failed(error.to_string())
}

pub(crate) async fn hash(
    password: NewPassword,
    randomness: &dyn Randomness,
) -> Result<PasswordHash, HashingError> {
    let mut salt = [0_u8; SALT_BYTES];
    randomness.fill(&mut salt);
    with_hash_permit(move || {
        let hash = argon2()?.hash_password_with_salt(password.0.as_bytes(), &salt).map_err(failed)?;
        Ok(PasswordHash(hash.to_string()))
    })
    .await
}

/// Whether the password is correct. `None` means there is no account: the same work is done and the result is false.
pub(crate) async fn verify(typed: &str, stored: Option<&PasswordHash>) -> Result<bool, HashingError> {
    // Overlong input is wrong, but takes the same time to verify.
    let password = normalize(typed).unwrap_or_default();
    let stored_text = stored.map_or(DUMMY_HASH, |stored| &stored.0).to_owned();
    let matches = with_hash_permit(move || {
        let stored = phc::PasswordHash::new(&stored_text).map_err(failed)?;
        match argon2()?.verify_password(password.as_bytes(), &stored) {
            Ok(()) => Ok(true),
            Err(argon2::password_hash::Error::PasswordInvalid) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    })
    .await?;
    Ok(matches && stored.is_some())
}

/// Hashing uses a core for tens of milliseconds and 19 MiB. It therefore waits for a permit and runs off the async
/// threads.
async fn with_hash_permit<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HashingError> + Send + 'static,
) -> Result<T, HashingError> {
    let permit = tokio::time::timeout(HASH_QUEUE_TIMEOUT, HASH_SLOTS.acquire()).await;
    let permit = permit.map_err(|_| HashingError::Busy)?.map_err(failed)?;
    // The task owns the permit: if the caller disconnects, the slot stays taken until the work is done.
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    })
    .await
    .map_err(failed)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::OsRandomness;
    use proptest::prelude::*;

    fn email() -> EmailAddress {
        "maya.longlastname@example.com".parse().unwrap()
    }

    fn problem(typed: &str) -> Option<PasswordError> {
        NewPassword::check(typed, &email()).err()
    }

    #[test]
    fn long_uncommon_passwords_are_accepted() {
        for typed in [
            "correct horse",
            "0918273645a",
            "пароль для меня",
            "  blanks  too  ",
            "🐎🐎🐎🐎🐎🐎🐎🐎🐎🐄",
            &"ab".repeat(64),
        ] {
            assert_eq!(problem(typed), None, "{typed}");
        }
    }

    #[test]
    fn short_long_common_and_email_passwords_are_rejected() {
        for (typed, expected) in [
            ("", PasswordError::TooShort),
            ("ninechars", PasswordError::TooShort),
            ("éééééé", PasswordError::TooShort),
            (&"x".repeat(129), PasswordError::TooLong),
            (&"x".repeat(100_000), PasswordError::TooLong),
            ("Password123", PasswordError::Common),
            ("1234567890", PasswordError::Common),
            ("QWERTYUIOP", PasswordError::Common),
            ("zzzzzzzzzzzzz", PasswordError::Common),
            ("MAYA.longlastname@example.com", PasswordError::EqualsEmail),
            ("maya.longlastname", PasswordError::EqualsEmail),
        ] {
            assert_eq!(problem(typed), Some(expected), "{typed:.40}");
        }
    }

    #[test]
    fn common_password_list_has_only_valid_lengths() {
        let mut seen = std::collections::HashSet::new();
        for common in COMMON_PASSWORDS.lines() {
            assert!(common.chars().count() >= MIN_PASSWORD_CHARS, "{common} is refused as too short anyway");
            assert_eq!(common, common.to_lowercase());
            assert!(seen.insert(common), "{common} is there twice");
        }
        assert!(seen.len() >= 100);
    }

    #[tokio::test]
    async fn password_verifies_only_against_its_own_hash() {
        let new = NewPassword::check("correct horse", &email()).unwrap();
        let stored = hash(new, &OsRandomness).await.unwrap();
        assert!(stored.0.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", stored.0);
        assert!(verify("correct horse", Some(&stored)).await.unwrap());
        for wrong in ["correct  horse", "Correct horse", "", "correct horse\0", &"x".repeat(10_000)] {
            assert!(!verify(wrong, Some(&stored)).await.unwrap(), "{wrong:.40}");
        }
        let again =
            hash(NewPassword::check("correct horse", &email()).unwrap(), &OsRandomness).await.unwrap();
        assert_ne!(stored, again, "salted");
    }

    #[tokio::test]
    async fn password_is_normalized_to_nfkc() {
        let composed = NewPassword::check("crème brûlée", &email()).unwrap();
        let stored = hash(composed, &OsRandomness).await.unwrap();
        assert!(verify("cre\u{300}me bru\u{302}le\u{301}e", Some(&stored)).await.unwrap());
    }

    #[tokio::test]
    async fn dummy_hash_never_verifies_and_costs_the_same() {
        assert!(!verify("correct horse", None).await.unwrap());
        let dummy = phc::PasswordHash::new(DUMMY_HASH).unwrap();
        let new = NewPassword::check("correct horse", &email()).unwrap();
        let real = hash(new, &OsRandomness).await.unwrap();
        let real = phc::PasswordHash::new(&real.0).unwrap();
        assert_eq!(dummy.algorithm, real.algorithm);
        assert_eq!(dummy.version, real.version);
        assert_eq!(Params::try_from(&dummy).unwrap(), Params::try_from(&real).unwrap());
        assert_eq!(dummy.hash.unwrap().len(), real.hash.unwrap().len());
    }

    proptest! {
        #[test]
        fn password_check_never_panics_and_enforces_length(typed in "\\PC{0,200}") {
            if let Ok(NewPassword(password)) = NewPassword::check(&typed, &email()) {
                let chars = password.chars().count();
                prop_assert!((MIN_PASSWORD_CHARS..=MAX_PASSWORD_CHARS).contains(&chars));
            }
        }
    }
}
