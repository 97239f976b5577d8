//! The queries about sessions. Whether a session is alive, and what its owner may do, is read again for every request. Signing in
//! and out is on record with the address that it came from; a session that ends by itself is not.

use super::rows::{KnownPerson, lock_identity, lock_person};
use crate::audit::step::AuditedSteps;
use crate::db::Db;
use crate::db::{COMMAND_WAIT, Conn, FromRow, Row, query};
use crate::{NewSession, PersonError, SignedIn};
use chancery_domain::{
    AuditEvent, AuditRow, AuditedEvent, EventKind, EventOrigin, Identity, Person, PersonId, Session,
    SessionId, SessionTimes, TokenHash, UnixMillis,
};
use std::time::Duration;

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

/// `session_id`, because a person has an `id` too.
impl FromRow for Session {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: SessionId(row.get("session_id")?),
            person: PersonId(row.get("person_id")?),
            started_at: UnixMillis(row.get("started_at_ms")?),
            last_used_at: UnixMillis(row.get("last_used_at_ms")?),
            place: row.get("place")?,
            browser: row.get("browser")?,
        })
    }
}

impl FromRow for SignedIn {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self { session: Session::from_row(row)?, person: Person::from_row(row)? })
    }
}

const START: &str = "INSERT INTO sessions (token_hash, person_id, started_at_ms, last_used_at_ms, place, browser) \
    SELECT $1, id, $3, $3, $4, $5 FROM people WHERE id = $2 AND removed_at_ms IS NULL";
const ALIVE: &str = "SELECT s.id AS session_id, s.person_id, s.started_at_ms, s.last_used_at_ms, s.place, s.browser, \
    p.id, p.issuer, p.subject, p.email, p.role, p.joined_at_ms \
    FROM sessions s JOIN people p ON p.id = s.person_id WHERE s.token_hash = $1 \
    AND s.started_at_ms > $2 AND s.last_used_at_ms > $3 AND p.removed_at_ms IS NULL";
/// Only a session that is still alive lives on, however late this comes.
const TOUCH: &str = "UPDATE sessions SET last_used_at_ms = $2, place = $3 \
    WHERE id = $1 AND last_used_at_ms < $2 AND started_at_ms > $4 AND last_used_at_ms > $5";
const OF_PERSON: &str = "SELECT id AS session_id, person_id, started_at_ms, last_used_at_ms, place, browser \
    FROM sessions WHERE person_id = $1 AND started_at_ms > $2 AND last_used_at_ms > $3 \
    ORDER BY last_used_at_ms DESC, id DESC";
const END: &str = "DELETE FROM sessions WHERE person_id = $1 AND id = $2";
const END_ALL: &str = "DELETE FROM sessions WHERE person_id = $1 AND id <> $2";
const END_OF_IDENTITY: &str =
    "DELETE FROM sessions WHERE person_id IN (SELECT id FROM people WHERE issuer = $1 AND subject = $2)";
const END_PENDING_OF_IDENTITY: &str = "DELETE FROM half_sign_ins WHERE issuer = $1 AND subject = $2";
const END_OF_TOKEN: &str = "DELETE FROM sessions WHERE token_hash = $1";
const END_TOO_MANY: &str = "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE person_id = $1 \
    ORDER BY last_used_at_ms DESC, id DESC LIMIT $3 OFFSET $2)";
/// Those of people who were removed open nothing, and go with the others.
const DELETE_EXPIRED: &str = "DELETE FROM sessions WHERE id IN (SELECT s.id FROM sessions s JOIN people p ON p.id = s.person_id \
    WHERE s.started_at_ms <= $1 OR s.last_used_at_ms <= $2 OR p.removed_at_ms IS NOT NULL LIMIT $3)";

/// Ends the sessions of an identity, and its sign-ins that wait for a code. How many sessions there were.
pub(super) async fn end_sessions_of(conn: &mut Conn<'_>, identity: &Identity) -> Result<u64, sqlx::Error> {
    let Identity { issuer, subject } = identity;
    query(END_PENDING_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str()).execute(conn).await?;
    query(END_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str()).execute(conn).await
}

/// The row of something that somebody did with their own sessions; none where there is no such person.
fn event_of(known: Option<KnownPerson>, kind: EventKind, origin: &EventOrigin) -> Vec<AuditRow> {
    let row = |known: KnownPerson| {
        let (by, event) = (Some(known.principal()), AuditEvent::new(kind, known.person.id));
        AuditRow::Event(AuditedEvent { by, event, origin: origin.clone() })
    };
    known.map(row).into_iter().collect()
}

