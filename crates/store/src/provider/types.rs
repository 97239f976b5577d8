//! What the built-in identity provider stores, as the rest of Chancery sees it.

use crate::MailedCode;
use chancery_domain::{EmailAddress, LocalPath, TokenHash, UnixMillis};
use std::fmt;

/// A password as it is kept: a PHC string of argon2id. Its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(pub String);

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(…)")
    }
}

/// Somebody whom the built-in identity provider knows. Accounts are made only with a proved mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderAccount {
    /// What clients know the person by: drawn, opaque, never the address, and never another's.
    pub subject: String,
    pub email: EmailAddress,
    pub password_hash: PasswordHash,
    /// Another with each password. What was started under an earlier one (sessions, grants) is over.
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
    /// Of the account as it was when its password was found right.
    pub password_version: i64,
    pub at: UnixMillis,
}

/// A browser's session with the identity provider, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSession {
    pub account: ProviderAccount,
    /// When the password was typed.
    pub started_at: UnixMillis,
}

/// What a mailbox is proved for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProofPurpose {
    /// With the password that the account is to have.
    SignUp(PasswordHash),
    NewPassword,
}

/// Somebody who says that a mailbox is theirs and has yet to type the code from the mail.
#[derive(Clone, Debug)]
pub struct MailboxProof {
    pub purpose: ProofPurpose,
    pub email: EmailAddress,
    pub return_to: LocalPath,
    pub code: MailedCode,
}

/// What somebody allowed an application to learn, and how the application must ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub client_id: String,
    /// Where the code was sent, and the SHA-256 of the secret that its taker must know (PKCE).
    pub redirect_uri: String,
    pub code_challenge: String,
    /// Who it is about, and the password they had: with another one, the grant is over.
    pub subject: String,
    pub password_version: i64,
    pub scope: String,
    /// The application's own, to know its sign-in again.
    pub nonce: Option<String>,
    pub authenticated_at: UnixMillis,
}

/// An authorization code on its way through a browser.
#[derive(Clone, Debug)]
pub struct NewCode {
    pub code: TokenHash,
    pub grant: Grant,
    pub expires_at: UnixMillis,
    /// No earlier than the access token's end, so that a code that comes back until then is known.
    pub forgotten_at: UnixMillis,
}

/// Somebody presents a code and wants an access token for it.
#[derive(Clone, Debug)]
pub struct CodePresented {
    pub code: TokenHash,
    pub client_id: String,
    pub redirect_uri: String,
    /// Made from the verifier that was sent along.
    pub code_challenge: String,
    pub access_token: TokenHash,
    pub access_expires_at: UnixMillis,
    pub now: UnixMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redeemed {
    Yes(Grant),
    /// No such code.
    Unknown,
    /// It was presented before; whatever was given for it is revoked.
    Replayed(Grant),
    /// Too late, or not by whom, not from where or without the verifier that it was made for. It is worth nothing now.
    Mismatch {
        grant: Grant,
        is_late: bool,
    },
}

/// A consent page that waits for its answer.
#[derive(Clone, Debug)]
pub struct ConsentQuestion {
    pub subject: String,
    /// The session that it was shown in.
    pub session: TokenHash,
    /// What the application asked for, as a query.
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

/// A key by which the provider signs, with the times of its life: made, then known to everybody, then signing, then known
/// until the last of its signatures is no longer needed.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// The first is 1, and each takes over from the one before.
    pub generation: i64,
    pub key_id: String,
    /// PKCS#8.
    pub private_key: Vec<u8>,
    pub signs_from: UnixMillis,
    pub signs_until: UnixMillis,
    pub published_until: UnixMillis,
}
