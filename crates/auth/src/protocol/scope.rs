//! Scopes: `openid` gives the user's id, `email` the email address. There are no others.

use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) has_email: bool,
}

pub(crate) const SUPPORTED_SCOPES: [&str; 2] = ["openid", "email"];

impl Scope {
    /// Returns `None` without `openid`. Unknown scopes are ignored.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let has = |value| text.split(' ').any(|own| own == value);
        has("openid").then(|| Self { has_email: has("email") })
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self.has_email {
            true => "openid email",
            false => "openid",
        }
    }

    /// Whether one of the allowed scopes covers this one.
    pub(crate) fn is_within(self, allowed: &[String]) -> bool {
        allowed
            .iter()
            .filter_map(|scope| Self::parse(scope))
            .any(|allowed| allowed.has_email || !self.has_email)
    }

    /// Accounts exist only with a verified mailbox, so `email_verified` is always true.
    pub(crate) fn add_claims(self, claims: &mut Map<String, Value>, email: &str) {
        if self.has_email {
            claims.insert("email".to_owned(), email.into());
            claims.insert("email_verified".to_owned(), true.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_scopes_are_ignored() {
        assert_eq!(Scope::parse("openid"), Some(Scope { has_email: false }));
        assert_eq!(Scope::parse("profile email openid phone"), Some(Scope { has_email: true }));
        for text in ["", "email", "OpenID", "openid,email"] {
            assert_eq!(Scope::parse(text), None, "{text}");
        }
    }

    #[test]
    fn consent_to_a_wider_scope_covers_a_narrower_one() {
        let (little, much) = (Scope { has_email: false }, Scope { has_email: true });
        let allowed = |scope: Scope| [scope.as_str().to_owned()];
        assert!(little.is_within(&allowed(much)) && much.is_within(&allowed(much)));
        assert!(little.is_within(&allowed(little)) && !much.is_within(&allowed(little)));
        assert!(!little.is_within(&[]));
    }
}
