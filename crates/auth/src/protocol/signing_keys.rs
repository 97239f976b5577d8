//! The keys that ID tokens are signed with, and when one takes over from another:
//!
//! 1. The next key is made a day before the present one stops, and published at once. Nobody who fetches our keys at least
//!    daily ever meets a signature by a key that they do not have.
//! 2. At that moment the next key signs. The old one stays published until the last ID token that it signed has expired.
//! 3. Keys are numbered, and the store takes one key of a number. Of many nodes that make the next key at the same time,
//!    one succeeds, and the others use that one.
//!
//! Private keys are in the database, as safe as the sessions and passwords beside them.

use super::limits::{CLOCK_SKEW, ID_TOKEN_LIFE, KEY_KNOWN_AHEAD, KEY_SIGNS_FOR};
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

/// Each try either adds the key that is due or finds that another node has.
const MAX_TRIES: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error(transparent)]
    Store(#[from] DbError),
    #[error("no signing key could be made")]
    NotMade,
}

/// All keys that are kept and can be read, with the one that is due among them.
pub(crate) struct KeyRing {
    keys: Vec<ReadKey>,
    now: UnixMillis,
}

struct ReadKey {
    kept: SigningKey,
    private: EcdsaKey,
}

/// The key that signs now.
pub(crate) struct SigningNow {
    pub(crate) key_id: String,
    key: EcdsaKey,
}

/// Reads the keys, and makes the one that is due.
pub(crate) async fn key_ring(
    store: &ProviderStore,
    randomness: &dyn Randomness,
    now: UnixMillis,
) -> Result<KeyRing, KeyError> {
    for _ in 0..MAX_TRIES {
        let kept = store.signing_keys.signing_keys().await?;
        let generation = kept.iter().map(|key| key.generation).max().unwrap_or(0) + 1;
        let ring = KeyRing::of(kept, now);
        let Some(signs_from) = ring.due() else { return Ok(ring) };
        let key = make(randomness, KeyTimes { generation, signs_from })?;
        let (generation, key_id) = (key.generation, key.key_id.clone());
        if store.signing_keys.add_signing_key(key).await? {
            tracing::info!(generation, key_id, "made a signing key");
        }
    }
    Err(KeyError::NotMade)
}

impl KeyRing {
    /// What cannot be read signs nothing and is not published; the others do their work all the same.
    fn of(kept: Vec<SigningKey>, now: UnixMillis) -> Self {
        let read = |kept: SigningKey| match EcdsaKey::from_pkcs8_der(&kept.private_key) {
            Ok(private) => Some(ReadKey { kept, private }),
            Err(_) => {
                tracing::error!(kept.key_id, "a signing key in the database cannot be read; it is left out");
                None
            }
        };
        Self { keys: kept.into_iter().filter_map(read).collect(), now }
    }

    /// From when the key signs that must be made now, if any.
    fn due(&self) -> Option<UnixMillis> {
        // Keys are made a day ahead. One that begins later was made by a clock that was wrong; nobody waits for it.
        let latest = after(self.now, KEY_KNOWN_AHEAD + CLOCK_SKEW);
        let last = self.keys.iter().map(|key| &key.kept).rfind(|key| key.signs_from <= latest);
        match last {
            // Nobody asked for so long that no key was made in time; it cannot be known ahead any more.
            Some(last) if last.signs_until <= self.now => Some(self.now),
            Some(last) => (last.signs_until <= after(self.now, KEY_KNOWN_AHEAD)).then_some(last.signs_until),
            None => Some(self.now),
        }
    }

    pub(crate) fn signing_now(&self) -> Result<SigningNow, KeyError> {
        let mut lasting = self.keys.iter().filter(|key| key.kept.signs_until > self.now);
        let begun = lasting.clone().rfind(|key| key.kept.signs_from <= self.now);
        // None has begun after a clock was set back, or when a key that had leaked was deleted.
        let key = begun.or_else(|| lasting.next()).ok_or(KeyError::NotMade)?;
        Ok(SigningNow { key_id: key.kept.key_id.clone(), key: key.private.clone() })
    }

