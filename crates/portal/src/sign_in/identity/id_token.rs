//! Validates an ID token. The library verifies the signature. Claims are parsed and checked here, because the library rejects a
//! whole token for one invalid claim that we do not use, and leaves most of the following to its caller. `jsonwebtoken` was
//! considered too: it would replace 1 to 3 with a second set of cryptography, and leave 5 (`azp`), 6 (`iat`), 7 and 8 here.
//!
//! 1. It is a signed token (three parts), with no type other than `JWT` and no unknown `crit` header.
//! 2. Its algorithm is on a fixed list: never `none`, and never a shared secret.
//! 3. One of the provider's keys that matches the algorithm, and the `kid` if present, verifies the signature.
//! 4. `iss` equals the configured issuer exactly.
//! 5. `aud` is us. If it names others too, or if `azp` is present, `azp` must be us.
//! 6. `exp` is in the future; `iat` is neither in the future nor long ago; `nbf`, if present, is not in the future. All with a
//!    small clock skew.
//! 7. `nonce` is the one that this sign-in sent.
//! 8. `at_hash` and `c_hash`, if present, match the access token and the code.
//! 9. `sub` is present, and is one line of at most 255 characters.

use super::limits::{CLOCK_SKEW_S, ID_TOKEN_MAX_AGE_S, MAX_SUBJECT_CHARS};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use openidconnect::core::{CoreJsonWebKey, CoreJwsSigningAlgorithm};
use openidconnect::{AccessToken, AuthorizationCode, JsonWebKey, JsonWebKeyId};
use serde::Deserialize;
use serde_json::{Number, Value};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// Asymmetric algorithms only, whose signatures only the provider can create.
const ALGORITHMS: [(&str, CoreJwsSigningAlgorithm); 9] = [
    ("RS256", CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256),
    ("RS384", CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384),
    ("RS512", CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512),
    ("PS256", CoreJwsSigningAlgorithm::RsaSsaPssSha256),
    ("PS384", CoreJwsSigningAlgorithm::RsaSsaPssSha384),
    ("PS512", CoreJwsSigningAlgorithm::RsaSsaPssSha512),
    ("ES256", CoreJwsSigningAlgorithm::EcdsaP256Sha256),
    ("ES384", CoreJwsSigningAlgorithm::EcdsaP384Sha384),
    ("EdDSA", CoreJwsSigningAlgorithm::EdDsa),
];

/// What the token must match.
pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) nonce: &'a str,
    pub(super) code: &'a AuthorizationCode,
    pub(super) access_token: &'a AccessToken,
    pub(super) now_s: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum IdTokenError {
    /// Signed with none of the known keys. The provider may have newer ones.
    UnknownKey(String),
    Rejected(String),
}

#[derive(Debug, Deserialize)]
pub(super) struct Claims {
    iss: String,
    pub(super) sub: String,
    aud: Audience,
    exp: Number,
    iat: Number,
    nbf: Option<Number>,
    nonce: Option<String>,
    azp: Option<String>,
    at_hash: Option<String>,
    c_hash: Option<String>,
    #[serde(flatten)]
    pub(super) email: EmailClaims,
}

/// Accepts any JSON type, because an invalid address is no reason to reject the whole token.
#[derive(Debug, Default, Deserialize)]
pub(super) struct EmailClaims {
    email: Option<Value>,
    email_verified: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    cty: Option<Value>,
    crit: Option<Value>,
}

struct SignedToken<'a> {
    header: Header,
    signed: &'a str,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl EmailClaims {
    pub(super) fn is_present(&self) -> bool {
        self.email.is_some()
    }

    /// The address, if it is a string, and whether the provider has verified it. Only the boolean `true` counts.
    pub(super) fn into_address(self) -> (Option<String>, bool) {
        match self.email {
            Some(Value::String(address)) => (Some(address), self.email_verified == Some(Value::Bool(true))),
            _ => (None, false),
        }
    }
}

