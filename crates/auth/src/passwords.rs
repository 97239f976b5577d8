//! Passwords: which are taken, and how they are kept and compared (argon2id, off the async threads, a few at a time).
//! Nothing here says whose they are.

use crate::limits::{
    ARGON2_LANES, ARGON2_MEMORY_KIB, ARGON2_PASSES, HASH_PATIENCE, HASHES_AT_ONCE, MAX_PASSWORD_CHARS,
    MIN_PASSWORD_CHARS, SALT_BYTES,
};
use argon2::password_hash::{PasswordHasher, PasswordVerifier, phc};
use argon2::{Algorithm, Argon2, Params, Version};
use chancery_domain::{EmailAddress, Randomness};
use chancery_store::PasswordHash;
use tokio::sync::Semaphore;
use unicode_normalization::UnicodeNormalization;

/// The memory is the process's, so the bound is too.
static TURNS: Semaphore = Semaphore::const_new(HASHES_AT_ONCE);

/// Compared with where an address has no account, so that the answer takes as long as for one that has. It is of a random
/// password that nobody kept, with the parameters above.
const NOBODYS_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$a2VlcHMgdGltZSBldmVu$1nXrSgD5C0dkzoYOOMjmxpGDrpQ36CZbvZ+LJAGCnGQ";

/// The commonest passwords that are long enough, in small letters. Guesses are few, so the head of the list is what counts.
const COMMONEST: &str = include_str!("commonest_passwords.txt");

/// Why a new password is not taken. The texts are for the person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordProblem {
    #[error("Choose a password of at least {MIN_PASSWORD_CHARS} characters")]
    TooShort,
    #[error("Choose a password of at most {MAX_PASSWORD_CHARS} characters")]
    TooLong,
    #[error("Choose another password; this is one of the first that a stranger would try")]
    Common,
    #[error("Choose a password that is not your e-mail address")]
    IsAddress,
}

/// Why there is no answer. For the log.
#[derive(Debug, thiserror::Error)]
pub enum HashingError {
    #[error("too many passwords are being checked at once")]
    Busy,
    #[error("a password could not be hashed: {0}")]
    Failed(String),
}

/// A password that is good enough to be set.
pub(crate) struct NewPassword(String);

impl NewPassword {
    /// No rule about kinds of characters: those make passwords alike and hard to type, not hard to guess.
    pub(crate) fn check(typed: &str, email: &EmailAddress) -> Result<Self, PasswordProblem> {
        let password = normalized(typed).ok_or(PasswordProblem::TooLong)?;
        let chars = password.chars().count();
        if chars < MIN_PASSWORD_CHARS {
            return Err(PasswordProblem::TooShort);
        }
        let small = password.to_lowercase();
        let name = email.as_str().split('@').next().unwrap_or_default();
        if small == email.as_str() || small == name {
            return Err(PasswordProblem::IsAddress);
        }
        let is_one_sign = small.chars().all(|sign| small.starts_with(sign));
        if is_one_sign || COMMONEST.lines().any(|common| common == small) {
            return Err(PasswordProblem::Common);
        }
        Ok(Self(password))
    }
}

/// One form for what looks the same, however a keyboard writes it. None for more than any password has.
fn normalized(typed: &str) -> Option<String> {
    // A character has at most four bytes; what is longer than that need not be looked at.
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
    in_turn(move || {
        let hash = argon2()?.hash_password_with_salt(password.0.as_bytes(), &salt).map_err(failed)?;
        Ok(PasswordHash(hash.to_string()))
    })
    .await
}