    /// The JSON Web Key Set.
    pub(crate) fn published(&self) -> Value {
        let published = self.keys.iter().filter(|key| key.kept.published_until > self.now);
        let keys = published.map(|ReadKey { kept, private }| {
            let (x, y) = coordinates(private.verifying_key());
            json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": kept.key_id, "x": x, "y": y})
        });
        json!({"keys": keys.collect::<Vec<_>>()})
    }

    /// Whether one of our keys made this signature.
    pub(crate) fn is_ours(&self, key_id: &str, signed: &[u8], signature: &[u8]) -> bool {
        let key = self.keys.iter().find(|key| key.kept.key_id == key_id);
        match (key, Signature::from_slice(signature)) {
            (Some(key), Ok(signature)) => key.private.verifying_key().verify(signed, &signature).is_ok(),
            _ => false,
        }
    }
}

impl SigningNow {
    pub(crate) fn sign(&self, text: &[u8]) -> Vec<u8> {
        let signature: Signature = self.key.sign(text);
        signature.to_bytes().to_vec()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyTimes {
    generation: i64,
    signs_from: UnixMillis,
}

fn make(randomness: &dyn Randomness, times: KeyTimes) -> Result<SigningKey, KeyError> {
    let secret = draw(randomness)?;
    let (x, y) = coordinates(secret.verifying_key());
    let signs_until = after(times.signs_from, KEY_SIGNS_FOR);
    let private_key = secret.to_pkcs8_der().map_err(|_| KeyError::NotMade)?;
    Ok(SigningKey {
        generation: times.generation,
        key_id: thumbprint(&x, &y),
        private_key: private_key.as_bytes().to_vec(),
        signs_from: times.signs_from,
        signs_until,
        published_until: after(signs_until, ID_TOKEN_LIFE + CLOCK_SKEW),
    })
}

/// Of all 256-bit numbers one in four billion is not a key of this curve, and is drawn again.
fn draw(randomness: &dyn Randomness) -> Result<EcdsaKey, KeyError> {
    let mut bytes = [0; 32];
    for _ in 0..MAX_TRIES {
        randomness.fill(&mut bytes);
        if let Ok(key) = EcdsaKey::from_slice(&bytes) {
            return Ok(key);
        }
    }
    Err(KeyError::NotMade)
}

/// As a JSON Web Key has them.
fn coordinates(key: &VerifyingKey) -> (String, String) {
    // One byte says that both follow, of 32 bytes each.
    let point = key.to_sec1_point(false);
    let (x, y) = point.as_bytes().get(1..).unwrap_or_default().split_at(32);
    (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y))
}

/// A name that follows from the key (RFC 7638).
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

    fn made(generation: i64, signs_from: UnixMillis) -> SigningKey {
        make(&OsRandomness, KeyTimes { generation, signs_from }).unwrap()
    }

    fn ring(keys: &[SigningKey], now: UnixMillis) -> KeyRing {
        KeyRing::of(keys.to_vec(), now)
    }

    fn due(keys: &[SigningKey], now: UnixMillis) -> Option<UnixMillis> {
        ring(keys, now).due()
    }