pub(super) fn check(
    token: &str,
    keys: &[CoreJsonWebKey],
    expected: &Expected<'_>,
) -> Result<Claims, IdTokenError> {
    let token = SignedToken::parse(token).map_err(IdTokenError::Rejected)?;
    let algorithm = token.header.accepted_algorithm().map_err(IdTokenError::Rejected)?;
    token.check_signature(keys, &algorithm)?;
    // serde's errors can quote a claim, which is not secret.
    let claims: Claims = serde_json::from_slice(&token.payload)
        .map_err(|error| IdTokenError::Rejected(format!("the ID token's claims: {error}")))?;
    claims.check(expected).map_err(IdTokenError::Rejected)?;
    claims.check_hashes(expected, &algorithm).map_err(IdTokenError::Rejected)?;
    Ok(claims)
}

impl<'a> SignedToken<'a> {
    fn parse(token: &'a str) -> Result<Self, String> {
        let malformed = |what: &str| format!("invalid ID token {what}");
        let Some((signed, signature)) = token.rsplit_once('.') else { return Err(malformed("form")) };
        let Some((header, payload)) = signed.split_once('.').filter(|(_, payload)| !payload.contains('.'))
        else {
            return Err("the ID token does not have three parts".to_owned());
        };
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part);
        let header = decode(header).map_err(|_| malformed("header"))?;
        Ok(Self {
            header: serde_json::from_slice(&header).map_err(|_| malformed("header"))?,
            signed,
            payload: decode(payload).map_err(|_| malformed("payload"))?,
            signature: decode(signature).map_err(|_| malformed("signature"))?,
        })
    }

    /// Without a `kid`, tries every key that matches the algorithm.
    fn check_signature(
        &self,
        keys: &[CoreJsonWebKey],
        algorithm: &CoreJwsSigningAlgorithm,
    ) -> Result<(), IdTokenError> {
        let kid = self.header.kid.as_ref().map(|kid| JsonWebKeyId::new(kid.clone()));
        let named: Vec<_> = keys.iter().filter(|key| kid.is_none() || key.key_id() == kid.as_ref()).collect();
        let verifies = |key: &CoreJsonWebKey| {
            key.verify_signature(algorithm, self.signed.as_bytes(), &self.signature).is_ok()
        };
        match (named.iter().copied().any(verifies), &kid) {
            (true, _) => Ok(()),
            (false, None) => Err(IdTokenError::UnknownKey(
                "the ID token has no `kid`, and none of the provider's keys verifies its signature"
                    .to_owned(),
            )),
            (false, Some(_)) if named.is_empty() => Err(IdTokenError::UnknownKey(
                "the ID token's `kid` matches none of the provider's keys".to_owned(),
            )),
            (false, Some(_)) => Err(IdTokenError::Rejected(
                "the ID token's signature does not verify with the key of its `kid`".to_owned(),
            )),
        }
    }
}

impl Header {
    fn accepted_algorithm(&self) -> Result<CoreJwsSigningAlgorithm, String> {
        let is_jwt = self.typ.as_deref().is_none_or(|typ| {
            let typ = typ.to_ascii_lowercase();
            matches!(typ.strip_prefix("application/").unwrap_or(&typ), "jwt" | "jose")
        });
        if !is_jwt {
            return Err("unexpected `typ` in the ID token".to_owned());
        }
        if self.crit.is_some() || self.cty.is_some() {
            return Err("unsupported `crit` or `cty` in the ID token".to_owned());
        }
        let known = ALGORITHMS.into_iter().find(|(name, _)| *name == self.alg);
        known.map(|(_, algorithm)| algorithm).ok_or_else(|| {
            let short: String = self.alg.chars().filter(char::is_ascii_graphic).take(16).collect();
            format!("the ID token's algorithm `{short}` is not accepted")
        })
    }
}

