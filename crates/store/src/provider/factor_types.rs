//! Public types of second factors.

use chancery_domain::{LocalPath, TokenHash, UnixMillis};
use std::fmt;

/// A passkey of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPasskey {
    pub credential_id: Vec<u8>,
    pub subject: String,
    /// Chosen by the person.
    pub name: String,
    /// The credential as the provider serializes it.
    pub credential: String,
    pub created_at: UnixMillis,
    pub last_used_at: Option<UnixMillis>,
}

/// The secret of an authenticator app. Its `Debug` output is redacted.
#[derive(Clone, PartialEq, Eq)]
pub struct TotpSecret {
    pub secret: Vec<u8>,
    /// The newest time step whose code was accepted.
    pub last_step: i64,
    pub created_at: UnixMillis,
}

impl fmt::Debug for TotpSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TotpSecret")
            .field("last_step", &self.last_step)
            .field("created_at", &self.created_at)
            .finish_non_exhaustive()
    }
}

/// The factors of one account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountFactors {
    /// Oldest first.
    pub passkeys: Vec<StoredPasskey>,
    /// When the authenticator app was added.
    pub totp_created_at: Option<UnixMillis>,
    /// Recovery codes that are left. They are no factor by themselves: without one, there are none.
    pub recovery_codes: u64,
}

impl AccountFactors {
    /// Whether the account has no second factor.
    pub fn is_empty(&self) -> bool {
        self.passkeys.is_empty() && self.totp_created_at.is_none()
    }

    /// Passkeys and authenticator apps.
    pub fn count(&self) -> u64 {
        self.passkeys.len() as u64 + u64::from(self.totp_created_at.is_some())
    }

    /// How many recovery codes go with a factor that is removed: those of the last one.
    pub fn recovery_codes_of_last(&self) -> u64 {
        if self.count() <= 1 { self.recovery_codes } else { 0 }
    }
}

/// A factor to add. The recovery codes are stored only if it is the account's first factor.
#[derive(Clone, Debug)]
pub struct NewPasskey {
    pub credential_id: Vec<u8>,
    pub subject: String,
    pub name: String,
    pub credential: String,
    pub recovery_codes: Vec<TokenHash>,
    pub at: UnixMillis,
}

/// See `NewPasskey`.
#[derive(Clone)]
pub struct NewTotpSecret {
    pub subject: String,
    pub secret: Vec<u8>,
    /// The time step of the code that confirmed it.
    pub step: i64,
    pub recovery_codes: Vec<TokenHash>,
    pub at: UnixMillis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddFactorOutcome {
    /// `is_first`: the recovery codes were stored too.
    Added {
        is_first: bool,
    },
    /// This passkey is registered already, or the account has an authenticator app.
    AlreadyExists,
    TooMany,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoveFactorOutcome {
    Removed,
    NotFound,
    /// The number of what would be removed is not confirmed. The account's factors, of which nothing was removed.
    Unconfirmed(AccountFactors),
    /// The account must keep a factor, and this is the last one.
    IsLast,
}

chancery_domain::closed_enum! {
    /// What a browser is doing with a factor.
    pub enum CeremonyKind {
        PasskeyRegistration = "passkey_registration",
        PasskeyAuthentication = "passkey_authentication",
        TotpEnrolment = "totp_enrolment",
        /// The person has proved the mailbox, and may add the first factor.
        MailboxProof = "mailbox_proof",
    }
}

/// A challenge or secret of a browser that is adding or using a factor.
#[derive(Clone)]
pub struct FactorCeremony {
    pub kind: CeremonyKind,
    /// `None` if the passkey itself says who signs in.
    pub subject: Option<String>,
    pub state: String,
    pub expires_at: UnixMillis,
}

/// A sign-in with a correct password that waits for the second factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingSecondFactor {
    pub subject: String,
    /// The version whose password was verified.
    pub password_version: i64,
    pub return_to: LocalPath,
    pub expires_at: UnixMillis,
}
