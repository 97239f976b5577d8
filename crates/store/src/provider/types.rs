//! Public types of the built-in identity provider's storage.

use crate::SentEmailCode;
use chancery_domain::{EmailAddress, LocalPath, TokenHash, UnixMillis};
use std::fmt;

/// A stored password: an argon2id PHC string. Its `Debug` output is redacted.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(pub String);

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(…)")
    }
}

/// An account at the built-in identity provider. It is created only after its mailbox is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderAccount {
    /// The OIDC `sub`: random, opaque, never the address, and never reused.
    pub subject: String,
    pub email: EmailAddress,
    pub password_hash: PasswordHash,
    /// Raised by each password change. Sessions and grants of an earlier version are no longer valid.
    pub password_version: i64,
    pub created_at: UnixMillis,
}

#[derive(Clone, Debug)]
pub struct NewProviderAccount {
    pub subject: String,
    pub email: EmailAddress,
    pub password_hash: PasswordHash,
    pub at: UnixMillis,
}

#[derive(Clone, Debug)]
pub struct NewProviderSession {
    pub token: TokenHash,
    pub subject: String,
    /// The version whose password was verified.
    pub password_version: i64,
    /// Names the session in ID tokens and logout tokens. Random, and not a secret.
    pub sid: String,
    /// How the person authenticated: values of the `amr` claim, separated by spaces.
    pub amr: String,
    pub at: UnixMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSession {
    pub account: ProviderAccount,
    /// When the person authenticated.
    pub started_at: UnixMillis,
    pub sid: String,
    pub amr: String,
}

/// A logout token that this process sends now. Nobody else does until the claim ends.
#[derive(Clone, Debug)]
pub struct BackchannelLogout {
    pub client_id: String,
    pub subject: String,
    /// The session that ended.
    pub sid: String,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    pub first_attempt_at: UnixMillis,
    pub(crate) claim: String,
}

/// A browser in which a person has just signed in.
#[derive(Clone, Debug)]
pub struct NewKnownDevice {
    pub subject: String,
    /// The token that the browser sent. It may be anybody's.
    pub browser_token: Option<TokenHash>,
    /// The token that the browser gets otherwise.
    pub new_token: TokenHash,
    pub now: UnixMillis,
    pub expires_at: UnixMillis,
}

/// Why a mailbox is being verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProofPurpose {
    /// With the password of the future account.
    SignUp(PasswordHash),
    NewPassword,
    /// The account's first second factor.
    FirstFactor,
}

/// A mailbox that waits for its emailed code.
#[derive(Clone, Debug)]
pub struct MailboxProof {
    pub purpose: ProofPurpose,
    pub email: EmailAddress,
    pub return_to: LocalPath,
    pub code: SentEmailCode,
}

/// What a person allowed an application to read, and how the application must request it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub client_id: String,
    /// Where the code was sent. `code_challenge` is the PKCE challenge: the SHA-256 of the verifier.
    pub redirect_uri: String,
    pub code_challenge: String,
    /// The person and their password version. A password change invalidates the grant.
    pub subject: String,
    pub password_version: i64,
    pub scope: String,
    /// Chosen by the application to recognize its sign-in.
    pub nonce: Option<String>,
    /// The session at the provider, and how the person authenticated.
    pub sid: String,
    pub amr: String,
    pub authenticated_at: UnixMillis,
}

/// An authorization code on its way through a browser.
#[derive(Clone, Debug)]
pub struct NewAuthorizationCode {
    pub code: TokenHash,
    pub grant: Grant,
    pub expires_at: UnixMillis,
    /// Not before the access token expires, so that a replayed code is still recognized until then.
    pub delete_after: UnixMillis,
}

/// A request to exchange a code for an access token.
#[derive(Clone, Debug)]
pub struct CodeRedemption {
    pub code: TokenHash,
    pub client_id: String,
    pub redirect_uri: String,
    /// Derived from the verifier in the request.
    pub code_challenge: String,
    pub access_token: TokenHash,
    pub access_expires_at: UnixMillis,
    pub now: UnixMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedeemOutcome {
    Granted(Grant),
    /// No such code.
    Unknown,
    /// The code was presented before. The token issued for it is revoked.
    Replayed(Grant),
    /// Expired, or the client, redirect URI or PKCE verifier does not match. The code is spent.
    Rejected {
        grant: Grant,
        is_expired: bool,
    },
}

/// A consent page that waits for a decision.
#[derive(Clone, Debug)]
pub struct ConsentRequest {
    pub subject: String,
    /// The session in which the page was shown.
    pub session: TokenHash,
    /// The authorization request, as a query string.
    pub request: String,
    pub expires_at: UnixMillis,
}

#[derive(Clone, Debug)]
pub struct Consent {
    pub subject: String,
    pub client_id: String,
    pub scope: String,
    pub at: UnixMillis,
}

/// A signing key. It is created, then published, then used to sign, then only published until its last signature has
/// expired.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// Starts at 1. Each key replaces the previous generation.
    pub generation: i64,
    pub key_id: String,
    /// PKCS#8.
    pub private_key: Vec<u8>,
    pub signs_from: UnixMillis,
    pub signs_until: UnixMillis,
    pub published_until: UnixMillis,
}
