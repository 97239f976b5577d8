//! The keys that sign ID tokens, and their rotation:
//!
//! 1. The next key is created and published a day before the current one stops signing. A client that fetches our keys at
//!    least daily never sees a signature by an unknown key.
//! 2. Then the next key starts signing. The old one stays published until the last ID token that it signed has expired.
//! 3. Keys are numbered, and the store accepts one key per number. If several nodes create the next key at the same time,
//!    one succeeds and the others use that one.
//!
//! Private keys are in the database. The store encrypts them.

use super::limits::{CLOCK_SKEW, ID_TOKEN_TTL, KEY_PUBLISH_LEAD, KEY_SIGNING_PERIOD};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::{Randomness, UnixMillis};
use chancery_store::{DbError, ProviderStore, SigningKey};
use p256::ecdsa::signature::{Signer, Verifier};
use p256::ecdsa::{Signature, SigningKey as EcdsaKey, VerifyingKey};
use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Each attempt either adds the key that is due or finds that another node has.
const MAX_ATTEMPTS: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error(transparent)]
    Store(#[from] DbError),
    #[error("signing key creation failed")]
    NotCreated,
}

/// All stored keys that can be parsed, including the one that is due.
pub(crate) struct KeyRing {
    keys: Vec<LoadedKey>,
    now: UnixMillis,
}

struct LoadedKey {
    stored: SigningKey,
    private: EcdsaKey,
}

/// The current signing key.
pub(crate) struct ActiveKey {
    pub(crate) key_id: String,
    key: EcdsaKey,
}

/// Loads the keys and creates the next one if it is due.
pub(crate) async fn key_ring(
    store: &ProviderStore,
    randomness: &dyn Randomness,
    now: UnixMillis,
) -> Result<KeyRing, KeyError> {
    for _ in 0..MAX_ATTEMPTS {
        let stored = store.signing_keys.signing_keys().await?;
        let generation = stored.iter().map(|key| key.generation).max().unwrap_or(0) + 1;
        let ring = KeyRing::of(stored, now);
        let Some(signs_from) = ring.next_key_starts_at() else { return Ok(ring) };
        let key = create_key(randomness, KeySchedule { generation, signs_from })?;
        let (generation, key_id) = (key.generation, key.key_id.clone());
        if store.signing_keys.add_signing_key(key).await? {
            tracing::info!(generation, key_id, "signing key created");
        }
    }
    Err(KeyError::NotCreated)
}

impl KeyRing {
    /// A key that cannot be parsed is skipped: it neither signs nor is published.
    fn of(stored: Vec<SigningKey>, now: UnixMillis) -> Self {
        let read = |stored: SigningKey| match EcdsaKey::from_pkcs8_der(&stored.private_key) {
            Ok(private) => Some(LoadedKey { stored, private }),
            Err(_) => {
                tracing::error!(key_id = stored.key_id, "unreadable signing key skipped");
                None
            }
        };
        Self { keys: stored.into_iter().filter_map(read).collect(), now }
    }

    /// If a key must be created now, returns when it starts signing.
    fn next_key_starts_at(&self) -> Option<UnixMillis> {
        // Keys are created a day ahead. One that starts later came from a wrong clock and is ignored.
        let latest = after(self.now, KEY_PUBLISH_LEAD + CLOCK_SKEW);
        let last = self.keys.iter().map(|key| &key.stored).rfind(|key| key.signs_from <= latest);
        match last {
            // No request came in time to create the next key, so it cannot be published ahead.
            Some(last) if last.signs_until <= self.now => Some(self.now),
            Some(last) => (last.signs_until <= after(self.now, KEY_PUBLISH_LEAD)).then_some(last.signs_until),
            None => Some(self.now),
        }
    }

    pub(crate) fn active_key(&self) -> Result<ActiveKey, KeyError> {
        let mut unexpired = self.keys.iter().filter(|key| key.stored.signs_until > self.now);
        let started = unexpired.clone().rfind(|key| key.stored.signs_from <= self.now);
        // No key has started if the clock was set back or a leaked key was deleted.
        let key = started.or_else(|| unexpired.next()).ok_or(KeyError::NotCreated)?;
        Ok(ActiveKey { key_id: key.stored.key_id.clone(), key: key.private.clone() })
    }

