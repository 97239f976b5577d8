//! What an application may learn: that it is you (`openid`), and your address (`email`). There is nothing else to ask for.

use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) has_email: bool,
}

pub(crate) const KNOWN: [&str; 2] = ["openid", "email"];

impl Scope {
    /// None without `openid`. Words that we do not know ask for nothing.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let has = |word| text.split(' ').any(|own| own == word);
        has("openid").then(|| Self { has_email: has("email") })
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self.has_email {
            true => "openid email",
            false => "openid",
        }
    }

    /// Whether somebody who allowed these has allowed this one.
    pub(crate) fn is_within(self, allowed: &[String]) -> bool {
        allowed
            .iter()
            .filter_map(|scope| Self::parse(scope))
            .any(|allowed| allowed.has_email || !self.has_email)
    }

    /// Accounts exist only with a proved mailbox, so an address is always verified.
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
    fn only_openid_and_email_mean_anything() {
        assert_eq!(Scope::parse("openid"), Some(Scope { has_email: false }));
        assert_eq!(Scope::parse("profile email openid phone"), Some(Scope { has_email: true }));
        for text in ["", "email", "OpenID", "openid,email"] {
            assert_eq!(Scope::parse(text), None, "{text}");
        }
    }

    #[test]
    fn who_allowed_more_has_allowed_less_and_never_the_other_way() {
        let (little, much) = (Scope { has_email: false }, Scope { has_email: true });
        let allowed = |scope: Scope| [scope.as_str().to_owned()];
        assert!(little.is_within(&allowed(much)) && much.is_within(&allowed(much)));
        assert!(little.is_within(&allowed(little)) && !much.is_within(&allowed(little)));
        assert!(!little.is_within(&[]));
    }
}
