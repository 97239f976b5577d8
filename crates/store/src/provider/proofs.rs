//! Queries for mailbox proofs: addresses whose owners still have to enter an emailed code.

use crate::DbError;
use crate::db::{COMMAND_RETRY_LIMIT, Db, FromRow, QueryError, Row, Tx, corrupt, query};
use crate::outbox::messages::delete_code_email;
use crate::{MailboxProof, PasswordHash, ProofPurpose, SentEmailCode};
use chancery_domain::{EmailAddress, LocalPath, TokenHash, UnixMillis};

impl FromRow for MailboxProof {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let (email, return_to): (String, String) = (row.get("email")?, row.get("return_to")?);
        let (stored, password_hash): (String, Option<String>) =
            (row.get("purpose")?, row.get("password_hash")?);
        // A CHECK on the table: there is a password exactly when the purpose is sign-up.
        let purpose = match (stored.as_str(), password_hash) {
            ("sign_up", Some(hash)) => ProofPurpose::SignUp(PasswordHash(hash)),
            ("new_password", None) => ProofPurpose::NewPassword,
            ("first_factor", None) => ProofPurpose::FirstFactor,
            _ => return Err(corrupt("a proof's purpose", format!("{stored:?} is unknown"))),
        };
        Ok(Self {
            purpose,
            email: email.parse().map_err(|error| corrupt("an address", error))?,
            return_to: LocalPath::parse(&return_to).ok_or_else(|| {
                corrupt("a proof's return path", format!("{return_to:?} is not a path of the provider"))
            })?,
            code: SentEmailCode::from_row(row)?,
        })
    }
}

const BEGIN: &str = "INSERT INTO mailbox_proofs (token_hash, purpose, email, password_hash, return_to, code_hash, \
    code_expires_at_ms, emails_sent, last_sent_at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const FIND: &str = "SELECT purpose, email, password_hash, return_to, code_hash, code_expires_at_ms, emails_sent, last_sent_at_ms \
    FROM mailbox_proofs WHERE token_hash = $1 AND code_expires_at_ms > $2";
const CODE: &str = "SELECT code_hash, code_expires_at_ms, emails_sent, last_sent_at_ms FROM mailbox_proofs \
    WHERE token_hash = $1";
const CODES_OF_MAILBOX: &str = "SELECT code_hash, code_expires_at_ms, emails_sent, last_sent_at_ms FROM mailbox_proofs \
    WHERE email = $1 ORDER BY token_hash";
const REPLACE_CODE: &str = "UPDATE mailbox_proofs SET code_hash = $2, code_expires_at_ms = $3, emails_sent = emails_sent + 1, \
    last_sent_at_ms = $4 WHERE token_hash = $1 AND emails_sent = $5";
const TAKE: &str = "DELETE FROM mailbox_proofs WHERE token_hash = $1 AND code_hash = $2";
const DELETE_OF_MAILBOX: &str = "DELETE FROM mailbox_proofs WHERE email = $1";
const DELETE_EXPIRED: &str = "DELETE FROM mailbox_proofs WHERE token_hash IN \
    (SELECT token_hash FROM mailbox_proofs WHERE code_expires_at_ms <= $1 LIMIT $2)";

/// Deletes the proof if it still exists with this code, and its email if that was not sent yet. Returns whether it
/// existed.
pub(super) fn consume(tx: &mut Tx<'_>, token: &TokenHash, code: &TokenHash) -> Result<bool, QueryError> {
    let taken = query(TAKE).bind(token.0.as_slice()).bind(code.0.as_slice()).execute(tx)?;
    if taken > 0 {
        delete_code_email(tx, code)?;
    }
    Ok(taken > 0)
}

/// Deletes all proofs of the mailbox, and their emails that were not sent yet.
pub(super) fn delete_of_mailbox(tx: &mut Tx<'_>, email: &EmailAddress) -> Result<(), QueryError> {
    let codes: Vec<SentCode> = query(CODES_OF_MAILBOX).bind(email.as_str()).fetch_all(tx)?;
    for SentCode(code) in &codes {
        delete_code_email(tx, code)?;
    }
    query(DELETE_OF_MAILBOX).bind(email.as_str()).execute(tx)?;
    Ok(())
}

/// The hash of a code.
struct SentCode(TokenHash);

impl FromRow for SentCode {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        Ok(Self(SentEmailCode::from_row(row)?.hash))
    }
}

/// Mailbox proofs. Attempts are not counted here: callers count them first with `Throttles`.
#[derive(Clone)]
pub struct MailboxProofs {
    pub(crate) db: Db,
}

impl MailboxProofs {
    pub async fn begin_proof(&self, token: TokenHash, proof: MailboxProof) -> Result<(), DbError> {
        let (purpose, password_hash) = match &proof.purpose {
            ProofPurpose::SignUp(hash) => ("sign_up", Some(hash.0.as_str())),
            ProofPurpose::NewPassword => ("new_password", None),
            ProofPurpose::FirstFactor => ("first_factor", None),
        };
        let begin = query(BEGIN)
            .bind(token.0.as_slice())
            .bind(purpose)
            .bind(proof.email.as_str())
            .bind(password_hash)
            .bind(proof.return_to.as_str())
            .bind(proof.code.hash.0.as_slice())
            .bind(proof.code.expires_at.0)
            .bind(i64::from(proof.code.sent))
            .bind(proof.code.sent_at.0);
        self.db.execute(begin, COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }

    pub async fn find_proof(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<MailboxProof>, DbError> {
        Ok(self.db.fetch_optional(query(FIND).bind(token.0.as_slice()).bind(now.0)).await?)
    }

    /// Returns whether the new code replaced the last one; false if another call replaced it first. The email with the
    /// last one is deleted if it was not sent yet.
    pub async fn replace_proof_code(&self, token: TokenHash, new: SentEmailCode) -> Result<bool, DbError> {
        let step = move |tx: &mut Tx<'_>| {
            let last: Option<SentCode> = query(CODE).bind(token.0.as_slice()).fetch_optional(tx)?;
            let replace = query(REPLACE_CODE)
                .bind(token.0.as_slice())
                .bind(new.hash.0.as_slice())
                .bind(new.expires_at.0)
                .bind(new.sent_at.0)
                .bind(i64::from(new.sent) - 1);
            if replace.execute(tx)? == 0 {
                return Ok(false);
            }
            if let Some(SentCode(code)) = &last {
                delete_code_email(tx, code)?;
            }
            Ok(true)
        };
        self.db.write(step).await
    }

    /// Consumes the proof. Returns whether it still existed with this code: only one of several concurrent calls gets
    /// true.
    pub async fn consume_proof(&self, token: TokenHash, code: TokenHash) -> Result<bool, DbError> {
        Ok(self.db.write(move |tx| consume(tx, &token, &code)).await?)
    }

    /// Deletes up to `limit` expired proofs and returns how many.
    pub async fn delete_expired_proofs(&self, now: UnixMillis, limit: u32) -> Result<u64, DbError> {
        let delete = query(DELETE_EXPIRED).bind(now.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }
}
