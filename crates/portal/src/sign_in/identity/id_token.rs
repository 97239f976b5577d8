//! Validates an ID token. `signed_token` does 1 to 3.
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

use super::jwk::{Algorithm, JsonWebKey};
use super::limits::{CLOCK_SKEW_S, ID_TOKEN_MAX_AGE_S, MAX_SUBJECT_CHARS};
use super::signed_token::{Audience, ID_TOKEN, SignedToken, TokenError, seconds};
use serde::Deserialize;
use serde_json::{Map, Number, Value};

/// What the token must match.
pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) nonce: &'a str,
    pub(super) code: &'a str,
    pub(super) access_token: &'a str,
    pub(super) now_s: i64,
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

impl EmailClaims {
    pub(super) fn of(claims: &Map<String, Value>) -> Self {
        // Like serde, takes `null` as absent.
        let present = |name| claims.get(name).filter(|value| !value.is_null()).cloned();
        Self { email: present("email"), email_verified: present("email_verified") }
    }

    /// Whether both claims are present, whatever their values.
    pub(super) fn is_complete(&self) -> bool {
        self.email.is_some() && self.email_verified.is_some()
    }

    /// Adds what the token lacks. The other claims say whether an address is verified only if it is the same address.
    pub(super) fn or(self, other: Self) -> Self {
        if self.email.is_none() {
            other
        } else if self.email_verified.is_none() && self.email == other.email {
            Self { email_verified: other.email_verified, ..self }
        } else {
            self
        }
    }

    /// The address, if it is a string, and whether the provider has verified it. Only the boolean `true` counts.
    pub(super) fn into_address(self) -> (Option<String>, bool) {
        match self.email {
            Some(Value::String(address)) => (Some(address), self.email_verified == Some(Value::Bool(true))),
            _ => (None, false),
        }
    }
}

/// Returns the claims that were checked, and all claims of the token.
pub(super) fn check(
    token: &str,
    keys: &[JsonWebKey],
    expected: &Expected<'_>,
) -> Result<(Claims, Map<String, Value>), TokenError> {
    let token = SignedToken::parse(token, ID_TOKEN).map_err(TokenError::Rejected)?;
    token.check_signature(keys)?;
    // serde's errors can quote a claim, which is not secret.
    let invalid = |error: serde_json::Error| TokenError::Rejected(format!("the ID token's claims: {error}"));
    let claims: Claims = serde_json::from_slice(&token.payload).map_err(invalid)?;
    claims.check(expected).map_err(TokenError::Rejected)?;
    claims.check_hashes(expected, token.algorithm).map_err(TokenError::Rejected)?;
    let all = serde_json::from_slice(&token.payload).map_err(invalid)?;
    Ok((claims, all))
}

impl Claims {
    fn check(&self, expected: &Expected<'_>) -> Result<(), String> {
        if self.iss != expected.issuer {
            return Err(format!("the ID token's `iss` is not {}", expected.issuer));
        }
        let audiences = self.aud.names();
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
        let (expires_s, issued_s) =
            (seconds(&self.exp, "exp", ID_TOKEN)?, seconds(&self.iat, "iat", ID_TOKEN)?);
        if expires_s + CLOCK_SKEW_S <= now_s {
            return Err(format!("the ID token's `exp` was {} s ago", now_s - expires_s));
        }
        if issued_s > now_s + CLOCK_SKEW_S {
            return Err(format!("the ID token's `iat` is {} s ahead of our clock", issued_s - now_s));
        }
        if issued_s + ID_TOKEN_MAX_AGE_S + CLOCK_SKEW_S < now_s {
            return Err(format!("the ID token's `iat` was {} s ago", now_s - issued_s));
        }
        match self.nbf.as_ref().map(|not_before| seconds(not_before, "nbf", ID_TOKEN)).transpose()? {
            Some(not_before_s) if not_before_s > now_s + CLOCK_SKEW_S => {
                Err(format!("the ID token's `nbf` is {} s ahead of our clock", not_before_s - now_s))
            }
            _ => Ok(()),
        }
    }

    fn check_hashes(&self, expected: &Expected<'_>, algorithm: &Algorithm) -> Result<(), String> {
        let matches = |claimed: &Option<String>, text: &str| {
            claimed.as_ref().is_none_or(|claimed| algorithm.is_half_hash(claimed, text))
        };
        if !matches(&self.at_hash, expected.access_token) {
            return Err("the ID token's `at_hash` does not match the access token".to_owned());
        }
        if !matches(&self.c_hash, expected.code) {
            return Err("the ID token's `c_hash` does not match the code".to_owned());
        }
        Ok(())
    }
}
