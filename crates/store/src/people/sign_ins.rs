//! Queries for sign-ins in progress. Those that wait for a code are in `email_codes`.

use super::email_codes;
use super::rows::lock_identity;
use crate::audit::step::AuditedSteps;
use crate::db::{COMMAND_RETRY_LIMIT, Db, QueryError, Row, Tx, corrupt, from_row, query};
use crate::secrets::keyring::Keyring;
use crate::{CodeEmailOutcome, CodeOutcome, PendingEmailCode, PendingSignIn, PersonError, SignInPurpose};
use chancery_domain::{
    AuditEvent, AuditRow, AuditedEvent, EventKind, EventOrigin, Identity, TokenHash, UnixMillis,
};

/// Most sign-ins in progress. Anyone can start one, so beyond this the oldest are deleted.
pub const MAX_SIGN_INS: u32 = 100_000;

from_row!(PendingSignIn {
    state,
    nonce,
    pkce_verifier,
    return_to: email_codes::return_path,
    purpose: read_purpose,
    expires_at: "expires_at_ms"
});

fn read_purpose(row: &Row<'_>) -> Result<SignInPurpose, QueryError> {
    let stored: String = row.get("purpose")?;
    SignInPurpose::parse(&stored)
        .ok_or_else(|| corrupt("a sign-in's purpose", format!("there is no purpose {stored:?}")))
}

const BEGIN: &str = "INSERT INTO pending_sign_ins (token_hash, state, nonce, pkce_verifier, return_to, purpose, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7)";
const TAKE: &str = "DELETE FROM pending_sign_ins WHERE token_hash = $1 \
    RETURNING state, nonce, pkce_verifier, return_to, purpose, expires_at_ms";
const DELETE_EXPIRED: &str = "DELETE FROM pending_sign_ins WHERE token_hash IN \
    (SELECT token_hash FROM pending_sign_ins WHERE expires_at_ms <= $1 LIMIT $2)";
const DELETE_EXCESS: &str = "DELETE FROM pending_sign_ins WHERE token_hash IN \
    (SELECT token_hash FROM pending_sign_ins ORDER BY expires_at_ms DESC LIMIT $2 OFFSET $1)";

/// The audit row of a wrong code. A person who signs in for the first time is not known yet.
fn code_rejected(tx: &mut Tx<'_>, identity: &Identity, origin: &EventOrigin) -> Result<AuditRow, QueryError> {
    let by = lock_identity(tx, identity)?.map(|known| known.principal());
    let subject = by.map(|(person, _)| person);
    let event = AuditEvent { kind: EventKind::CodeRejected, subject, old_role: None, new_role: None };
    Ok(AuditRow::Event(AuditedEvent { by, event, origin: origin.clone() }))
}

/// Portal sign-ins in progress.
#[derive(Clone)]
pub struct SignIns {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
    pub(crate) keyring: Keyring,
}

impl SignIns {
    pub async fn begin_sign_in(&self, token: TokenHash, sign_in: PendingSignIn) -> Result<(), PersonError> {
        let begin = query(BEGIN)
            .bind(token.0.as_slice())
            .bind(sign_in.state.as_str())
            .bind(sign_in.nonce.as_str())
            .bind(sign_in.pkce_verifier.as_str())
            .bind(sign_in.return_to.as_str())
            .bind(sign_in.purpose.as_str())
            .bind(sign_in.expires_at.0);
        self.db.execute(begin, COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }

    /// Returns it once. `None` if it does not exist or has expired.
    pub async fn consume_sign_in(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<PendingSignIn>, PersonError> {
        let take = query(TAKE).bind(token.0.as_slice());
        let taken: Vec<PendingSignIn> = self.db.write_returning(take, COMMAND_RETRY_LIMIT).await?;
        Ok(taken.into_iter().next().filter(|sign_in| sign_in.expires_at > now))
    }

    pub async fn pending_email_code(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<PendingEmailCode>, PersonError> {
        let stored: Option<PendingEmailCode> = self.db.fetch_optional(email_codes::find(&token, now)).await?;
        let open = |stored| email_codes::with_id_token(stored, &token, &self.keyring);
        Ok(stored.map(open).transpose()?)
    }

    /// Starts to wait for the first code, which counts as sent.
    pub async fn begin_pending_email_code(
        &self,
        token: TokenHash,
        pending: PendingEmailCode,
        now: UnixMillis,
    ) -> Result<CodeEmailOutcome, PersonError> {
        let keyring = self.keyring.clone();
        Ok(self.db.write(move |tx| email_codes::begin(tx, &keyring, &token, &pending, now)).await?)
    }

    /// Counts one more email if it is allowed. The code of the last one stays valid.
    pub async fn count_code_email(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<CodeEmailOutcome, PersonError> {
        Ok(self.db.write(move |tx| email_codes::next_email(tx, &token, now)).await?)
    }

    /// The mail server accepted an email: its code replaces the last one, unless the sign-in is over.
    pub async fn mark_code_sent(
        &self,
        token: TokenHash,
        hash: TokenHash,
        expires_at: UnixMillis,
        now: UnixMillis,
    ) -> Result<bool, PersonError> {
        let sent = email_codes::sent(&token, &hash, expires_at, now);
        Ok(self.db.execute(sent, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// Refunds an email that could not be sent. The next one may go out after a short pause.
    pub async fn mark_code_unsent(&self, token: TokenHash, now: UnixMillis) -> Result<(), PersonError> {
        Ok(self.db.write(move |tx| email_codes::refund_code_email(tx, &token, now)).await?)
    }

    /// A wrong code is audited.
    pub async fn verify_code(
        &self,
        token: TokenHash,
        typed: TokenHash,
        origin: &EventOrigin,
    ) -> Result<CodeOutcome, PersonError> {
        let origin = origin.clone();
        let step = move |tx: &mut Tx<'_>| {
            let (outcome, rejected) = email_codes::verify_code(tx, &token, &typed, origin.at)?;
            let rows = match rejected {
                Some(identity) => vec![code_rejected(tx, &identity, &origin)?],
                None => Vec::new(),
            };
            Ok::<_, PersonError>((outcome, rows))
        };
        let outcome = self.audited.run_then_record(step).await?;
        // Only an accepted code lets anyone read the ID token.
        Ok(match outcome {
            CodeOutcome::Accepted(pending) => {
                CodeOutcome::Accepted(email_codes::with_id_token(pending, &token, &self.keyring)?)
            }
            outcome => outcome,
        })
    }

    /// Deletes up to `limit` expired rows of each kind, and the oldest sign-ins beyond `keep`. Returns how many.
    pub async fn delete_expired_sign_ins(
        &self,
        now: UnixMillis,
        limit: u32,
        keep: u32,
    ) -> Result<u64, PersonError> {
        let mut deleted = 0;
        let expired = [DELETE_EXPIRED, email_codes::DELETE_EXPIRED];
        for (sql, bound) in
            expired.map(|sql| (sql, now.0)).into_iter().chain([(DELETE_EXCESS, i64::from(keep))])
        {
            let delete = query(sql).bind(bound).bind(i64::from(limit));
            deleted += self.db.execute(delete, COMMAND_RETRY_LIMIT).await?;
        }
        Ok(deleted)
    }
}