    /// The JSON Web Key Set.
    pub(crate) fn published(&self) -> Value {
        let published = self.keys.iter().filter(|key| key.stored.published_until > self.now);
        let keys = published.map(|LoadedKey { stored, private }| {
            let (x, y) = coordinates(private.verifying_key());
            json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": stored.key_id, "x": x, "y": y})
        });
        json!({"keys": keys.collect::<Vec<_>>()})
    }

    /// Whether one of our keys created this signature.
    pub(crate) fn is_ours(&self, key_id: &str, signed: &[u8], signature: &[u8]) -> bool {
        let key = self.keys.iter().find(|key| key.stored.key_id == key_id);
        match (key, Signature::from_slice(signature)) {
            (Some(key), Ok(signature)) => key.private.verifying_key().verify(signed, &signature).is_ok(),
            _ => false,
        }
    }
}

impl ActiveKey {
    pub(crate) fn sign(&self, text: &[u8]) -> Vec<u8> {
        let signature: Signature = self.key.sign(text);
        signature.to_bytes().to_vec()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeySchedule {
    generation: i64,
    signs_from: UnixMillis,
}

fn create_key(randomness: &dyn Randomness, times: KeySchedule) -> Result<SigningKey, KeyError> {
    let secret = generate_key(randomness)?;
    let (x, y) = coordinates(secret.verifying_key());
    let signs_until = after(times.signs_from, KEY_SIGNING_PERIOD);
    let private_key = secret.to_pkcs8_der().map_err(|_| KeyError::NotCreated)?;
    Ok(SigningKey {
        generation: times.generation,
        key_id: thumbprint(&x, &y),
        private_key: private_key.as_bytes().to_vec(),
        signs_from: times.signs_from,
        signs_until,
        published_until: after(signs_until, ID_TOKEN_TTL + CLOCK_SKEW),
    })
}

/// About one in four billion 256-bit numbers is not a valid key for this curve, and is drawn again.
fn generate_key(randomness: &dyn Randomness) -> Result<EcdsaKey, KeyError> {
    let mut bytes = [0; 32];
    for _ in 0..MAX_ATTEMPTS {
        randomness.fill(&mut bytes);
        if let Ok(key) = EcdsaKey::from_slice(&bytes) {
            return Ok(key);
        }
    }
    Err(KeyError::NotCreated)
}

/// Coordinates in JSON Web Key encoding.
fn coordinates(key: &VerifyingKey) -> (String, String) {
    // Skip the one-byte SEC1 tag. Each coordinate has 32 bytes.
    let point = key.to_sec1_point(false);
    let (x, y) = point.as_bytes().get(1..).unwrap_or_default().split_at(32);
    (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y))
}

/// Key id derived from the key (RFC 7638).
fn thumbprint(x: &str, y: &str) -> String {
    let jwk = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
    URL_SAFE_NO_PAD.encode(Sha256::digest(jwk.as_bytes()))
}

pub(super) fn after(at: UnixMillis, span: Duration) -> UnixMillis {
    UnixMillis(at.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{OsRandomness, SeededRandomness};

    const NOW: UnixMillis = UnixMillis(1_794_744_000_000);

    fn created(generation: i64, signs_from: UnixMillis) -> SigningKey {
        create_key(&OsRandomness, KeySchedule { generation, signs_from }).unwrap()
    }

    fn ring(keys: &[SigningKey], now: UnixMillis) -> KeyRing {
        KeyRing::of(keys.to_vec(), now)
    }

    fn next_key_starts_at(keys: &[SigningKey], now: UnixMillis) -> Option<UnixMillis> {
        ring(keys, now).next_key_starts_at()
    }

    fn published_ids(keys: &[SigningKey], now: UnixMillis) -> Vec<String> {
        let set = ring(keys, now).published();
        let keys = set["keys"].as_array().unwrap();
        keys.iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn next_key_is_due_one_day_before_the_last_expires() {
        assert_eq!(next_key_starts_at(&[], NOW), Some(NOW));
        let first = created(1, NOW);
        let stops = first.signs_until;
        let a_day_before = UnixMillis(stops.0 - KEY_PUBLISH_LEAD.as_millis() as i64);
        assert_eq!(next_key_starts_at(std::slice::from_ref(&first), UnixMillis(a_day_before.0 - 1)), None);
        assert_eq!(next_key_starts_at(std::slice::from_ref(&first), a_day_before), Some(stops));
        let keys = [first, created(2, stops)];
        assert_eq!(next_key_starts_at(&keys, a_day_before), None, "it is there");
        assert_eq!(next_key_starts_at(&keys, stops), None);
    }

    #[test]
    fn overdue_key_signs_immediately() {
        let first = created(1, NOW);
        let much_later = after(first.published_until, KEY_SIGNING_PERIOD);
        assert_eq!(next_key_starts_at(&[first], much_later), Some(much_later));
    }

    #[test]
    fn key_is_published_before_signing_until_its_last_token_expires() {
        let first = created(1, NOW);
        let stops = first.signs_until;
        let keys = [first.clone(), created(2, stops)];
        let both = [keys[0].key_id.clone(), keys[1].key_id.clone()];
        let just_before = UnixMillis(stops.0 - 1);
        assert_eq!(published_ids(&keys, just_before), both);
        assert_eq!(ring(&keys, just_before).active_key().unwrap().key_id, both[0]);
        assert_eq!(ring(&keys, stops).active_key().unwrap().key_id, both[1]);
        let last_token_expires = after(just_before, ID_TOKEN_TTL);
        assert_eq!(published_ids(&keys, last_token_expires), both);
        assert_eq!(published_ids(&keys, first.published_until), both[1..]);
    }

    #[test]
    fn clock_set_back_still_has_a_signing_key() {
        let keys = [created(1, NOW)];
        assert_eq!(ring(&keys, UnixMillis(NOW.0 - 1)).active_key().unwrap().key_id, keys[0].key_id);
    }

    #[test]
    fn key_from_a_fast_clock_is_ignored() {
        let in_a_year = after(NOW, KEY_SIGNING_PERIOD * 12);
        let far_ahead = created(1, in_a_year);
        assert_eq!(next_key_starts_at(std::slice::from_ref(&far_ahead), NOW), Some(NOW));
        let keys = [far_ahead, created(2, NOW)];
        assert_eq!(next_key_starts_at(&keys, NOW), None);
        assert_eq!(ring(&keys, NOW).active_key().unwrap().key_id, keys[1].key_id);
    }

    #[test]
    fn unreadable_key_is_skipped_and_replaced() {
        let mut broken = created(1, NOW);
        broken.private_key.truncate(7);
        assert_eq!(next_key_starts_at(std::slice::from_ref(&broken), NOW), Some(NOW));
        let keys = [created(1, NOW), SigningKey { generation: 2, ..broken }];
        assert_eq!(next_key_starts_at(&keys, NOW), None);
        assert_eq!(ring(&keys, NOW).active_key().unwrap().key_id, keys[0].key_id);
        assert_eq!(published_ids(&keys, NOW), [keys[0].key_id.clone()]);
    }

    #[test]
    fn deleted_key_is_replaced_by_the_next_one() {
        let first = created(1, NOW);
        let third = created(3, after(first.signs_until, KEY_PUBLISH_LEAD));
        let just_after = UnixMillis(first.signs_until.0 + 1);
        let keys = [first, third];
        assert_eq!(next_key_starts_at(&keys, just_after), None);
        assert_eq!(ring(&keys, just_after).active_key().unwrap().key_id, keys[1].key_id);
    }

    #[test]
    fn only_own_signatures_verify() {
        let keys = [created(1, NOW), created(2, NOW)];
        let ring = ring(&keys, NOW);
        let signing = ring.active_key().unwrap();
        let signature = signing.sign(b"text");
        assert!(ring.is_ours(&signing.key_id, b"text", &signature));
        assert!(!ring.is_ours(&signing.key_id, b"texT", &signature));
        assert!(!ring.is_ours(&keys[0].key_id, b"text", &signature), "another key");
        assert!(!ring.is_ours("", b"text", &signature));
        assert!(!ring.is_ours(&signing.key_id, b"text", &signature[1..]));
        assert!(!ring.is_ours(&signing.key_id, b"text", &[0; 64]));
    }

    #[test]
    fn key_id_is_the_thumbprint_of_the_key() {
        let generate = |seed| {
            create_key(&SeededRandomness::new(seed), KeySchedule { generation: 1, signs_from: NOW }).unwrap()
        };
        assert_eq!(generate(1).key_id, generate(1).key_id);
        assert_ne!(generate(1).key_id, generate(2).key_id);
        assert_eq!(generate(1).key_id.len(), 43);
    }
}