    fn published_ids(keys: &[SigningKey], now: UnixMillis) -> Vec<String> {
        let set = ring(keys, now).published();
        let keys = set["keys"].as_array().unwrap();
        keys.iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_next_key_is_due_a_day_before_the_last_one_stops_and_not_earlier() {
        assert_eq!(due(&[], NOW), Some(NOW));
        let first = made(1, NOW);
        let stops = first.signs_until;
        let a_day_before = UnixMillis(stops.0 - KEY_KNOWN_AHEAD.as_millis() as i64);
        assert_eq!(due(std::slice::from_ref(&first), UnixMillis(a_day_before.0 - 1)), None);
        assert_eq!(due(std::slice::from_ref(&first), a_day_before), Some(stops));
        let keys = [first, made(2, stops)];
        assert_eq!(due(&keys, a_day_before), None, "it is there");
        assert_eq!(due(&keys, stops), None);
    }

    #[test]
    fn after_a_long_silence_a_key_signs_at_once() {
        let first = made(1, NOW);
        let much_later = after(first.published_until, KEY_SIGNS_FOR);
        assert_eq!(due(&[first], much_later), Some(much_later));
    }

    #[test]
    fn a_key_is_known_before_it_signs_and_after_until_its_last_token_expired() {
        let first = made(1, NOW);
        let stops = first.signs_until;
        let keys = [first.clone(), made(2, stops)];
        let both = [keys[0].key_id.clone(), keys[1].key_id.clone()];
        let just_before = UnixMillis(stops.0 - 1);
        assert_eq!(published_ids(&keys, just_before), both);
        assert_eq!(ring(&keys, just_before).signing_now().unwrap().key_id, both[0]);
        assert_eq!(ring(&keys, stops).signing_now().unwrap().key_id, both[1]);
        let last_token_expires = after(just_before, ID_TOKEN_LIFE);
        assert_eq!(published_ids(&keys, last_token_expires), both);
        assert_eq!(published_ids(&keys, first.published_until), both[1..]);
    }

    #[test]
    fn a_clock_that_was_set_back_finds_a_key_to_sign_with() {
        let keys = [made(1, NOW)];
        assert_eq!(ring(&keys, UnixMillis(NOW.0 - 1)).signing_now().unwrap().key_id, keys[0].key_id);
    }

    #[test]
    fn a_key_of_a_clock_that_was_far_ahead_is_not_waited_for() {
        let in_a_year = after(NOW, KEY_SIGNS_FOR * 12);
        let far_ahead = made(1, in_a_year);
        assert_eq!(due(std::slice::from_ref(&far_ahead), NOW), Some(NOW));
        let keys = [far_ahead, made(2, NOW)];
        assert_eq!(due(&keys, NOW), None);
        assert_eq!(ring(&keys, NOW).signing_now().unwrap().key_id, keys[1].key_id);
    }

    #[test]
    fn a_key_that_cannot_be_read_is_left_out_and_replaced() {
        let mut broken = made(1, NOW);
        broken.private_key.truncate(7);
        assert_eq!(due(std::slice::from_ref(&broken), NOW), Some(NOW));
        let keys = [made(1, NOW), SigningKey { generation: 2, ..broken }];
        assert_eq!(due(&keys, NOW), None);
        assert_eq!(ring(&keys, NOW).signing_now().unwrap().key_id, keys[0].key_id);
        assert_eq!(published_ids(&keys, NOW), [keys[0].key_id.clone()]);
    }

    #[test]
    fn a_key_that_was_deleted_is_replaced_by_the_next_one_and_never_by_one_that_stopped() {
        let first = made(1, NOW);
        let third = made(3, after(first.signs_until, KEY_KNOWN_AHEAD));
        let just_after = UnixMillis(first.signs_until.0 + 1);
        let keys = [first, third];
        assert_eq!(due(&keys, just_after), None);
        assert_eq!(ring(&keys, just_after).signing_now().unwrap().key_id, keys[1].key_id);
    }

    #[test]
    fn what_a_key_signed_is_ours_and_nothing_else_is() {
        let keys = [made(1, NOW), made(2, NOW)];
        let ring = ring(&keys, NOW);
        let signing = ring.signing_now().unwrap();
        let signature = signing.sign(b"text");
        assert!(ring.is_ours(&signing.key_id, b"text", &signature));
        assert!(!ring.is_ours(&signing.key_id, b"texT", &signature));
        assert!(!ring.is_ours(&keys[0].key_id, b"text", &signature), "another key");
        assert!(!ring.is_ours("", b"text", &signature));
        assert!(!ring.is_ours(&signing.key_id, b"text", &signature[1..]));
        assert!(!ring.is_ours(&signing.key_id, b"text", &[0; 64]));
    }

    #[test]
    fn keys_are_drawn_and_their_names_follow_from_them() {
        let draw =
            |seed| make(&SeededRandomness::new(seed), KeyTimes { generation: 1, signs_from: NOW }).unwrap();
        assert_eq!(draw(1).key_id, draw(1).key_id);
        assert_ne!(draw(1).key_id, draw(2).key_id);
        assert_eq!(draw(1).key_id.len(), 43);
    }
}
