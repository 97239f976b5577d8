//! Queries for browser sessions at the identity provider. Every request reads again whether its session is active.

use crate::DbError;
use crate::db::{COMMAND_RETRY_LIMIT, Db, FromRow, Row, query};
use crate::{NewProviderSession, ProviderAccount, ProviderSession};
use chancery_domain::{SessionTimeouts, TokenHash, UnixMillis};

struct StoredSession {
    session: ProviderSession,
    last_used_at: UnixMillis,
}

impl FromRow for StoredSession {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let started_at = UnixMillis(row.get("started_at_ms")?);
        Ok(Self {
            session: ProviderSession { account: ProviderAccount::from_row(row)?, started_at },
            last_used_at: UnixMillis(row.get("last_used_at_ms")?),
        })
    }
}

/// A session's last use is written at most this often, so that most page reads need no write.
const TOUCH_INTERVAL_MS: i64 = 30_000;

const START: &str = "INSERT INTO provider_sessions (token_hash, subject, password_version, started_at_ms, last_used_at_ms) \
    VALUES ($1, $2, $3, $4, $4)";
const ACTIVE: &str = "SELECT s.started_at_ms, s.last_used_at_ms, a.subject, a.email, a.password_hash, a.password_version, \
    a.created_at_ms FROM provider_sessions s \
    JOIN provider_accounts a ON a.subject = s.subject AND a.password_version = s.password_version \
    WHERE s.token_hash = $1 AND s.started_at_ms > $2 AND s.last_used_at_ms > $3";
/// Extends only a session that is still active, however late this runs.
const TOUCH: &str = "UPDATE provider_sessions SET last_used_at_ms = $2 \
    WHERE token_hash = $1 AND last_used_at_ms < $2 AND started_at_ms > $3 AND last_used_at_ms > $4";
const END: &str = "DELETE FROM provider_sessions WHERE token_hash = $1";
const END_ALL: &str = "DELETE FROM provider_sessions WHERE subject = $1";
/// Sessions that a new password ended are deleted when they would have expired.
const DELETE_EXPIRED: &str = "DELETE FROM provider_sessions WHERE token_hash IN \
    (SELECT token_hash FROM provider_sessions WHERE started_at_ms <= $1 OR last_used_at_ms <= $2 LIMIT $3)";

/// Ends all sessions of a provider account, for `SessionRevoker`.
pub(crate) async fn end_subject_sessions(db: &Db, subject: &str) -> Result<u64, DbError> {
    Ok(db.execute(query(END_ALL).bind(subject), COMMAND_RETRY_LIMIT).await?)
}

/// Browser sessions at the identity provider.
#[derive(Clone)]
pub struct ProviderSessions {
    pub(crate) db: Db,
}

impl ProviderSessions {
    /// Starts no session if the password was changed after it was verified.
    pub async fn start_provider_session(&self, new: NewProviderSession) -> Result<(), DbError> {
        let start = query(START)
            .bind(new.token.0.as_slice())
            .bind(new.subject.as_str())
            .bind(new.password_version)
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

    /// Returns whether there was such a session.
    pub async fn end_provider_session(&self, token: TokenHash) -> Result<bool, DbError> {
        Ok(self.db.execute(query(END).bind(token.0.as_slice()), COMMAND_RETRY_LIMIT).await? > 0)
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
