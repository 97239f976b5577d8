//! What the provider asserts about a person who signed in. Only the address and the subject have one form everywhere;
//! other claims count if they have the type that the specification gives them, and are absent otherwise.

use super::limits::{CLOCK_SKEW_S, MAX_SID_CHARS, MAX_STORED_ID_TOKEN_BYTES};
use serde_json::{Map, Value};
use std::fmt;

/// The `amr` value for several factors (RFC 8176).
const MULTIPLE_FACTORS: &str = "mfa";

#[derive(Clone, Debug)]
pub(crate) struct IdentityClaims {
    pub(crate) subject: String,
    pub(crate) email: Option<String>,
    pub(crate) is_email_verified: bool,
    /// When the person authenticated (`auth_time`), never in the future.
    pub(crate) authenticated_at_s: Option<i64>,
    /// The provider's session.
    pub(crate) sid: Option<String>,
    /// All claims, of the ID token and of userinfo.
    all: Map<String, Value>,
    /// `None` if it is too long to be sent back at sign-out.
    pub(crate) id_token: Option<IdToken>,
}

/// Its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct IdToken(pub(crate) String);

impl fmt::Debug for IdToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdToken(…)")
    }
}

impl IdentityClaims {
    pub(super) fn new(
        subject: String,
        email: Option<String>,
        is_email_verified: bool,
        all: Map<String, Value>,
        id_token: &str,
        now_s: i64,
    ) -> Self {
        let is_line = |text: &&str| {
            !text.is_empty() && text.chars().count() <= MAX_SID_CHARS && !text.chars().any(char::is_control)
        };
        Self {
            subject,
            email,
            is_email_verified,
            authenticated_at_s: all.get("auth_time").and_then(|value| auth_time(value, now_s)),
            sid: all.get("sid").and_then(Value::as_str).filter(is_line).map(str::to_owned),
            all,
            id_token: (id_token.len() <= MAX_STORED_ID_TOKEN_BYTES).then(|| IdToken(id_token.to_owned())),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.all.get(name)
    }

    /// The authentication level.
    pub(crate) fn acr(&self) -> Option<&str> {
        self.all.get("acr").and_then(Value::as_str)
    }

    /// The authentication methods.
    pub(crate) fn has_method(&self, method: &str) -> bool {
        let methods = self.all.get("amr").and_then(Value::as_array);
        methods.is_some_and(|methods| methods.iter().any(|used| used.as_str() == Some(method)))
    }

    /// Whether the provider has asked for several factors.
    pub(crate) fn has_multiple_factors(&self) -> bool {
        self.has_method(MULTIPLE_FACTORS)
    }
}

/// A time slightly ahead of our clock counts as now; one further ahead is not believed.
fn auth_time(value: &Value, now_s: i64) -> Option<i64> {
    let seconds = value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0)? as i64;
    (seconds <= now_s + CLOCK_SKEW_S).then_some(seconds.min(now_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claims(all: Value) -> IdentityClaims {
        let Value::Object(all) = all else { panic!("not an object") };
        IdentityClaims::new("1".to_owned(), None, false, all, "a.b.c", 1_000)
    }

    #[test]
    fn odd_claims_count_as_absent() {
        let odd = claims(json!({"auth_time": "soon", "sid": 7, "amr": "mfa", "acr": ["aal2"]}));
        assert_eq!((odd.authenticated_at_s, odd.sid.as_deref(), odd.acr()), (None, None, None));
        assert!(!odd.has_multiple_factors());
        let usual = claims(json!({"auth_time": 900.5, "sid": "s", "amr": ["pwd", "mfa"], "acr": "aal2"}));
        assert_eq!((usual.authenticated_at_s, usual.sid.as_deref()), (Some(900), Some("s")));
        assert!(usual.has_multiple_factors() && usual.has_method("pwd") && !usual.has_method("otp"));
        assert_eq!(usual.acr(), Some("aal2"));
    }

    #[test]
    fn auth_time_is_never_in_the_future() {
        assert_eq!(claims(json!({"auth_time": 1_030})).authenticated_at_s, Some(1_000));
        assert_eq!(claims(json!({"auth_time": 2_000})).authenticated_at_s, None);
        assert_eq!(claims(json!({"auth_time": -1})).authenticated_at_s, None);
    }

    #[test]
    fn debug_output_hides_the_id_token() {
        assert!(!format!("{:?}", claims(json!({}))).contains("a.b.c"));
    }
}
