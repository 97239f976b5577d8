//! The queries about browsers' sessions with the identity provider. Whether one is alive is read again for every request.

use crate::DbError;
use crate::db::{COMMAND_WAIT, Db, FromRow, Row, query};
use crate::{NewProviderSession, ProviderAccount, ProviderSession};
use chancery_domain::{SessionTimes, TokenHash, UnixMillis};

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

/// A session's last use is written at most this often, so that reading a page costs no write each time.
const TOUCH_PAUSE_MS: i64 = 30_000;

const START: &str = "INSERT INTO provider_sessions (token_hash, subject, password_version, started_at_ms, last_used_at_ms) \
    VALUES ($1, $2, $3, $4, $4)";
const ALIVE: &str = "SELECT s.started_at_ms, s.last_used_at_ms, a.subject, a.email, a.password_hash, a.password_version, \
    a.created_at_ms FROM provider_sessions s \
    JOIN provider_accounts a ON a.subject = s.subject AND a.password_version = s.password_version \
    WHERE s.token_hash = $1 AND s.started_at_ms > $2 AND s.last_used_at_ms > $3";
/// Only a session that is still alive lives on, however late this comes.
const TOUCH: &str = "UPDATE provider_sessions SET last_used_at_ms = $2 \
    WHERE token_hash = $1 AND last_used_at_ms < $2 AND started_at_ms > $3 AND last_used_at_ms > $4";
const END: &str = "DELETE FROM provider_sessions WHERE token_hash = $1";
const END_ALL: &str = "DELETE FROM provider_sessions WHERE subject = $1";
/// Those that a new password ended go when their time is over, like all others.
const DELETE_EXPIRED: &str = "DELETE FROM provider_sessions WHERE token_hash IN \
    (SELECT token_hash FROM provider_sessions WHERE started_at_ms <= $1 OR last_used_at_ms <= $2 LIMIT $3)";

/// Ends the sessions of an account of the provider, as `SessionRevoker` does.
pub(crate) async fn end_all_of_subject(db: &Db, subject: &str) -> Result<u64, DbError> {
    Ok(db.execute(query(END_ALL).bind(subject), COMMAND_WAIT).await?)
}

/// ProviderSessions.
#[derive(Clone)]
pub struct ProviderSessions {
    pub(crate) db: Db,
}

impl ProviderSessions {
    /// Opens nothing if the account's password was changed since it was found right.
    pub async fn start_provider_session(&self, new: NewProviderSession) -> Result<(), DbError> {
        let start = query(START)
            .bind(new.token.0.as_slice())
            .bind(new.subject.as_str())
            .bind(new.password_version)
            .bind(new.at.0);
        self.db.execute(start, COMMAND_WAIT).await?;
        Ok(())
    }

    /// Whose session this is, if it is alive. Notes that it was used, now and then.
    pub async fn provider_session(
        &self,
        token: TokenHash,
        times: SessionTimes,
        now: UnixMillis,
    ) -> Result<Option<ProviderSession>, DbError> {
        let (oldest_start, oldest_use) = times.oldest_alive(now);
        let find = query(ALIVE).bind(token.0.as_slice()).bind(oldest_start.0).bind(oldest_use.0);
        let found: Option<StoredSession> = self.db.fetch_optional(find).await?;
        let Some(StoredSession { session, last_used_at }) = found else { return Ok(None) };
        if last_used_at.0 + TOUCH_PAUSE_MS <= now.0 {
            let touch =
                query(TOUCH).bind(token.0.as_slice()).bind(now.0).bind(oldest_start.0).bind(oldest_use.0);
            self.db.execute(touch, COMMAND_WAIT).await?;
        }
        Ok(Some(session))
    }

    /// Whether there was such a session.
    pub async fn end_provider_session(&self, token: TokenHash) -> Result<bool, DbError> {
        Ok(self.db.execute(query(END).bind(token.0.as_slice()), COMMAND_WAIT).await? > 0)
    }

    /// Removes up to `limit` that are over; says how many.
    pub async fn forget_ended_provider_sessions(
        &self,
        times: SessionTimes,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, DbError> {
        let (oldest_start, oldest_use) = times.oldest_alive(now);
        let delete = query(DELETE_EXPIRED).bind(oldest_start.0).bind(oldest_use.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_WAIT).await?)
    }
}
