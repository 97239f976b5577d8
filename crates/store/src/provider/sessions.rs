//! The queries about browsers' sessions with the identity provider. Whether one is alive is read anew for every request.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain};
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::provider::accounts::StoredProviderAccount;
use crate::{NewProviderSession, ProviderSession, ProviderSessions, StoreError};
use chancery_domain::{SessionTimes, TokenHash, UnixMillis};

stored_row! {
    struct StoredProviderSession {
        started_at_ms: i64,
        last_used_at_ms: i64,
        ..account: StoredProviderAccount,
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
const FORGET: &str = "DELETE FROM provider_sessions WHERE token_hash IN \
    (SELECT token_hash FROM provider_sessions WHERE started_at_ms <= $1 OR last_used_at_ms <= $2 LIMIT $3)";

for_both_stores! {
    impl ProviderSessions {
        async fn start_provider_session(&self, new: NewProviderSession) -> Result<(), StoreError> {
            let started = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(START)
                    .bind(new.token.0.as_slice())
                    .bind(new.subject.as_str())
                    .bind(new.password_version)
                    .bind(new.at.0)
                    .execute(&mut *connection)
            });
            started.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn provider_session(
            &self,
            token: TokenHash,
            times: SessionTimes,
            now: UnixMillis,
        ) -> Result<Option<ProviderSession>, StoreError> {
            let (oldest_start, oldest_use) = times.oldest_alive(now);
            let found = sqlx::query_as(ALIVE).bind(token.0.as_slice()).bind(oldest_start.0).bind(oldest_use.0);
            let found: Option<StoredProviderSession> = answer(found.fetch_optional(&self.reader)).await?;
            let Some(found) = found else { return Ok(None) };
            if found.last_used_at_ms + TOUCH_PAUSE_MS <= now.0 {
                let touched = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                    sqlx::query(TOUCH)
                        .bind(token.0.as_slice())
                        .bind(now.0)
                        .bind(oldest_start.0)
                        .bind(oldest_use.0)
                        .execute(&mut *connection)
                });
                touched.map_err(|error| explain(&error))?;
            }
            let started_at = UnixMillis(found.started_at_ms);
            Ok(Some(ProviderSession { account: found.account.into_account()?, started_at }))
        }

        async fn end_provider_session(&self, token: TokenHash) -> Result<bool, StoreError> {
            let ended = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(END).bind(token.0.as_slice()).execute(&mut *connection)
            });
            ended.map(|done| done.rows_affected() > 0).map_err(|error| explain(&error))
        }

        async fn end_provider_sessions_of(&self, subject: &str) -> Result<u64, StoreError> {
            let ended = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(END_ALL).bind(subject).execute(&mut *connection)
            });
            ended.map(|done| done.rows_affected()).map_err(|error| explain(&error))
        }

        async fn forget_ended_provider_sessions(
            &self,
            times: SessionTimes,
            now: UnixMillis,
            limit: u32,
        ) -> Result<u64, StoreError> {
            let (oldest_start, oldest_use) = times.oldest_alive(now);
            let forgotten = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(FORGET)
                    .bind(oldest_start.0)
                    .bind(oldest_use.0)
                    .bind(i64::from(limit))
                    .execute(&mut *connection)
            });
            forgotten.map(|done| done.rows_affected()).map_err(|error| explain(&error))
        }
    }
}
