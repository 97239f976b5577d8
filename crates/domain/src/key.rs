//! API keys. A key is `ck_` + 8 public characters + `_` + 43 secret characters carrying 256 bits. The public part identifies
//! it in lists and commands. Only a SHA-256 of the key is stored. It needs no salt because the secret is uniformly random:
//! there is nothing to guess or to look up.

use crate::{AccountId, KeyId, KeyLimits, Randomness, SecretToken, UnixMillis};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

const SCHEME: &str = "ck_";
const PUBLIC_CHARS: usize = 8;
const SECRET_CHARS: usize = 43;
const PREFIX_CHARS: usize = SCHEME.len() + PUBLIC_CHARS;
const KEY_CHARS: usize = PREFIX_CHARS + 1 + SECRET_CHARS;

/// A whole key, secret included. Its `Debug` shows the public part only, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed API key")]
pub struct ApiKeyError;

const LOWERCASE_ALPHANUMERIC: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

impl ApiKey {
    pub fn generate(randomness: &dyn Randomness) -> Self {
        const ALPHANUMERIC: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let mut key = String::with_capacity(KEY_CHARS);
        key.push_str(SCHEME);
        push_random_chars(&mut key, PUBLIC_CHARS, LOWERCASE_ALPHANUMERIC, randomness);
        key.push('_');
        // 43 uniform draws from 62 characters carry log2(62^43) = 256.03 bits.
        push_random_chars(&mut key, SECRET_CHARS, ALPHANUMERIC, randomness);
        Self(key)
    }

    /// The key with this prefix and a new secret.
    pub fn with_new_secret(prefix: &KeyPrefix, randomness: &dyn Randomness) -> Self {
        let generated = Self::generate(randomness);
        Self(format!("{prefix}{}", &generated.0[PREFIX_CHARS..]))
    }

    /// Derives the key from a secret, so that all nodes that share the secret have the same key. The public part comes from a
    /// hash of the secret and reveals no more than the stored hash.
    pub fn derive_from_secret(secret: &SecretToken) -> Self {
        let mut key = String::with_capacity(KEY_CHARS);
        key.push_str(SCHEME);
        let digest = Sha256::digest(secret.reveal().as_bytes());
        key.extend(digest.iter().take(PUBLIC_CHARS).map(|byte| {
            char::from(LOWERCASE_ALPHANUMERIC[usize::from(*byte) % LOWERCASE_ALPHANUMERIC.len()])
        }));
        key.push('_');
        key.push_str(secret.reveal());
        Self(key)
    }

    pub fn parse(text: &str) -> Result<Self, ApiKeyError> {
        let bytes = text.as_bytes();
        let well_formed = bytes.len() == KEY_CHARS
            && is_prefix(&bytes[..PREFIX_CHARS])
            && bytes[PREFIX_CHARS] == b'_'
            && bytes[PREFIX_CHARS + 1..].iter().all(u8::is_ascii_alphanumeric);
        if well_formed { Ok(Self(text.to_owned())) } else { Err(ApiKeyError) }
    }

    pub fn prefix(&self) -> KeyPrefix {
        KeyPrefix(self.0[..PREFIX_CHARS].to_owned())
    }

    pub fn hash(&self) -> KeyHash {
        KeyHash(Sha256::digest(self.0.as_bytes()).into())
    }

    /// The whole key: shown to its owner once, and sent as a bearer token.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({}_…)", self.prefix())
    }
}

pub(crate) fn push_random_chars(
    text: &mut String,
    count: usize,
    alphabet: &[u8],
    randomness: &dyn Randomness,
) {
    // Draws past the last whole multiple of the alphabet's length are discarded, to avoid modulo bias.
    let bound = 256 - 256 % alphabet.len();
    let target = text.len() + count;
    while text.len() < target {
        let mut draws = [0_u8; 64];
        randomness.fill(&mut draws);
        let fair = draws.into_iter().map(usize::from).filter(|draw| *draw < bound);
        text.extend(fair.take(target - text.len()).map(|draw| char::from(alphabet[draw % alphabet.len()])));
    }
}

