//! Queries for back-channel logout: the applications of a session, and the logout tokens that have to be sent.
//!
//! 1. The transaction that ends a session adds one row for each application that got a grant in it.
//! 2. A process claims due rows in one statement, so that no two send the same token at the same time. The claim moves the
//!    next attempt to its end: if the process dies, another one sends the token then.
//! 3. The outcome is stored only while the claim is still this process's. A row is deleted when the application accepted
//!    the token, or when it is given up.

use crate::db::{COMMAND_RETRY_LIMIT, Db, Dialect, Query, QueryError, Tx, from_row, query};
use crate::{BackchannelLogout, DbError};
use chancery_domain::{SecretToken, TokenHash, UnixMillis};
use std::sync::Arc;
use tokio::sync::Notify;

const RECORD_CLIENT: &str = "INSERT INTO provider_session_clients (sid, client_id) \
    SELECT s.sid, $2 FROM provider_sessions s WHERE s.sid = $1 ON CONFLICT (sid, client_id) DO NOTHING";
/// Due at once. The first attempt sets the time from which it is repeated.
const ANNOUNCE_SESSION: &str = "INSERT INTO backchannel_logouts (sid, client_id, subject, attempts, next_attempt_at_ms) \
    SELECT c.sid, c.client_id, s.subject, 0, 0 FROM provider_sessions s \
    JOIN provider_session_clients c ON c.sid = s.sid WHERE s.token_hash = $1 \
    ON CONFLICT (sid, client_id) DO NOTHING";
const ANNOUNCE_SUBJECT: &str = "INSERT INTO backchannel_logouts (sid, client_id, subject, attempts, next_attempt_at_ms) \
    SELECT c.sid, c.client_id, s.subject, 0, 0 FROM provider_sessions s \
    JOIN provider_session_clients c ON c.sid = s.sid WHERE s.subject = $1 AND s.sid <> $2 \
    ON CONFLICT (sid, client_id) DO NOTHING";

const CLAIM_SQLITE: &str = "UPDATE backchannel_logouts SET claim = $1, next_attempt_at_ms = $2, attempts = attempts + 1, \
    first_attempt_at_ms = COALESCE(first_attempt_at_ms, $3) \
    WHERE (sid, client_id) IN (SELECT d.sid, d.client_id FROM backchannel_logouts d \
        WHERE d.next_attempt_at_ms <= $3 ORDER BY d.next_attempt_at_ms LIMIT $4) \
    RETURNING *";
/// Skips rows that another node is claiming. Materialized, so that the limit applies once.
const CLAIM_POSTGRES: &str = "WITH due AS MATERIALIZED (SELECT d.sid, d.client_id FROM backchannel_logouts d \
        WHERE d.next_attempt_at_ms <= $3 ORDER BY d.next_attempt_at_ms LIMIT $4 FOR UPDATE SKIP LOCKED) \
    UPDATE backchannel_logouts l SET claim = $1, next_attempt_at_ms = $2, attempts = l.attempts + 1, \
    first_attempt_at_ms = COALESCE(l.first_attempt_at_ms, $3) FROM due \
    WHERE l.sid = due.sid AND l.client_id = due.client_id RETURNING l.*";
const RETRY: &str = "UPDATE backchannel_logouts SET claim = NULL, next_attempt_at_ms = $4 \
    WHERE sid = $1 AND client_id = $2 AND claim = $3";
const FINISH: &str = "DELETE FROM backchannel_logouts WHERE sid = $1 AND client_id = $2 AND claim = $3";
const NEXT_ATTEMPT: &str = "SELECT MIN(next_attempt_at_ms) FROM backchannel_logouts";

from_row!(
    BackchannelLogout {
        client_id,
        subject,
        sid,
        attempt: capped_count("attempts"),
        first_attempt_at: time_or_zero("first_attempt_at_ms"),
        claim: or_default("claim")
    },
    "sid"
);

/// Records that an application got a grant in a session, if the session still exists.
pub(super) fn record_client(sid: &str, client_id: &str) -> Query {
    query(RECORD_CLIENT).bind(sid).bind(client_id)
}

/// In the transaction that ends the session. Wake the worker after the commit.
pub(super) fn announce_session_end(tx: &mut Tx<'_>, token: &TokenHash) -> Result<(), QueryError> {
    query(ANNOUNCE_SESSION).bind(token.0.as_slice()).execute(tx)?;
    Ok(())
}

/// Like `announce_session_end`, for all sessions of an account except `spared_sid`.
pub(super) fn announce_sessions_end(
    tx: &mut Tx<'_>,
    subject: &str,
    spared_sid: &str,
) -> Result<(), QueryError> {
    query(ANNOUNCE_SUBJECT).bind(subject).bind(spared_sid).execute(tx)?;
    Ok(())
}

/// Logout tokens that have to be sent. All handles of one process share the signal that wakes its worker.
#[derive(Clone)]
pub struct BackchannelLogouts {
    pub(crate) db: Db,
    pub(crate) wake: Arc<Notify>,
}

impl BackchannelLogouts {
    /// Claims up to `limit` that are due, until `claim_ends_at`. Each goes to one caller only.
    pub async fn claim_backchannel_logouts(
        &self,
        claim: &SecretToken,
        now: UnixMillis,
        claim_ends_at: UnixMillis,
        limit: u32,
    ) -> Result<Vec<BackchannelLogout>, DbError> {
        let sql = match self.db.dialect() {
            Dialect::Sqlite => CLAIM_SQLITE,
            Dialect::Postgres => CLAIM_POSTGRES,
        };
        let claim = query(sql).bind(claim.reveal()).bind(claim_ends_at.0).bind(now.0).bind(i64::from(limit));
        Ok(self.db.write_returning(claim, COMMAND_RETRY_LIMIT).await?)
    }

    /// Deletes one that was accepted or given up. Returns false if the claim had ended and another process has it now.
    pub async fn finish_backchannel_logout(&self, claimed: &BackchannelLogout) -> Result<bool, DbError> {
        let finish = query(FINISH)
            .bind(claimed.sid.as_str())
            .bind(claimed.client_id.as_str())
            .bind(claimed.claim.as_str());
        Ok(self.db.execute(finish, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// Returns false if the claim had ended and another process has it now.
    pub async fn retry_backchannel_logout(
        &self,
        claimed: &BackchannelLogout,
        at: UnixMillis,
    ) -> Result<bool, DbError> {
        let retry = query(RETRY)
            .bind(claimed.sid.as_str())
            .bind(claimed.client_id.as_str())
            .bind(claimed.claim.as_str())
            .bind(at.0);
        Ok(self.db.execute(retry, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// When the next one is due; `None` if there is none.
    pub async fn next_backchannel_logout_at(&self) -> Result<Option<UnixMillis>, DbError> {
        let next: Option<i64> = self.db.fetch_one(query(NEXT_ATTEMPT)).await?;
        Ok(next.map(UnixMillis))
    }

    /// Waits until this process has ended a session, or `wake_worker` was called.
    pub async fn wait_for_ended_session(&self) {
        self.wake.notified().await;
    }

    pub fn wake_worker(&self) {
        self.wake.notify_one();
    }
}
