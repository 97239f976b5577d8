//! Passwords: which ones are accepted (`rules`, `common`), and how they are hashed and verified (argon2id, off the async
//! threads, a few at a time). This file knows nothing about accounts.

mod common;
mod rules;

pub use rules::PasswordError;
pub(crate) use rules::{NewPassword, PasswordContext};

use crate::limits::{
    ARGON2_LANES, ARGON2_MEMORY_KIB, ARGON2_PASSES, HASH_QUEUE_TIMEOUT, MAX_CONCURRENT_HASHES, SALT_BYTES,
};
use argon2::password_hash::{PasswordHasher, PasswordVerifier, phc};
use argon2::{Algorithm, Argon2, Params, Version};
use chancery_domain::Randomness;
use chancery_store::PasswordHash;
use rules::normalize;
use tokio::sync::Semaphore;

/// Global, because the memory it limits belongs to the process.
static HASH_SLOTS: Semaphore = Semaphore::const_new(MAX_CONCURRENT_HASHES);

/// Verified against when an address has no account, so that the response takes equally long. It is the hash of a random
/// password that was never stored, with the parameters in `limits`.
const DUMMY_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$a2VlcHMgdGltZSBldmVu$1nXrSgD5C0dkzoYOOMjmxpGDrpQ36CZbvZ+LJAGCnGQ";

/// Why hashing failed, for the log.
#[derive(Debug, thiserror::Error)]
pub enum HashingError {
    #[error("password hashing queue is full")]
    Busy,
    #[error("password hashing failed: {0}")]
    Failed(String),
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
        let hash = argon2()?.hash_password_with_salt(password.as_bytes(), &salt).map_err(failed)?;
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
    use chancery_domain::{EmailAddress, OsRandomness};

    fn new_password(typed: &str) -> NewPassword {
        let email: EmailAddress = "maya@example.com".parse().unwrap();
        let context = PasswordContext { email: &email, firm_name: "Hale & Ward" };
        NewPassword::check(typed, &context).unwrap()
    }

    #[tokio::test]
    async fn password_verifies_only_against_its_own_hash() {
        let new = new_password("correct horse");
        let stored = hash(new, &OsRandomness).await.unwrap();
        assert!(stored.0.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", stored.0);
        assert!(verify("correct horse", Some(&stored)).await.unwrap());
        for wrong in ["correct  horse", "Correct horse", "", "correct horse\0", &"x".repeat(10_000)] {
            assert!(!verify(wrong, Some(&stored)).await.unwrap(), "{wrong:.40}");
        }
        let again = hash(new_password("correct horse"), &OsRandomness).await.unwrap();
        assert_ne!(stored, again, "salted");
    }

    #[tokio::test]
    async fn password_is_normalized_to_nfkc() {
        let composed = new_password("crème brûlée");
        let stored = hash(composed, &OsRandomness).await.unwrap();
        assert!(verify("cre\u{300}me bru\u{302}le\u{301}e", Some(&stored)).await.unwrap());
    }

    #[tokio::test]
    async fn dummy_hash_never_verifies_and_costs_the_same() {
        assert!(!verify("correct horse", None).await.unwrap());
        let dummy = phc::PasswordHash::new(DUMMY_HASH).unwrap();
        let new = new_password("correct horse");
        let real = hash(new, &OsRandomness).await.unwrap();
        let real = phc::PasswordHash::new(&real.0).unwrap();
        assert_eq!(dummy.algorithm, real.algorithm);
        assert_eq!(dummy.version, real.version);
        assert_eq!(Params::try_from(&dummy).unwrap(), Params::try_from(&real).unwrap());
        assert_eq!(dummy.hash.unwrap().len(), real.hash.unwrap().len());
    }
}
