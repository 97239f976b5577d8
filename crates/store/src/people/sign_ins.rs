//! The queries about sign-ins under way. Those that wait for a code are in `email_codes`.

use super::email_codes;
use super::rows::lock_identity;
use crate::audit::step::AuditedSteps;
use crate::db::Db;
use crate::db::{COMMAND_WAIT, Conn, FromRow, Row, query};
use crate::{CodeSending, CodeTry, HalfSignIn, PersonError, SignIn};
use chancery_domain::{
    AuditEvent, AuditRow, AuditedEvent, EventKind, EventOrigin, Identity, TokenHash, UnixMillis,
};

/// Sign-ins under way that are worth keeping. Anybody can begin one, so the oldest go when there are more.
pub const MAX_SIGN_INS: u32 = 100_000;

impl FromRow for SignIn {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            state: row.get("state")?,
            nonce: row.get("nonce")?,
            pkce_verifier: row.get("pkce_verifier")?,
            return_to: email_codes::return_path(row)?,
            expires_at: UnixMillis(row.get("expires_at_ms")?),
        })
    }
}

const BEGIN: &str = "INSERT INTO sign_ins (token_hash, state, nonce, pkce_verifier, return_to, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6)";
const TAKE: &str = "DELETE FROM sign_ins WHERE token_hash = $1 RETURNING state, nonce, pkce_verifier, return_to, expires_at_ms";
const DELETE_EXPIRED: &str = "DELETE FROM sign_ins WHERE token_hash IN \
    (SELECT token_hash FROM sign_ins WHERE expires_at_ms <= $1 LIMIT $2)";
const DELETE_TOO_MANY: &str = "DELETE FROM sign_ins WHERE token_hash IN \
    (SELECT token_hash FROM sign_ins ORDER BY expires_at_ms DESC LIMIT $2 OFFSET $1)";

/// The row of a wrong code. Somebody who signs in for the first time is not known yet.
async fn code_rejected(
    conn: &mut Conn<'_>,
    identity: &Identity,
    origin: &EventOrigin,
) -> Result<AuditRow, sqlx::Error> {
    let by = lock_identity(conn, identity).await?.map(|known| known.principal());
    let subject = by.map(|(person, _)| person);
    let event = AuditEvent { kind: EventKind::CodeRejected, subject, old_role: None, new_role: None };
    Ok(AuditRow::Event(AuditedEvent { by, event, origin: origin.clone() }))
}

/// SignIns.
#[derive(Clone)]
pub struct SignIns {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl SignIns {
    pub async fn begin_sign_in(&self, token: TokenHash, sign_in: SignIn) -> Result<(), PersonError> {
        let begin = query(BEGIN)
            .bind(token.0.as_slice())
            .bind(sign_in.state.as_str())
            .bind(sign_in.nonce.as_str())
            .bind(sign_in.pkce_verifier.as_str())
            .bind(sign_in.return_to.as_str())
            .bind(sign_in.expires_at.0);
        self.db.execute(begin, COMMAND_WAIT).await?;
        Ok(())
    }

    /// Gives it once; None where there is none or its time is over.
    pub async fn take_sign_in(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<SignIn>, PersonError> {
        let take = query(TAKE).bind(token.0.as_slice());
        let taken: Vec<SignIn> = self.db.write_returning(take, COMMAND_WAIT).await?;
        Ok(taken.into_iter().next().filter(|sign_in| sign_in.expires_at > now))
    }

    pub async fn half_sign_in(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<HalfSignIn>, PersonError> {
        Ok(self.db.fetch_optional(email_codes::find(&token, now)).await?)
    }

    /// With its first code, which is counted as sent.
    pub async fn begin_half_sign_in(
        &self,
        token: TokenHash,
        half: HalfSignIn,
        now: UnixMillis,
    ) -> Result<CodeSending, PersonError> {
        let args = (token, half, now);
        let begun = self.db.run(&args, |conn, (token, half, now)| {
            Box::pin(async move { Ok(email_codes::begin(conn, token, half, *now).await?) })
        });
        begun.await
    }

    /// Whether one more letter may go out; counts it if so. The code of the last one stays in force.
    pub async fn may_send_code(&self, token: TokenHash, now: UnixMillis) -> Result<CodeSending, PersonError> {
        let args = (token, now);
        let counted = self.db.run(&args, |conn, (token, now)| {
            Box::pin(async move { Ok(email_codes::next_email(conn, token, *now).await?) })
        });
        counted.await
    }

    /// The mail server has taken a letter: its code is in force in the place of the last one. Not where the sign-in is over.
    pub async fn code_was_sent(
        &self,
        token: TokenHash,
        hash: TokenHash,
        expires_at: UnixMillis,
        now: UnixMillis,
    ) -> Result<bool, PersonError> {
        let sent = email_codes::sent(&token, &hash, expires_at, now);
        Ok(self.db.execute(sent, COMMAND_WAIT).await? > 0)
    }

    /// A letter that was counted could not be sent: it counts no more, and the next one may go out after a moment.
    pub async fn code_was_not_sent(&self, token: TokenHash, now: UnixMillis) -> Result<(), PersonError> {
        let args = (token, now);
        let refunded = self.db.run(&args, |conn, (token, now)| {
            Box::pin(async move { Ok(email_codes::refund_email(conn, token, *now).await?) })
        });
        refunded.await
    }

    /// A wrong code is on record.
    pub async fn try_code(
        &self,
        token: TokenHash,
        typed: TokenHash,
        origin: &EventOrigin,
    ) -> Result<CodeTry, PersonError> {
        self.audited
            .run_then_link(&(token, typed, origin), |conn, (token, typed, origin)| {
                Box::pin(async move {
                    let (tried, rejected) = email_codes::try_code(conn, token, typed, origin.at).await?;
                    let rows = match rejected {
                        Some(identity) => vec![code_rejected(conn, &identity, origin).await?],
                        None => Vec::new(),
                    };
                    Ok((tried, rows))
                })
            })
            .await
    }

    /// Removes up to `limit` of each kind that nobody can use any more, and of more sign-ins than `keep` those that were
    /// begun first; says how much.
    pub async fn forget_old_sign_ins(
        &self,
        now: UnixMillis,
        limit: u32,
        keep: u32,
    ) -> Result<u64, PersonError> {
        let mut deleted = 0;
        let expired = [DELETE_EXPIRED, email_codes::DELETE_EXPIRED];
        for (sql, bound) in
            expired.map(|sql| (sql, now.0)).into_iter().chain([(DELETE_TOO_MANY, i64::from(keep))])
        {
            let delete = query(sql).bind(bound).bind(i64::from(limit));
            deleted += self.db.execute(delete, COMMAND_WAIT).await?;
        }
        Ok(deleted)
    }
}