/// Ends those of a person's sessions that the statement is for. How many there were.
async fn end(
    audited: &AuditedSteps,
    sql: &'static str,
    person: PersonId,
    session: Option<SessionId>,
    origin: &EventOrigin,
) -> Result<u64, PersonError> {
    audited
        .run_then_link(&(sql, person, session, origin), |conn, (sql, person, session, origin)| {
            Box::pin(async move {
                // Numbers begin with 1.
                let session = session.map_or(0, |session| session.0);
                let ended = query(sql).bind(person.0).bind(session).execute(conn).await?;
                let rows = match ended {
                    0 => Vec::new(),
                    _ => event_of(lock_person(conn, *person).await?, EventKind::SignedOut, origin),
                };
                Ok((ended, rows))
            })
        })
        .await
}

/// Ends the sessions of an identity, as `SessionRevoker` does.
pub(crate) async fn end_all_of_identity(
    audited: &AuditedSteps,
    identity: &Identity,
    origin: &EventOrigin,
) -> Result<u64, PersonError> {
    audited
        .run_then_link(&(identity, origin), |conn, (identity, origin)| {
            Box::pin(async move {
                let ended = end_sessions_of(conn, identity).await?;
                let rows = match ended {
                    0 => Vec::new(),
                    _ => event_of(lock_identity(conn, identity).await?, EventKind::SignedOut, origin),
                };
                Ok((ended, rows))
            })
        })
        .await
}

/// Sessions.
#[derive(Clone)]
pub struct Sessions {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl Sessions {
    /// Refused with `NoSuchPerson` for somebody who was removed. Of very many sessions of one person, those go that were
    /// not used for longest.
    pub async fn start_session(&self, new: NewSession) -> Result<(), PersonError> {
        let started = self
            .audited
            .run_then_link::<_, _, PersonError>(&new, |conn, new| {
                Box::pin(async move {
                    let start = query(START)
                        .bind(new.token.0.as_slice())
                        .bind(new.person.0)
                        .bind(new.origin.at.0)
                        .bind(new.place.as_str())
                        .bind(new.browser.as_str());
                    let started = start.execute(conn).await?;
                    // The browser's last session ends even where no new one starts.
                    if let Some(old) = &new.replaces {
                        query(END_OF_TOKEN).bind(old.0.as_slice()).execute(conn).await?;
                    }
                    let too_many = query(END_TOO_MANY)
                        .bind(new.person.0)
                        .bind(i64::from(MAX_SESSIONS_PER_PERSON))
                        .bind(i64::from(u32::MAX));
                    too_many.execute(conn).await?;
                    let rows = match started {
                        0 => Vec::new(),
                        _ => event_of(lock_person(conn, new.person).await?, EventKind::SignedIn, &new.origin),
                    };
                    Ok((started, rows))
                })
            })
            .await?;
        match started {
            0 => Err(PersonError::NoSuchPerson(new.person)),
            _ => Ok(()),
        }
    }

    /// Whose session this is, if it is alive. Notes that it was used, now and then.
    pub async fn signed_in(
        &self,
        token: TokenHash,
        place: &str,
        times: SessionTimes,
        now: UnixMillis,
    ) -> Result<Option<SignedIn>, PersonError> {
        let (oldest_start, oldest_use) = times.oldest_alive(now);
        let find = query(ALIVE).bind(token.0.as_slice()).bind(oldest_start.0).bind(oldest_use.0);
        let found: Option<SignedIn> = self.db.fetch_optional(find).await?;
        if let Some(SignedIn { session, .. }) = &found
            && (session.last_used_at.0 + touch_pause_ms(times) <= now.0 || session.place != place)
        {
            let touch = query(TOUCH)
                .bind(session.id.0)
                .bind(now.0)
                .bind(place)
                .bind(oldest_start.0)
                .bind(oldest_use.0);
            self.db.execute(touch, COMMAND_WAIT).await?;
        }
        Ok(found)
    }

    /// Those that are alive, the last used first.
    pub async fn sessions_of(
        &self,
        person: PersonId,
        times: SessionTimes,
        now: UnixMillis,
    ) -> Result<Vec<Session>, PersonError> {
        let (oldest_start, oldest_use) = times.oldest_alive(now);
        let find = query(OF_PERSON).bind(person.0).bind(oldest_start.0).bind(oldest_use.0);
        Ok(self.db.fetch_all(find).await?)
    }

    /// Whether there was such a session of that person.
    pub async fn end_session(
        &self,
        person: PersonId,
        session: SessionId,
        origin: &EventOrigin,
    ) -> Result<bool, PersonError> {
        Ok(end(&self.audited, END, person, Some(session), origin).await? > 0)
    }

    /// How many there were.
    pub async fn end_all_sessions(
        &self,
        person: PersonId,
        except: Option<SessionId>,
        origin: &EventOrigin,
    ) -> Result<u64, PersonError> {
        end(&self.audited, END_ALL, person, except, origin).await
    }

    pub async fn forget_ended_sessions(
        &self,
        times: SessionTimes,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, PersonError> {
        let (oldest_start, oldest_use) = times.oldest_alive(now);
        let delete = query(DELETE_EXPIRED).bind(oldest_start.0).bind(oldest_use.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_WAIT).await?)
    }
}