/// The public part of a key, such as `ck_7k2m9x4d`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyPrefix(String);

fn is_prefix(bytes: &[u8]) -> bool {
    bytes.len() == PREFIX_CHARS
        && bytes.starts_with(SCHEME.as_bytes())
        && bytes[SCHEME.len()..].iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

impl KeyPrefix {
    /// A new prefix, for a key that is created later.
    pub fn generate(randomness: &dyn Randomness) -> Self {
        let mut prefix = SCHEME.to_owned();
        push_random_chars(&mut prefix, PUBLIC_CHARS, LOWERCASE_ALPHANUMERIC, randomness);
        Self(prefix)
    }

    pub fn parse(text: &str) -> Result<Self, ApiKeyError> {
        if is_prefix(text.as_bytes()) { Ok(Self(text.to_owned())) } else { Err(ApiKeyError) }
    }

    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether text that a person typed or pasted identifies this key: any leading part of the prefix, or the prefix and more.
    pub fn is_prefix_match(&self, typed: &str) -> bool {
        self.0.starts_with(typed) || typed.starts_with(&self.0)
    }
}

impl fmt::Display for KeyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// SHA-256 of a whole key.
#[derive(Clone, Copy, Debug)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// Compares in constant time, so that timing reveals nothing about the hash.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    Active,
    Revoked { at: UnixMillis },
}

/// A stored key, without its secret.
#[derive(Clone, Debug)]
pub struct Key {
    pub id: KeyId,
    pub prefix: KeyPrefix,
    pub hash: KeyHash,
    /// Empty if none was given.
    pub label: String,
    /// A key without an account cannot be billed, so it cannot generate.
    pub account: Option<AccountId>,
    pub created_at: UnixMillis,
    pub state: KeyState,
    pub limits: KeyLimits,
    /// After a rotation, the secret before it.
    pub previous_secret: Option<PreviousSecret>,
}

/// A secret that a key's rotation replaced. It stays valid for a while, so that callers can switch.
#[derive(Clone, Copy, Debug)]
pub struct PreviousSecret {
    pub hash: KeyHash,
    pub expires_at: UnixMillis,
}

impl Key {
    /// Whether this is its secret, or the one before.
    pub fn has_secret(&self, presented: &KeyHash) -> bool {
        self.hash.matches(presented)
            || self.previous_secret.is_some_and(|previous| previous.hash.matches(presented))
    }

    /// Whether this secret is valid now. Says nothing about the account.
    pub fn accepts(&self, presented: &KeyHash, now: UnixMillis) -> bool {
        let is_previous = self
            .previous_secret
            .is_some_and(|previous| previous.hash.matches(presented) && now < previous.expires_at);
        (self.hash.matches(presented) || is_previous)
            && self.state == KeyState::Active
            && !self.limits.is_expired(now)
    }

