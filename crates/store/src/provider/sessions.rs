//! Queries for browser sessions at the identity provider. Every request reads again whether its session is active.

use super::backchannel_logouts::{announce_session_end, announce_sessions_end};
use crate::DbError;
use crate::db::{COMMAND_RETRY_LIMIT, Db, QueryError, Tx, from_row, query};
use crate::{NewProviderSession, ProviderAccount, ProviderSession};
use chancery_domain::{SessionTimeouts, TokenHash, UnixMillis};
use std::sync::Arc;
use tokio::sync::Notify;

struct StoredSession {
    session: ProviderSession,
    last_used_at: UnixMillis,
}

from_row!(ProviderSession { account: ProviderAccount::from_row, started_at: "started_at_ms", sid, amr });
from_row!(StoredSession { session: ProviderSession::from_row, last_used_at: "last_used_at_ms" });

/// A session's last use is written at most this often, so that most page reads need no write.
const TOUCH_INTERVAL_MS: i64 = 30_000;

const START: &str = "INSERT INTO provider_sessions (token_hash, subject, password_version, sid, amr, started_at_ms, \
    last_used_at_ms) VALUES ($1, $2, $3, $4, $5, $6, $6)";
const ACTIVE: &str = "SELECT s.started_at_ms, s.last_used_at_ms, s.sid, s.amr, a.subject, a.email, a.password_hash, a.password_version, \
    a.created_at_ms FROM provider_sessions s \
    JOIN provider_accounts a ON a.subject = s.subject AND a.password_version = s.password_version \
    WHERE s.token_hash = $1 AND s.started_at_ms > $2 AND s.last_used_at_ms > $3";
/// Extends only a session that is still active, however late this runs.
const TOUCH: &str = "UPDATE provider_sessions SET last_used_at_ms = $2 \
    WHERE token_hash = $1 AND last_used_at_ms < $2 AND started_at_ms > $3 AND last_used_at_ms > $4";
/// The session keeps its `sid` and its applications.
const CONTINUE: &str = "UPDATE provider_sessions SET token_hash = $2, password_version = $4, amr = $5, started_at_ms = $6, \
    last_used_at_ms = $6 WHERE token_hash = $1 AND subject = $3";
const REAUTHENTICATE: &str =
    "UPDATE provider_sessions SET amr = $2, started_at_ms = $3 WHERE token_hash = $1";
const END: &str = "DELETE FROM provider_sessions WHERE token_hash = $1";
const TOKEN_OF_SID: &str = "SELECT token_hash FROM provider_sessions WHERE sid = $1 AND subject = $2";
const END_ALL: &str = "DELETE FROM provider_sessions WHERE subject = $1 AND sid <> $2";
/// Sessions that merely expired are not announced to their applications.
const DELETE_EXPIRED: &str = "DELETE FROM provider_sessions WHERE token_hash IN \
    (SELECT token_hash FROM provider_sessions WHERE started_at_ms <= $1 OR last_used_at_ms <= $2 LIMIT $3)";

/// No session has it.
pub(crate) const NO_SID: &str = "";

/// Ends all sessions of an account except `spared_sid`, and announces it to their applications. Wake the worker after the
/// commit.
pub(super) fn end_sessions_of_subject(
    tx: &mut Tx<'_>,
    subject: &str,
    spared_sid: &str,
) -> Result<u64, QueryError> {
    announce_sessions_end(tx, subject, spared_sid)?;
    query(END_ALL).bind(subject).bind(spared_sid).execute(tx)
}

/// Ends all sessions of a provider account except `spared_sid`, for `SessionRevoker`.
pub(crate) async fn end_subject_sessions(db: &Db, subject: &str, spared_sid: &str) -> Result<u64, DbError> {
    let (subject, spared_sid) = (subject.to_owned(), spared_sid.to_owned());
    Ok(db.write(move |tx| end_sessions_of_subject(tx, &subject, &spared_sid)).await?)
}

