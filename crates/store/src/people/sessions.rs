//! The queries about sessions. Whether a session is alive, and what its owner may do, is read anew for every request.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain};
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::db::transaction::BeginWriting;
use crate::people::people::StoredPerson;
use crate::{NewSession, Sessions, SignedIn, StoreError};
use chancery_domain::{Identity, PersonId, Session, SessionId, SessionTimes, TokenHash, UnixMillis};
use sqlx::Connection;
use std::time::Duration;

stored_row! {
    /// `session_id`, because a person has an `id` too.
    struct StoredSession {
        session_id: i64,
        person_id: i64,
        started_at_ms: i64,
        last_used_at_ms: i64,
        place: String,
        browser: String,
    }
}

stored_row! {
    struct StoredSignedIn {
        session_id: i64,
        person_id: i64,
        started_at_ms: i64,
        last_used_at_ms: i64,
        place: String,
        browser: String,
        ..person: StoredPerson,
    }
}

impl StoredSession {
    fn into_session(self) -> Session {
        Session {
            id: SessionId(self.session_id),
            person: PersonId(self.person_id),
            started_at: UnixMillis(self.started_at_ms),
            last_used_at: UnixMillis(self.last_used_at_ms),
            place: self.place,
            browser: self.browser,
        }
    }
}

/// A person's sessions beyond these end, the longest unused first.
pub const MAX_SESSIONS_PER_PERSON: u32 = 50;

/// A session's last use is written at most this often, so that reading a page costs no write each time; more often only
/// where it would end early for that.
const TOUCH_PAUSE: Duration = Duration::from_secs(30);
/// The part of the idle time by which a session may end early.
const TOUCH_PART: u32 = 20;

fn touch_pause_ms(times: SessionTimes) -> i64 {
    i64::try_from(TOUCH_PAUSE.min(times.idle / TOUCH_PART).as_millis()).unwrap_or(i64::MAX)
}

macro_rules! session_columns {
    () => {
        "s.id AS session_id, s.person_id, s.started_at_ms, s.last_used_at_ms, s.place, s.browser"
    };
}

const START: &str = "INSERT INTO sessions (token_hash, person_id, started_at_ms, last_used_at_ms, place, browser) \
    SELECT $1, id, $3, $3, $4, $5 FROM people WHERE id = $2 AND removed_at_ms IS NULL";
const ALIVE: &str = concat!(
    "SELECT ",
    session_columns!(),
    ", p.id, p.issuer, p.subject, p.email, p.role, p.joined_at_ms, p.removed_at_ms \
     FROM sessions s JOIN people p ON p.id = s.person_id WHERE s.token_hash = $1 \
     AND s.started_at_ms > $2 AND s.last_used_at_ms > $3 AND p.removed_at_ms IS NULL"
);
/// Only a session that is still alive lives on, however late this comes.
const TOUCH: &str = "UPDATE sessions SET last_used_at_ms = $2, place = $3 \
    WHERE id = $1 AND last_used_at_ms < $2 AND started_at_ms > $4 AND last_used_at_ms > $5";
const OF_PERSON: &str = concat!(
    "SELECT ",
    session_columns!(),
    " FROM sessions s WHERE s.person_id = $1 AND s.started_at_ms > $2 AND s.last_used_at_ms > $3 \
      ORDER BY s.last_used_at_ms DESC, s.id DESC"
);
const END: &str = "DELETE FROM sessions WHERE id = $1 AND person_id = $2";
const END_ALL: &str = "DELETE FROM sessions WHERE person_id = $1 AND id <> $2";
const END_OF_IDENTITY: &str =
    "DELETE FROM sessions WHERE person_id IN (SELECT id FROM people WHERE issuer = $1 AND subject = $2)";
const END_HALF_OF_IDENTITY: &str = "DELETE FROM half_sign_ins WHERE issuer = $1 AND subject = $2";
const END_OF_TOKEN: &str = "DELETE FROM sessions WHERE token_hash = $1";
const END_TOO_MANY: &str = "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE person_id = $1 \
    ORDER BY last_used_at_ms DESC, id DESC LIMIT $3 OFFSET $2)";
/// Those of people who were removed open nothing, and go with the others.
const FORGET: &str = "DELETE FROM sessions WHERE id IN (SELECT s.id FROM sessions s JOIN people p ON p.id = s.person_id \
    WHERE s.started_at_ms <= $1 OR s.last_used_at_ms <= $2 OR p.removed_at_ms IS NOT NULL LIMIT $3)";