    /// Until when the secret before the last rotation works too; `None` if it does not.
    pub fn overlap_ends_at(&self, now: UnixMillis) -> Option<UnixMillis> {
        let ends_at = self.previous_secret?.expires_at;
        let ends_at = self.limits.expires_at.map_or(ends_at, |expires_at| expires_at.min(ends_at));
        (ends_at > now).then_some(ends_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OsRandomness, SeededRandomness};
    use proptest::prelude::*;

    #[test]
    fn generated_keys_parse_and_differ() {
        let (one, two) = (ApiKey::generate(&OsRandomness), ApiKey::generate(&OsRandomness));
        assert_eq!(ApiKey::parse(one.reveal()), Ok(one.clone()));
        assert_ne!(one, two);
        assert!(one.hash().matches(&one.hash()));
        assert!(!one.hash().matches(&two.hash()));
    }

    #[test]
    fn generated_prefix_parses_and_other_text_does_not() {
        let prefix = KeyPrefix::generate(&OsRandomness);
        assert_eq!(KeyPrefix::parse(prefix.as_str()).unwrap().as_str(), prefix.as_str());
        for bad in ["", "ck_", "ck_ABCDEFGH", "ck_abcdefg", "ck_abcdefghi", "xk_abcdefgh", "ck_abcd/fgh"] {
            assert!(KeyPrefix::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rotated_key_has_the_same_prefix_and_another_secret() {
        let key = ApiKey::generate(&OsRandomness);
        let rotated = ApiKey::with_new_secret(&key.prefix(), &OsRandomness);
        assert_eq!(ApiKey::parse(rotated.reveal()), Ok(rotated.clone()));
        assert_eq!(rotated.prefix(), key.prefix());
        assert_ne!(rotated, key);
    }

    #[test]
    fn key_accepts_two_secrets_during_the_overlap_and_none_after_it_expires() {
        let (old, new) = (ApiKey::generate(&OsRandomness), ApiKey::generate(&OsRandomness));
        let key = Key {
            id: KeyId(1),
            prefix: new.prefix(),
            hash: new.hash(),
            label: String::new(),
            account: None,
            created_at: UnixMillis(0),
            state: KeyState::Active,
            limits: KeyLimits { expires_at: Some(UnixMillis(20)), ..KeyLimits::default() },
            previous_secret: Some(PreviousSecret { hash: old.hash(), expires_at: UnixMillis(10) }),
        };
        for (now, accepts_old, accepts_new) in [(9, true, true), (10, false, true), (20, false, false)] {
            assert_eq!(key.accepts(&old.hash(), UnixMillis(now)), accepts_old, "old at {now}");
            assert_eq!(key.accepts(&new.hash(), UnixMillis(now)), accepts_new, "new at {now}");
        }
        assert_eq!(key.overlap_ends_at(UnixMillis(9)), Some(UnixMillis(10)));
        assert_eq!(key.overlap_ends_at(UnixMillis(10)), None);
        let expires_first = KeyLimits { expires_at: Some(UnixMillis(5)), ..KeyLimits::default() };
        let expires_first = Key { limits: expires_first, ..key.clone() };
        assert_eq!(expires_first.overlap_ends_at(UnixMillis(1)), Some(UnixMillis(5)));
        let revoked = Key { state: KeyState::Revoked { at: UnixMillis(1) }, ..key };
        assert!(!revoked.accepts(&new.hash(), UnixMillis(5)) && !revoked.accepts(&old.hash(), UnixMillis(5)));
    }

    #[test]
    fn key_derived_from_secret_is_deterministic() {
        let secret = SecretToken::generate(&SeededRandomness::new(7));
        let key = ApiKey::derive_from_secret(&secret);
        assert_eq!(ApiKey::parse(key.reveal()), Ok(key.clone()));
        assert_eq!(ApiKey::derive_from_secret(&secret), key);
        assert_ne!(
            ApiKey::derive_from_secret(&SecretToken::generate(&SeededRandomness::new(8))).prefix(),
            key.prefix()
        );
    }

    #[test]
    fn key_debug_hides_secret() {
        let key = ApiKey::generate(&SeededRandomness::new(1));
        let secret = &key.reveal()[PREFIX_CHARS + 1..];
        assert!(!format!("{key:?}").contains(secret));
    }

    #[test]
    fn key_matches_any_leading_part() {
        let key = ApiKey::generate(&SeededRandomness::new(1));
        let prefix = key.prefix();
        assert!(prefix.is_prefix_match(key.reveal()));
        assert!(prefix.is_prefix_match(&prefix.as_str()[..6]));
        assert!(!prefix.is_prefix_match("ck_?"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = ApiKey::parse(&text);
        }

        #[test]
        fn altered_key_never_matches_hash(seed: u64, index in 0..KEY_CHARS) {
            let key = ApiKey::generate(&SeededRandomness::new(seed));
            let mut bytes = key.reveal().as_bytes().to_vec();
            bytes[index] = if bytes[index] == b'x' { b'y' } else { b'x' };
            if let Ok(changed) = ApiKey::parse(&String::from_utf8(bytes).unwrap()) {
                prop_assert!(!changed.hash().matches(&key.hash()));
            }
        }
    }
}
