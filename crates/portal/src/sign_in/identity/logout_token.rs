//! Validates a logout token (OpenID Connect Back-Channel Logout 1.0, section 2.6).
//!
//! 1. Type, algorithm and signature are checked as for an ID token (`signed_token`).
//! 2. `iss` equals the configured issuer exactly, and `aud` names us.
//! 3. `exp` is in the future, and `iat` is neither in the future nor long ago, with a small clock skew.
//! 4. `events` has the logout event, whose value is an object.
//! 5. There is a `jti`, and no `nonce`: an ID token is no logout token.
//! 6. There is a `sub`, a `sid`, or both.

use super::jwk::JsonWebKey;
use super::limits::{CLOCK_SKEW_S, LOGOUT_TOKEN_MAX_AGE_S, MAX_SID_CHARS, MAX_SUBJECT_CHARS};
use super::signed_token::{Audience, LOGOUT_TOKEN, SignedToken, TokenError, seconds};
use serde::Deserialize;
use serde_json::{Map, Number, Value};

const LOGOUT_EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) now_s: i64,
}

/// A valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogoutToken {
    /// `jti`
    pub(crate) id: String,
    /// From then on, the token is rejected.
    pub(crate) expires_at_s: i64,
    pub(crate) subject: Option<String>,
    pub(crate) sid: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Claims {
    iss: String,
    aud: Audience,
    exp: Number,
    iat: Number,
    jti: String,
    events: Map<String, Value>,
    sub: Option<String>,
    sid: Option<String>,
}

pub(super) fn check(
    token: &str,
    keys: &[JsonWebKey],
    expected: &Expected<'_>,
) -> Result<LogoutToken, TokenError> {
    let token = SignedToken::parse(token, LOGOUT_TOKEN).map_err(TokenError::Rejected)?;
    token.check_signature(keys)?;
    // serde's errors can quote a claim, which is not secret.
    let invalid =
        |error: serde_json::Error| TokenError::Rejected(format!("the logout token's claims: {error}"));
    let all: Map<String, Value> = serde_json::from_slice(&token.payload).map_err(invalid)?;
    if all.contains_key("nonce") {
        return Err(TokenError::Rejected("`nonce` in the logout token".to_owned()));
    }
    let claims: Claims = serde_json::from_value(Value::Object(all)).map_err(invalid)?;
    claims.check(expected).map_err(TokenError::Rejected)
}

impl Claims {
    fn check(self, expected: &Expected<'_>) -> Result<LogoutToken, String> {
        if self.iss != expected.issuer {
            return Err(format!("the logout token's `iss` is not {}", expected.issuer));
        }
        if !self.aud.names().iter().any(|audience| audience == expected.client_id) {
            return Err(format!("the logout token's `aud` is not {}", expected.client_id));
        }
        let (expires_s, issued_s) =
            (seconds(&self.exp, "exp", LOGOUT_TOKEN)?, seconds(&self.iat, "iat", LOGOUT_TOKEN)?);
        let expires_at_s = expires_s.min(issued_s + LOGOUT_TOKEN_MAX_AGE_S) + CLOCK_SKEW_S;
        if expires_at_s <= expected.now_s {
            return Err(format!("the logout token expired {} s ago", expected.now_s - expires_at_s));
        }
        if issued_s > expected.now_s + CLOCK_SKEW_S {
            let ahead_s = issued_s - expected.now_s;
            return Err(format!("the logout token's `iat` is {ahead_s} s ahead of our clock"));
        }
        if !self.events.get(LOGOUT_EVENT).is_some_and(Value::is_object) {
            return Err("the logout token's `events` has no logout event".to_owned());
        }
        if self.jti.is_empty() {
            return Err("invalid `jti` in the logout token".to_owned());
        }
        let is_line = |text: &Option<String>, max_chars: usize| {
            text.as_ref().is_none_or(|text| {
                !text.is_empty() && text.chars().count() <= max_chars && !text.chars().any(char::is_control)
            })
        };
        if !is_line(&self.sub, MAX_SUBJECT_CHARS) || !is_line(&self.sid, MAX_SID_CHARS) {
            return Err("invalid `sub` or `sid` in the logout token".to_owned());
        }
        if self.sub.is_none() && self.sid.is_none() {
            return Err("the logout token has neither `sub` nor `sid`".to_owned());
        }
        Ok(LogoutToken { id: self.jti, expires_at_s, subject: self.sub, sid: self.sid })
    }
}