for_both_stores! {
    impl Sessions {
        async fn start_session(&self, new: NewSession) -> Result<(), StoreError> {
            let started = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| async {
                let mut transaction = connection.begin_with(Self::BEGIN).await?;
                let started = sqlx::query(START)
                    .bind(new.token.0.as_slice())
                    .bind(new.person.0)
                    .bind(new.at.0)
                    .bind(new.place.as_str())
                    .bind(new.browser.as_str())
                    .execute(&mut *transaction)
                    .await?;
                if let Some(old) = new.replaces {
                    sqlx::query(END_OF_TOKEN).bind(old.0.as_slice()).execute(&mut *transaction).await?;
                }
                let too_many = sqlx::query(END_TOO_MANY).bind(new.person.0).bind(i64::from(MAX_SESSIONS_PER_PERSON));
                too_many.bind(i64::from(u32::MAX)).execute(&mut *transaction).await?;
                transaction.commit().await.map(|()| started.rows_affected())
            });
            match started.map_err(|error| explain(&error))? {
                0 => Err(StoreError::NoSuchPerson(new.person)),
                _ => Ok(()),
            }
        }

        async fn signed_in(
            &self,
            token: TokenHash,
            place: &str,
            times: SessionTimes,
            now: UnixMillis,
        ) -> Result<Option<SignedIn>, StoreError> {
            let (oldest_start, oldest_use) = times.oldest_alive(now);
            let found = sqlx::query_as(ALIVE).bind(token.0.as_slice()).bind(oldest_start.0).bind(oldest_use.0);
            let found: Option<StoredSignedIn> = answer(found.fetch_optional(&self.reader)).await?;
            let Some(StoredSignedIn { session_id, person_id, started_at_ms, last_used_at_ms, place: last_place, browser, person }) = found
            else {
                return Ok(None);
            };
            if last_used_at_ms + touch_pause_ms(times) <= now.0 || last_place != place {
                let touched = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                    sqlx::query(TOUCH)
                        .bind(session_id)
                        .bind(now.0)
                        .bind(place)
                        .bind(oldest_start.0)
                        .bind(oldest_use.0)
                        .execute(&mut *connection)
                });
                touched.map_err(|error| explain(&error))?;
            }
            let session = StoredSession { session_id, person_id, started_at_ms, last_used_at_ms, place: last_place, browser };
            Ok(Some(SignedIn { session: session.into_session(), person: person.into_person()? }))
        }

        async fn sessions_of(
            &self,
            person: PersonId,
            times: SessionTimes,
            now: UnixMillis,
        ) -> Result<Vec<Session>, StoreError> {
            let (oldest_start, oldest_use) = times.oldest_alive(now);
            let found = sqlx::query_as(OF_PERSON).bind(person.0).bind(oldest_start.0).bind(oldest_use.0);
            let rows: Vec<StoredSession> = answer(found.fetch_all(&self.reader)).await?;
            Ok(rows.into_iter().map(StoredSession::into_session).collect())
        }

        async fn end_session(&self, person: PersonId, session: SessionId) -> Result<bool, StoreError> {
            let ended = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(END).bind(session.0).bind(person.0).execute(&mut *connection)
            });
            ended.map(|done| done.rows_affected() > 0).map_err(|error| explain(&error))
        }

        async fn end_all_sessions(&self, person: PersonId, except: Option<SessionId>) -> Result<u64, StoreError> {
            // Numbers begin with 1.
            let except = except.map_or(0, |session| session.0);
            let ended = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(END_ALL).bind(person.0).bind(except).execute(&mut *connection)
            });
            ended.map(|done| done.rows_affected()).map_err(|error| explain(&error))
        }

        async fn end_sessions_of_identity(&self, identity: &Identity) -> Result<u64, StoreError> {
            let Identity { issuer, subject } = identity;
            let ended = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| async {
                let mut transaction = connection.begin_with(Self::BEGIN).await?;
                let half = sqlx::query(END_HALF_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str());
                half.execute(&mut *transaction).await?;
                let whole = sqlx::query(END_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str());
                let ended = whole.execute(&mut *transaction).await?;
                transaction.commit().await.map(|()| ended.rows_affected())
            });
            ended.map_err(|error| explain(&error))
        }

        async fn forget_ended_sessions(
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