impl Claims {
    fn check(&self, expected: &Expected<'_>) -> Result<(), String> {
        if self.iss != expected.issuer {
            return Err(format!("the ID token's `iss` is not {}", expected.issuer));
        }
        let audiences = match &self.aud {
            Audience::One(one) => std::slice::from_ref(one),
            Audience::Several(several) => several.as_slice(),
        };
        if !audiences.iter().any(|audience| audience == expected.client_id) {
            return Err(format!("the ID token's `aud` is not {}", expected.client_id));
        }
        let has_others = audiences.iter().any(|audience| audience != expected.client_id);
        match self.azp.as_deref() {
            Some(party) if party != expected.client_id => {
                return Err(format!("the ID token's `azp` is not {}", expected.client_id));
            }
            None if has_others => {
                return Err("the ID token has several `aud` and no `azp`".to_owned());
            }
            _ => {}
        }
        self.check_times(expected.now_s)?;
        if self.nonce.as_deref() != Some(expected.nonce) {
            return Err("wrong `nonce` in the ID token".to_owned());
        }
        let is_subject = !self.sub.is_empty()
            && self.sub.chars().count() <= MAX_SUBJECT_CHARS
            && !self.sub.chars().any(char::is_control);
        if is_subject { Ok(()) } else { Err("invalid `sub` in the ID token".to_owned()) }
    }

    fn check_times(&self, now_s: i64) -> Result<(), String> {
        let (expires_s, issued_s) = (seconds(&self.exp, "exp")?, seconds(&self.iat, "iat")?);
        if expires_s + CLOCK_SKEW_S <= now_s {
            return Err(format!("the ID token's `exp` was {} s ago", now_s - expires_s));
        }
        if issued_s > now_s + CLOCK_SKEW_S {
            return Err(format!("the ID token's `iat` is {} s ahead of our clock", issued_s - now_s));
        }
        if issued_s + ID_TOKEN_MAX_AGE_S + CLOCK_SKEW_S < now_s {
            return Err(format!("the ID token's `iat` was {} s ago", now_s - issued_s));
        }
        match self.nbf.as_ref().map(|not_before| seconds(not_before, "nbf")).transpose()? {
            Some(not_before_s) if not_before_s > now_s + CLOCK_SKEW_S => {
                Err(format!("the ID token's `nbf` is {} s ahead of our clock", not_before_s - now_s))
            }
            _ => Ok(()),
        }
    }

    fn check_hashes(
        &self,
        expected: &Expected<'_>,
        algorithm: &CoreJwsSigningAlgorithm,
    ) -> Result<(), String> {
        let matches = |claimed: &Option<String>, text: &str| {
            claimed.as_ref().is_none_or(|claimed| left_half_hashes(text, algorithm).contains(claimed))
        };
        if !matches(&self.at_hash, expected.access_token.secret()) {
            return Err("the ID token's `at_hash` does not match the access token".to_owned());
        }
        if !matches(&self.c_hash, expected.code.secret()) {
            return Err("the ID token's `c_hash` does not match the code".to_owned());
        }
        Ok(())
    }
}

/// The left half of the algorithm's hash. No standard defines the hash for EdDSA: some providers use Ed25519's own SHA-512, some
/// SHA-256. Both are accepted, because either binds the text to the token.
fn left_half_hashes(text: &str, algorithm: &CoreJwsSigningAlgorithm) -> Vec<String> {
    use CoreJwsSigningAlgorithm as Algorithm;
    let left_half = |hash: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(&hash[..hash.len() / 2]);
    let (sha256, sha384, sha512) = (
        || left_half(&Sha256::digest(text)),
        || left_half(&Sha384::digest(text)),
        || left_half(&Sha512::digest(text)),
    );
    match algorithm {
        Algorithm::RsaSsaPkcs1V15Sha384 | Algorithm::RsaSsaPssSha384 | Algorithm::EcdsaP384Sha384 => {
            vec![sha384()]
        }
        Algorithm::RsaSsaPkcs1V15Sha512 | Algorithm::RsaSsaPssSha512 => vec![sha512()],
        Algorithm::EdDsa => vec![sha512(), sha256()],
        _ => vec![sha256()],
    }
}

/// Truncates to whole seconds; some providers send fractions.
fn seconds(number: &Number, name: &str) -> Result<i64, String> {
    /// In the year 5138: late enough, and far from overflow.
    const MAX_TIMESTAMP_S: f64 = 100_000_000_000.0;
    match number.as_f64() {
        Some(value) if (0.0..MAX_TIMESTAMP_S).contains(&value) => Ok(value as i64),
        _ => Err(format!("invalid `{name}` in the ID token")),
    }
}
