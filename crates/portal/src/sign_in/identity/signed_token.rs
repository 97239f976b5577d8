//! A signed token of the provider (a JWT), and how its signature is verified: for ID tokens and for logout tokens alike.

use super::jwk::{Algorithm, JsonWebKey};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Number, Value};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum TokenError {
    /// Signed with none of the known keys. The provider may have newer ones.
    UnknownKey(String),
    Rejected(String),
}

/// Which token it is: its name in errors, and its types (`typ`).
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenKind {
    pub(super) name: &'static str,
    types: &'static [&'static str],
}

pub(super) const ID_TOKEN: TokenKind = TokenKind { name: "ID token", types: &["jwt", "jose"] };
/// Older providers send no type of its own.
pub(super) const LOGOUT_TOKEN: TokenKind =
    TokenKind { name: "logout token", types: &["logout+jwt", "jwt", "jose"] };

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Audience {
    pub(super) fn names(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    cty: Option<Value>,
    crit: Option<Value>,
}

/// Parsed, with an accepted type and algorithm, and not verified.
pub(super) struct SignedToken<'a> {
    kind: TokenKind,
    kid: Option<String>,
    pub(super) algorithm: &'static Algorithm,
    signed: &'a str,
    pub(super) payload: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> SignedToken<'a> {
    pub(super) fn parse(token: &'a str, kind: TokenKind) -> Result<Self, String> {
        let malformed = |what: &str| format!("invalid {} {what}", kind.name);
        let Some((signed, signature)) = token.rsplit_once('.') else { return Err(malformed("form")) };
        let Some((header, payload)) = signed.split_once('.').filter(|(_, payload)| !payload.contains('.'))
        else {
            return Err(format!("the {} does not have three parts", kind.name));
        };
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part);
        let header = decode(header).map_err(|_| malformed("header"))?;
        let header: Header = serde_json::from_slice(&header).map_err(|_| malformed("header"))?;
        let (payload, signature) = (
            decode(payload).map_err(|_| malformed("payload"))?,
            decode(signature).map_err(|_| malformed("signature"))?,
        );
        let algorithm = header.accepted_algorithm(kind)?;
        Ok(Self { kind, kid: header.kid, algorithm, signed, payload, signature })
    }

    /// Without a `kid`, tries every key that matches the algorithm.
    pub(super) fn check_signature(&self, keys: &[JsonWebKey]) -> Result<(), TokenError> {
        let name = self.kind.name;
        let is_named = |key: &JsonWebKey| self.kid.is_none() || key.kid == self.kid;
        let verifies =
            |key: &JsonWebKey| key.verifies(self.algorithm, self.signed.as_bytes(), &self.signature);
        if keys.iter().any(|key| is_named(key) && verifies(key)) {
            Ok(())
        } else if self.kid.is_none() {
            Err(TokenError::UnknownKey(format!(
                "the {name} has no `kid`, and none of the provider's keys verifies its signature"
            )))
        } else if !keys.iter().any(is_named) {
            Err(TokenError::UnknownKey(format!("the {name}'s `kid` matches none of the provider's keys")))
        } else {
            Err(TokenError::Rejected(format!(
                "the {name}'s signature does not verify with the key of its `kid`"
            )))
        }
    }
}

impl Header {
    fn accepted_algorithm(&self, kind: TokenKind) -> Result<&'static Algorithm, String> {
        let name = kind.name;
        let is_accepted = self.typ.as_deref().is_none_or(|typ| {
            let typ = typ.to_ascii_lowercase();
            kind.types.contains(&typ.strip_prefix("application/").unwrap_or(&typ))
        });
        if !is_accepted {
            return Err(format!("unexpected `typ` in the {name}"));
        }
        if self.crit.is_some() || self.cty.is_some() {
            return Err(format!("unsupported `crit` or `cty` in the {name}"));
        }
        Algorithm::named(&self.alg).ok_or_else(|| {
            let short: String = self.alg.chars().filter(char::is_ascii_graphic).take(16).collect();
            format!("the {name}'s algorithm `{short}` is not accepted")
        })
    }
}

/// Truncates to whole seconds; some providers send fractions.
pub(super) fn seconds(number: &Number, claim: &str, kind: TokenKind) -> Result<i64, String> {
    /// In the year 5138: late enough, and far from overflow.
    const MAX_TIMESTAMP_S: f64 = 100_000_000_000.0;
    match number.as_f64() {
        Some(value) if (0.0..MAX_TIMESTAMP_S).contains(&value) => Ok(value as i64),
        _ => Err(format!("invalid `{claim}` in the {}", kind.name)),
    }
}