/// Browser sessions at the identity provider.
#[derive(Clone)]
pub struct ProviderSessions {
    pub(crate) db: Db,
    /// Wakes the worker of back-channel logout.
    pub(crate) logout_wake: Arc<Notify>,
}

impl ProviderSessions {
    /// Starts no session if the password was changed after it was verified.
    pub async fn start_provider_session(&self, new: NewProviderSession) -> Result<(), DbError> {
        let start = query(START)
            .bind(new.token.0.as_slice())
            .bind(new.subject.as_str())
            .bind(new.password_version)
            .bind(new.sid.as_str())
            .bind(new.amr.as_str())
            .bind(new.at.0);
        self.db.execute(start, COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }

    /// The session with its account, if it is active. Updates its last use now and then.
    pub async fn provider_session(
        &self,
        token: TokenHash,
        timeouts: SessionTimeouts,
        now: UnixMillis,
    ) -> Result<Option<ProviderSession>, DbError> {
        let (oldest_start, oldest_use) = timeouts.active_cutoffs(now);
        let find = query(ACTIVE).bind(token.0.as_slice()).bind(oldest_start.0).bind(oldest_use.0);
        let found: Option<StoredSession> = self.db.fetch_optional(find).await?;
        let Some(StoredSession { session, last_used_at }) = found else { return Ok(None) };
        if last_used_at.0 + TOUCH_INTERVAL_MS <= now.0 {
            let touch =
                query(TOUCH).bind(token.0.as_slice()).bind(now.0).bind(oldest_start.0).bind(oldest_use.0);
            self.db.execute(touch, COMMAND_RETRY_LIMIT).await?;
        }
        Ok(Some(session))
    }

    /// The person authenticates again in the same browser: the session goes on with a new token, and keeps its `sid`, so
    /// that its applications are not signed out. False if the token has no session of this account; nothing is started
    /// then.
    pub async fn continue_provider_session(
        &self,
        old_token: TokenHash,
        new: &NewProviderSession,
    ) -> Result<bool, DbError> {
        let go_on = query(CONTINUE)
            .bind(old_token.0.as_slice())
            .bind(new.token.0.as_slice())
            .bind(new.subject.as_str())
            .bind(new.password_version)
            .bind(new.amr.as_str())
            .bind(new.at.0);
        Ok(self.db.execute(go_on, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// Records how and when the person of an active session authenticated. The session and its `sid` stay.
    pub async fn reauthenticate_provider_session(
        &self,
        token: TokenHash,
        amr: &str,
        at: UnixMillis,
    ) -> Result<(), DbError> {
        let reauthenticate = query(REAUTHENTICATE).bind(token.0.as_slice()).bind(amr).bind(at.0);
        self.db.execute(reauthenticate, COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }

    /// Ends the session and announces it to its applications. Returns whether there was such a session.
    pub async fn end_provider_session(&self, token: TokenHash) -> Result<bool, DbError> {
        let step = move |tx: &mut Tx<'_>| {
            announce_session_end(tx, &token)?;
            query(END).bind(token.0.as_slice()).execute(tx)
        };
        let ended = self.db.write(step).await?;
        self.logout_wake.notify_one();
        Ok(ended > 0)
    }

    /// Like `end_provider_session`, for the session of this account that ID tokens name `sid`.
    pub async fn end_provider_session_by_sid(&self, subject: &str, sid: &str) -> Result<bool, DbError> {
        let token: Option<Vec<u8>> =
            self.db.fetch_optional(query(TOKEN_OF_SID).bind(sid).bind(subject)).await?;
        match token.and_then(|token| token.try_into().ok()) {
            Some(token) => self.end_provider_session(TokenHash(token)).await,
            None => Ok(false),
        }
    }

    /// Deletes up to `limit` expired sessions and returns how many.
    pub async fn delete_expired_provider_sessions(
        &self,
        timeouts: SessionTimeouts,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, DbError> {
        let (oldest_start, oldest_use) = timeouts.active_cutoffs(now);
        let delete = query(DELETE_EXPIRED).bind(oldest_start.0).bind(oldest_use.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }
}
