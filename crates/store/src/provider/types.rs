//! What the built-in identity provider stores, as the rest of Chancery sees it.

use crate::{MailedCode, StoreError};
use async_trait::async_trait;
use chancery_domain::{EmailAddress, LocalPath, SessionTimes, TokenHash, UnixMillis};
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

#[async_trait]
pub trait ProviderAccounts: Send + Sync + 'static {
    /// Refused with `EmailTaken`.
    async fn create_provider_account(&self, new: NewProviderAccount) -> Result<ProviderAccount, StoreError>;

    async fn provider_account_with_email(
        &self,
        email: &EmailAddress,
    ) -> Result<Option<ProviderAccount>, StoreError>;

    async fn provider_account(&self, subject: &str) -> Result<Option<ProviderAccount>, StoreError>;

    /// Makes the account with a proof's right code, and in the same step uses up the proof and all others of this mailbox.
    /// None where the proof is gone: of many at once, one gets the account. Refused with `EmailTaken`.
    async fn create_proven_account(
        &self,
        token: TokenHash,
        code: TokenHash,
        new: NewProviderAccount,
    ) -> Result<Option<ProviderAccount>, StoreError>;

    /// `set_password` with a proof's right code, and in the same step uses up the proof and all others of this mailbox.
    /// None where the proof is gone or there is no such account.
    async fn set_proven_password(
        &self,
        token: TokenHash,
        code: TokenHash,
        email: &EmailAddress,
        password_hash: &PasswordHash,
    ) -> Result<Option<ProviderAccount>, StoreError>;

    /// Ends all sessions of the account in the same step. None where there is no such account.
    async fn set_password(
        &self,
        email: &EmailAddress,
        password_hash: &PasswordHash,
    ) -> Result<Option<ProviderAccount>, StoreError>;
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

#[async_trait]
pub trait ProviderSessions: Send + Sync + 'static {
    /// Opens nothing if the account's password was changed since it was found right.
    async fn start_provider_session(&self, new: NewProviderSession) -> Result<(), StoreError>;

    /// Whose session this is, if it is alive. Notes that it was used, now and then.
    async fn provider_session(
        &self,
        token: TokenHash,
        times: SessionTimes,
        now: UnixMillis,
    ) -> Result<Option<ProviderSession>, StoreError>;

    /// Whether there was such a session.
    async fn end_provider_session(&self, token: TokenHash) -> Result<bool, StoreError>;

    async fn end_provider_sessions_of(&self, subject: &str) -> Result<u64, StoreError>;

    /// Removes up to `limit` that are over; says how many.
    async fn forget_ended_provider_sessions(
        &self,
        times: SessionTimes,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, StoreError>;
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

/// Tries are not counted here: whoever compares codes counts them first, with `Attempts`.
#[async_trait]
pub trait MailboxProofs: Send + Sync + 'static {
    async fn begin_proof(&self, token: TokenHash, proof: MailboxProof) -> Result<(), StoreError>;

    async fn proof(&self, token: TokenHash, now: UnixMillis) -> Result<Option<MailboxProof>, StoreError>;

    /// Whether the new code took the place of the last one; not where another has taken it meanwhile.
    async fn replace_proof_code(&self, token: TokenHash, new: MailedCode) -> Result<bool, StoreError>;

    /// Uses the proof up. Whether it was still there, with this code: of many at once, one gets true.
    async fn take_proof(&self, token: TokenHash, code: TokenHash) -> Result<bool, StoreError>;

    /// Removes all proofs of this mailbox for whatever purpose; says how many.
    async fn destroy_proofs(&self, email: &EmailAddress) -> Result<u64, StoreError>;

    /// Removes up to `limit` whose time is over; says how many.
    async fn forget_old_proofs(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError>;
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

/// What the built-in identity provider gives out in people's names.
#[async_trait]
pub trait Grants: Send + Sync + 'static {
    async fn ask_for_consent(&self, token: TokenHash, question: ConsentQuestion) -> Result<(), StoreError>;

    /// Gives it once; None where there is none or its time is over.
    async fn take_consent_question(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<ConsentQuestion>, StoreError>;

    async fn remember_consent(&self, consent: Consent) -> Result<(), StoreError>;

    /// Takes back all that was allowed to this application; says how much there was.
    async fn forget_consents(&self, subject: &str, client_id: &str) -> Result<u64, StoreError>;

    /// Every scope that was allowed to this application.
    async fn consents(&self, subject: &str, client_id: &str) -> Result<Vec<String>, StoreError>;

    async fn issue_code(&self, new: NewCode) -> Result<(), StoreError>;

    /// A code is good for one presentation, right or wrong. However many present it at once, one gets its token at most,
    /// and the second presentation revokes that token.
    async fn redeem_code(&self, presented: CodePresented) -> Result<Redeemed, StoreError>;

    /// What an access token is good for, if it is alive.
    async fn access(&self, token: TokenHash, now: UnixMillis) -> Result<Option<Grant>, StoreError>;

    /// Removes what nobody can use any more; says how much.
    async fn forget_old_grants(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError>;
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

#[async_trait]
pub trait SigningKeys: Send + Sync + 'static {
    /// All that are kept, oldest first.
    async fn signing_keys(&self) -> Result<Vec<SigningKey>, StoreError>;

    /// Whether it was added: not where its generation is there. However many do so at once, one succeeds.
    async fn add_signing_key(&self, key: SigningKey) -> Result<bool, StoreError>;

    /// Removes those that are no longer published; says how many.
    async fn forget_old_signing_keys(&self, now: UnixMillis) -> Result<u64, StoreError>;
}
