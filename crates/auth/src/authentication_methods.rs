//! How a person authenticated, as the `amr` and `acr` claims report it.

/// One way to authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthenticationMethod {
    Password,
    /// A code of an authenticator app (TOTP), or a recovery code.
    OneTimeCode,
    /// A passkey whose authenticator verified the user.
    Passkey,
}

/// The methods of one authentication. They are stored with the session as the values of `amr` (RFC 8176), separated by
/// spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthenticationMethods(String);

impl AuthenticationMethods {
    pub(crate) fn new(methods: &[AuthenticationMethod]) -> Self {
        let uses = |method| methods.contains(&method);
        let mut values = Vec::new();
        if uses(AuthenticationMethod::Password) {
            values.push("pwd");
        }
        if uses(AuthenticationMethod::OneTimeCode) {
            values.push("otp");
        }
        if uses(AuthenticationMethod::Passkey) {
            values.extend(["pop", "user"]);
        }
        // A passkey is two factors by itself: the device, and what unlocks it.
        if methods.len() > 1 || uses(AuthenticationMethod::Passkey) {
            values.push("mfa");
        }
        Self(values.join(" "))
    }

    pub(crate) fn from_stored(amr: String) -> Self {
        Self(amr)
    }

    /// These methods and one more.
    pub(crate) fn with(&self, method: AuthenticationMethod) -> Self {
        let used = |value: &str| self.values().any(|own| own == value);
        let mut methods = Vec::new();
        for (own, value) in [
            (AuthenticationMethod::Password, "pwd"),
            (AuthenticationMethod::OneTimeCode, "otp"),
            (AuthenticationMethod::Passkey, "pop"),
        ] {
            if own == method || used(value) {
                methods.push(own);
            }
        }
        Self::new(&methods)
    }

    /// As `new` wrote it, for the database.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The values of the `amr` claim.
    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        self.0.split_ascii_whitespace()
    }

    pub(crate) fn is_multi_factor(&self) -> bool {
        self.values().any(|value| value == "mfa")
    }

    /// The `acr` claim: the authenticator assurance level of NIST SP 800-63B.
    pub(crate) fn acr(&self) -> &'static str {
        if self.is_multi_factor() { ACR_MULTI_FACTOR } else { ACR_SINGLE_FACTOR }
    }
}

pub(crate) const ACR_SINGLE_FACTOR: &str = "aal1";
pub(crate) const ACR_MULTI_FACTOR: &str = "aal2";

#[cfg(test)]
mod tests {
    use super::*;
    use AuthenticationMethod::{OneTimeCode, Passkey, Password};

    #[test]
    fn two_methods_or_a_passkey_are_multi_factor() {
        for (methods, amr, acr) in [
            (&[Password][..], "pwd", "aal1"),
            (&[Password, OneTimeCode], "pwd otp mfa", "aal2"),
            (&[Password, Passkey], "pwd pop user mfa", "aal2"),
            (&[Passkey], "pop user mfa", "aal2"),
        ] {
            let methods = AuthenticationMethods::new(methods);
            assert_eq!((methods.as_str(), methods.acr()), (amr, acr));
        }
    }

    #[test]
    fn a_further_method_is_added_once() {
        let password = AuthenticationMethods::new(&[Password]);
        let both = password.with(OneTimeCode);
        assert_eq!(both.as_str(), "pwd otp mfa");
        assert_eq!(both.with(OneTimeCode), both);
        assert_eq!(password.with(Password), password);
        assert_eq!(both.with(Passkey).as_str(), "pwd otp pop user mfa");
    }
}