/// Whether the password is right. Without a hash there is no account: the same work is done, and the answer is no.
pub(crate) async fn is_right(typed: &str, kept: Option<&PasswordHash>) -> Result<bool, HashingError> {
    // What is too long to be a password is wrong, but takes as long as any other to say so.
    let password = normalized(typed).unwrap_or_default();
    let kept_text = kept.map_or(NOBODYS_HASH, |kept| &kept.0).to_owned();
    let matches = in_turn(move || {
        let kept = phc::PasswordHash::new(&kept_text).map_err(failed)?;
        match argon2()?.verify_password(password.as_bytes(), &kept) {
            Ok(()) => Ok(true),
            Err(argon2::password_hash::Error::PasswordInvalid) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    })
    .await?;
    Ok(matches && kept.is_some())
}

/// Hashing takes a core for some tens of milliseconds and 19 MiB, so it waits for a turn and leaves the async threads alone.
async fn in_turn<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HashingError> + Send + 'static,
) -> Result<T, HashingError> {
    let turn = tokio::time::timeout(HASH_PATIENCE, TURNS.acquire()).await;
    let turn = turn.map_err(|_| HashingError::Busy)?.map_err(failed)?;
    // The turn goes along: a caller who hangs up does not make room while the work goes on.
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
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

    fn problem(typed: &str) -> Option<PasswordProblem> {
        NewPassword::check(typed, &email()).err()
    }

    #[test]
    fn long_uncommon_passwords_are_taken_whatever_they_are_made_of() {
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
    fn short_long_common_passwords_and_the_address_itself_are_refused() {
        for (typed, expected) in [
            ("", PasswordProblem::TooShort),
            ("ninechars", PasswordProblem::TooShort),
            ("éééééé", PasswordProblem::TooShort),
            (&"x".repeat(129), PasswordProblem::TooLong),
            (&"x".repeat(100_000), PasswordProblem::TooLong),
            ("Password123", PasswordProblem::Common),
            ("1234567890", PasswordProblem::Common),
            ("QWERTYUIOP", PasswordProblem::Common),
            ("zzzzzzzzzzzzz", PasswordProblem::Common),
            ("MAYA.longlastname@example.com", PasswordProblem::IsAddress),
            ("maya.longlastname", PasswordProblem::IsAddress),
        ] {
            assert_eq!(problem(typed), Some(expected), "{typed:.40}");
        }
    }

    #[test]
    fn the_list_of_common_passwords_holds_only_what_could_be_chosen() {
        let mut seen = std::collections::HashSet::new();
        for common in COMMONEST.lines() {
            assert!(common.chars().count() >= MIN_PASSWORD_CHARS, "{common} is refused as too short anyway");
            assert_eq!(common, common.to_lowercase());
            assert!(seen.insert(common), "{common} is there twice");
        }
        assert!(seen.len() >= 100);
    }

    #[tokio::test]
    async fn a_password_is_right_only_for_the_hash_that_was_made_of_it() {
        let new = NewPassword::check("correct horse", &email()).unwrap();
        let kept = hash(new, &OsRandomness).await.unwrap();
        assert!(kept.0.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", kept.0);
        assert!(is_right("correct horse", Some(&kept)).await.unwrap());
        for wrong in ["correct  horse", "Correct horse", "", "correct horse\0", &"x".repeat(10_000)] {
            assert!(!is_right(wrong, Some(&kept)).await.unwrap(), "{wrong:.40}");
        }
        let again =
            hash(NewPassword::check("correct horse", &email()).unwrap(), &OsRandomness).await.unwrap();
        assert_ne!(kept, again, "salted");
    }

    #[tokio::test]
    async fn a_password_is_the_same_however_a_keyboard_composes_it() {
        let composed = NewPassword::check("crème brûlée", &email()).unwrap();
        let kept = hash(composed, &OsRandomness).await.unwrap();
        assert!(is_right("cre\u{300}me bru\u{302}le\u{301}e", Some(&kept)).await.unwrap());
    }

    #[tokio::test]
    async fn nobodys_password_is_never_right_and_costs_what_anybodys_does() {
        assert!(!is_right("correct horse", None).await.unwrap());
        let nobodys = phc::PasswordHash::new(NOBODYS_HASH).unwrap();
        let new = NewPassword::check("correct horse", &email()).unwrap();
        let somebodys = hash(new, &OsRandomness).await.unwrap();
        let somebodys = phc::PasswordHash::new(&somebodys.0).unwrap();
        assert_eq!(nobodys.algorithm, somebodys.algorithm);
        assert_eq!(nobodys.version, somebodys.version);
        assert_eq!(Params::try_from(&nobodys).unwrap(), Params::try_from(&somebodys).unwrap());
        assert_eq!(nobodys.hash.unwrap().len(), somebodys.hash.unwrap().len());
    }

    proptest! {
        #[test]
        fn checking_a_password_never_panics_and_never_takes_a_short_or_long_one(typed in "\\PC{0,200}") {
            if let Ok(NewPassword(password)) = NewPassword::check(&typed, &email()) {
                let chars = password.chars().count();
                prop_assert!((MIN_PASSWORD_CHARS..=MAX_PASSWORD_CHARS).contains(&chars));
            }
        }
    }
}
