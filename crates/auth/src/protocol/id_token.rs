//! ID tokens, and how all our tokens are signed. Only ES256 is issued or accepted.

use super::limits::ID_TOKEN_TTL;
use super::scope::Scope;
use super::signing_keys::{ActiveKey, KeyRing};
use crate::authentication_methods::AuthenticationMethods;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::UnixMillis;
use chancery_store::Grant;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The inputs of an ID token.
pub(crate) struct IdToken<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) grant: &'a Grant,
    pub(crate) scope: Scope,
    pub(crate) email: &'a str,
    pub(crate) access_token: &'a str,
    pub(crate) now: UnixMillis,
}

/// The claims of an `id_token_hint`. Expiry is not checked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IdTokenHint {
    pub(crate) subject: String,
    pub(crate) client_id: String,
    /// The session that the token was issued in.
    pub(crate) sid: Option<String>,
}

impl IdToken<'_> {
    pub(crate) fn sign(&self, key: &ActiveKey) -> String {
        let Self { issuer, grant, scope, email, access_token, now } = self;
        let now_s = now.0 / 1000;
        let mut claims = Map::new();
        claims.insert("iss".to_owned(), (*issuer).into());
        claims.insert("sub".to_owned(), grant.subject.as_str().into());
        claims.insert("aud".to_owned(), grant.client_id.as_str().into());
        claims.insert("exp".to_owned(), (now_s + ID_TOKEN_TTL.as_secs() as i64).into());
        claims.insert("iat".to_owned(), now_s.into());
        let methods = AuthenticationMethods::from_stored(grant.amr.clone());
        claims.insert("sid".to_owned(), grant.sid.as_str().into());
        claims.insert("amr".to_owned(), methods.values().collect::<Vec<_>>().into());
        claims.insert("acr".to_owned(), methods.acr().into());
        claims.insert("auth_time".to_owned(), (grant.authenticated_at.0 / 1000).into());
        if let Some(nonce) = &grant.nonce {
            claims.insert("nonce".to_owned(), nonce.as_str().into());
        }
        claims.insert("at_hash".to_owned(), left_half_hash(access_token).into());
        scope.add_claims(&mut claims, email);
        sign_jwt(key, ID_TOKEN_TYPE, claims)
    }
}

/// The type of ID tokens. Tokens of another type are not accepted in their place.
const ID_TOKEN_TYPE: &str = "JWT";

pub(super) fn sign_jwt(key: &ActiveKey, token_type: &str, claims: Map<String, Value>) -> String {
    let header = json!({"alg": "ES256", "kid": key.key_id, "typ": token_type});
    let signed = format!("{}.{}", part(&header), part(&Value::Object(claims)));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

impl IdTokenHint {
    /// Returns `None` unless we signed the token.
    pub(crate) fn read(token: &str, issuer: &str, keys: &KeyRing) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header = decode_part(header)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let is_id_token = header["alg"] == "ES256" && header["typ"] == ID_TOKEN_TYPE;
        let is_ours = is_id_token && keys.is_ours(header["kid"].as_str()?, signed.as_bytes(), &signature);
        if !is_ours {
            return None;
        }
        let claims = decode_part(claims)?;
        if claims["iss"] != issuer {
            return None;
        }
        let claim = |name: &str| claims[name].as_str().map(str::to_owned);
        Some(Self { subject: claim("sub")?, client_id: claim("aud")?, sid: claim("sid") })
    }
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn decode_part(part: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// `at_hash`, which binds the ID token to the access token.
fn left_half_hash(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    URL_SAFE_NO_PAD.encode(&hash[..hash.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_hash_matches_the_openid_example() {
        // OpenID Connect Core, A.3.
        assert_eq!(left_half_hash("jHkWEdUXMU1BwAsC4vtUsZwnNvTIxEl0z9K3vx5KF0Y"), "77QmUPtjPfzWtF2AnpK9RQ");
    }
}
