//! How a person authenticated at the identity provider, as a session stores it.
//!
//! The ID token is needed once more, as a hint at sign-out. It is encrypted with AES-256-GCM, with a key that HKDF
//! derives from the token in the browser's cookie. The database has only a hash of that token. The store encrypts the
//! result once more, like every secret, so that a copy of the database needs the secrets key and the cookie.

use crate::sign_in::identity::claims::IdToken;
use chancery_domain::{Randomness, SecretToken, UnixMillis};
use chancery_store::SessionAuthentication;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

/// Separates this use of the cookie's token from any other.
const KEY_PURPOSE: &[u8] = b"chancery portal: ID token of a session";

/// Stored if the provider does not say when the person authenticated. It may have been long ago, so it is never recent.
pub(crate) const UNKNOWN_TIME: UnixMillis = UnixMillis(0);

#[derive(Clone, Debug, Default)]
pub(crate) struct Authentication {
    /// `auth_time`, if the provider sent it.
    pub(crate) at: Option<UnixMillis>,
    pub(crate) sid: Option<String>,
    pub(crate) id_token: Option<IdToken>,
}

impl Authentication {
    /// `known_at` counts without `auth_time`: for a new session, it is `UNKNOWN_TIME`.
    pub(crate) fn seal(
        &self,
        token: &SecretToken,
        known_at: UnixMillis,
        randomness: &dyn Randomness,
    ) -> SessionAuthentication {
        SessionAuthentication {
            authenticated_at: self.at.unwrap_or(known_at),
            sid: self.sid.clone(),
            id_token: self.id_token.as_ref().and_then(|IdToken(text)| seal(token, text, randomness)),
        }
    }

    pub(crate) fn open(stored: SessionAuthentication, token: &SecretToken) -> Self {
        let SessionAuthentication { authenticated_at, sid, id_token } = stored;
        let id_token = id_token.and_then(|sealed| open(token, &sealed)).map(IdToken);
        Self { at: Some(authenticated_at), sid, id_token }
    }
}

/// The random nonce comes first.
fn seal(token: &SecretToken, text: &str, randomness: &dyn Randomness) -> Option<Vec<u8>> {
    let mut nonce = [0; NONCE_LEN];
    randomness.fill(&mut nonce);
    let mut sealed = text.as_bytes().to_vec();
    let key = key(token)?;
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed).ok()?;
    Some([nonce.as_slice(), sealed.as_slice()].concat())
}

/// `None` if it was sealed with another token, or changed.
pub(crate) fn open(token: &SecretToken, stored: &[u8]) -> Option<String> {
    let (nonce, sealed) = stored.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut sealed = sealed.to_vec();
    let text = key(token)?.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
    String::from_utf8(text.to_vec()).ok()
}

fn key(token: &SecretToken) -> Option<LessSafeKey> {
    let secret = Salt::new(HKDF_SHA256, &[]).extract(token.reveal().as_bytes());
    let purpose = [KEY_PURPOSE];
    let key = secret.expand(&purpose, &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::SeededRandomness;

    #[test]
    fn id_token_opens_only_with_the_token_it_was_sealed_with() {
        let randomness = SeededRandomness::new(7);
        let (token, other) = (SecretToken::generate(&randomness), SecretToken::generate(&randomness));
        let sealed = seal(&token, "header.payload.signature", &randomness).unwrap();
        assert!(!sealed.windows(7).any(|window| window == b"payload"));
        assert_eq!(open(&token, &sealed).unwrap(), "header.payload.signature");
        assert_eq!(open(&other, &sealed), None);
        assert_ne!(seal(&token, "header.payload.signature", &randomness).unwrap(), sealed);
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert_eq!(open(&token, &changed), None, "byte {index}");
        }
        assert_eq!((open(&token, &[]), open(&token, &sealed[..NONCE_LEN])), (None, None));
    }
}
