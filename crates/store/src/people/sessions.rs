//! Queries for sessions. Every request reads again whether its session is active and what its owner may do. Signing in
//! and out is audited with the IP address; the expiry of a session is not.

use super::rows::{PersonRow, lock_identity, lock_person};
use crate::audit::step::AuditedSteps;
use crate::db::{COMMAND_RETRY_LIMIT, Db, QueryError, Tx, from_row, query};
use crate::secrets::column::SESSION_ID_TOKEN;
use crate::secrets::keyring::Keyring;
use crate::{NewSession, PersonError, RenewedSession, SignedIn};
use chancery_domain::{
    AuditEvent, AuditRow, AuditedEvent, EventKind, EventOrigin, Identity, Person, PersonId, Session,
    SessionId, SessionTimeouts, TokenHash, UnixMillis,
};
use std::time::Duration;

/// Most sessions of a person. Beyond that, the least recently used ones end.
pub const MAX_SESSIONS_PER_PERSON: u32 = 50;

/// A session's last use is written at most this often, so that most page reads need no write. It is written more often
/// only if the session would otherwise expire noticeably early.
const TOUCH_INTERVAL: Duration = Duration::from_secs(30);
/// A session may expire early by at most 1/`IDLE_FRACTION` of the idle time.
const IDLE_FRACTION: u32 = 20;

fn touch_interval_ms(timeouts: SessionTimeouts) -> i64 {
    i64::try_from(TOUCH_INTERVAL.min(timeouts.idle / IDLE_FRACTION).as_millis()).unwrap_or(i64::MAX)
}

// The column is `session_id`, because a person has an `id` too.
from_row!(Session {
    id: "session_id",
    person: "person_id",
    started_at: "started_at_ms",
    last_used_at: "last_used_at_ms",
    ip_address,
    user_agent: "browser",
    authenticated_at: "authenticated_at_ms",
    confirmed_at: "confirmed_at_ms",
    sid
});

from_row!(SignedIn { session: Session::from_row, person: Person::from_row });

const START: &str = "INSERT INTO sessions (token_hash, person_id, started_at_ms, last_used_at_ms, ip_address, browser, \
    authenticated_at_ms, confirmed_at_ms, sid, id_token, binding_hash) \
    SELECT $1, id, $3, $3, $4, $5, $6, $3, $7, $8, $9 FROM people WHERE id = $2 AND removed_at_ms IS NULL";
const ACTIVE: &str = "SELECT s.id AS session_id, s.person_id, s.started_at_ms, s.last_used_at_ms, s.ip_address, s.browser, \
    s.authenticated_at_ms, s.confirmed_at_ms, s.sid, p.id, p.issuer, p.subject, p.email, p.role, p.joined_at_ms, \
    p.name, p.time_zone \
    FROM sessions s JOIN people p ON p.id = s.person_id WHERE s.token_hash = $1 \
    AND s.started_at_ms > $2 AND s.last_used_at_ms > $3 AND p.removed_at_ms IS NULL";
/// Like `ACTIVE`, for a session whose second cookie must match.
const ACTIVE_BOUND: &str = "SELECT s.id AS session_id, s.person_id, s.started_at_ms, s.last_used_at_ms, s.ip_address, s.browser, \
    s.authenticated_at_ms, s.confirmed_at_ms, s.sid, p.id, p.issuer, p.subject, p.email, p.role, p.joined_at_ms, \
    p.name, p.time_zone \
    FROM sessions s JOIN people p ON p.id = s.person_id WHERE s.token_hash = $1 \
    AND s.started_at_ms > $2 AND s.last_used_at_ms > $3 AND p.removed_at_ms IS NULL AND s.binding_hash = $4";
const ID_TOKEN: &str = "SELECT id_token FROM sessions WHERE token_hash = $1 AND id_token IS NOT NULL";
const RENEW: &str = "UPDATE sessions SET token_hash = $3, binding_hash = COALESCE($4, binding_hash), authenticated_at_ms = $5, \
    confirmed_at_ms = $6, sid = $7, id_token = $8 WHERE person_id = $1 AND token_hash = $2";
/// Extends only a session that is still active, however late this runs.
const TOUCH: &str = "UPDATE sessions SET last_used_at_ms = $2, ip_address = $3 \
    WHERE id = $1 AND last_used_at_ms < $2 AND started_at_ms > $4 AND last_used_at_ms > $5";
const OF_PERSON: &str = "SELECT id AS session_id, person_id, started_at_ms, last_used_at_ms, ip_address, browser, \
    authenticated_at_ms, confirmed_at_ms, sid FROM sessions WHERE person_id = $1 AND started_at_ms > $2 AND last_used_at_ms > $3 \
    ORDER BY last_used_at_ms DESC, id DESC";
const END: &str = "DELETE FROM sessions WHERE person_id = $1 AND id = $2";
const END_ALL: &str = "DELETE FROM sessions WHERE person_id = $1 AND id <> $2";
const END_OF_IDENTITY: &str =
    "DELETE FROM sessions WHERE person_id IN (SELECT id FROM people WHERE issuer = $1 AND subject = $2)";
const END_PENDING_OF_IDENTITY: &str = "DELETE FROM pending_email_codes WHERE issuer = $1 AND subject = $2";
const END_OF_TOKEN: &str = "DELETE FROM sessions WHERE token_hash = $1";
const END_EXCESS_SESSIONS: &str = "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE person_id = $1 \
    ORDER BY last_used_at_ms DESC, id DESC LIMIT $3 OFFSET $2)";
/// Also deletes the sessions of removed people, which no longer work.
const DELETE_EXPIRED: &str = "DELETE FROM sessions WHERE id IN (SELECT s.id FROM sessions s JOIN people p ON p.id = s.person_id \
    WHERE s.started_at_ms <= $1 OR s.last_used_at_ms <= $2 OR p.removed_at_ms IS NOT NULL LIMIT $3)";

/// Ends the sessions of an identity, and its sign-ins that wait for a code. Returns the number of sessions.
pub(crate) fn end_sessions_of(tx: &mut Tx<'_>, identity: &Identity) -> Result<u64, QueryError> {
    let Identity { issuer, subject } = identity;
    query(END_PENDING_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str()).execute(tx)?;
    query(END_OF_IDENTITY).bind(issuer.as_str()).bind(subject.as_str()).execute(tx)
}

/// The audit row of an action on a person's own sessions; none if there is no such person.
fn event_of(known: Option<PersonRow>, kind: EventKind, origin: &EventOrigin) -> Vec<AuditRow> {
    let row = |known: PersonRow| {
        let (by, event) = (Some(known.principal()), AuditEvent::new(kind, known.person.id));
        AuditRow::Event(AuditedEvent { by, event, origin: origin.clone() })
    };
    known.map(row).into_iter().collect()
}

/// Ends the person's sessions that the statement selects. Returns how many.
async fn end(
    audited: &AuditedSteps,
    sql: &'static str,
    person: PersonId,
    session: Option<SessionId>,
    origin: &EventOrigin,
) -> Result<u64, PersonError> {
    // Ids start at 1, so 0 matches no session.
    let session = session.map_or(0, |session| session.0);
    let origin = origin.clone();
    audited
        .run_then_record(move |tx| {
            let ended = query(sql).bind(person.0).bind(session).execute(tx)?;
            let rows = match ended {
                0 => Vec::new(),
                _ => event_of(lock_person(tx, person)?, EventKind::SignedOut, &origin),
            };
            Ok((ended, rows))
        })
        .await
}

/// Ends the sessions of an identity, for `SessionRevoker`.
pub(crate) async fn end_identity_sessions(
    audited: &AuditedSteps,
    identity: &Identity,
    origin: &EventOrigin,
) -> Result<u64, PersonError> {
    let (identity, origin) = (identity.clone(), origin.clone());
    audited
        .run_then_record(move |tx| {
            let ended = end_sessions_of(tx, &identity)?;
            let rows = match ended {
                0 => Vec::new(),
                _ => event_of(lock_identity(tx, &identity)?, EventKind::SignedOut, &origin),
            };
            Ok((ended, rows))
        })
        .await
}

/// Portal sessions.
#[derive(Clone)]
pub struct Sessions {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
    pub(crate) keyring: Keyring,
}

impl Sessions {
    /// Fails with `NoSuchPerson` for a removed person. Beyond `MAX_SESSIONS_PER_PERSON`, the person's least recently
    /// used sessions end.
    pub async fn start_session(&self, new: NewSession) -> Result<(), PersonError> {
        let (keyring, person) = (self.keyring.clone(), new.person);
        let step = move |tx: &mut Tx<'_>| {
            let (row, id_token) = (new.token.0.as_slice(), new.authentication.id_token.as_deref());
            let id_token = keyring.seal_optional(tx, SESSION_ID_TOKEN, row, id_token)?;
            let start = query(START)
                .bind(row)
                .bind(person.0)
                .bind(new.origin.at.0)
                .bind(new.ip_address.as_str())
                .bind(new.user_agent.as_str())
                .bind(new.authentication.authenticated_at.0)
                .bind(new.authentication.sid.as_deref())
                .bind(id_token.as_deref())
                .bind(new.binding.as_ref().map(|binding| binding.0.as_slice()));
            let started = start.execute(tx)?;
            // The browser's previous session ends even if no new one starts.
            if let Some(old) = &new.replaces {
                query(END_OF_TOKEN).bind(old.0.as_slice()).execute(tx)?;
            }
            let end_excess = query(END_EXCESS_SESSIONS)
                .bind(person.0)
                .bind(i64::from(MAX_SESSIONS_PER_PERSON))
                .bind(i64::from(u32::MAX));
            end_excess.execute(tx)?;
            let rows = match started {
                0 => Vec::new(),
                _ => event_of(lock_person(tx, person)?, EventKind::SignedIn, &new.origin),
            };
            Ok::<_, PersonError>((started, rows))
        };
        match self.audited.run_then_record(step).await? {
            0 => Err(PersonError::NoSuchPerson(person)),
            _ => Ok(()),
        }
    }

    /// The session and its owner, if it is active. Updates its last use now and then.
    pub async fn active_session(
        &self,
        token: TokenHash,
        ip_address: &str,
        timeouts: SessionTimeouts,
        now: UnixMillis,
    ) -> Result<Option<SignedIn>, PersonError> {
        let (oldest_start, oldest_use) = timeouts.active_cutoffs(now);
        let find = query(ACTIVE).bind(token.0.as_slice()).bind(oldest_start.0).bind(oldest_use.0);
        let found = self.db.fetch_optional(find).await?;
        self.touch(found, ip_address, timeouts, now).await
    }

    /// Like `active_session`, for a session that was started with a second cookie. Only the two together are valid.
    pub async fn active_bound_session(
        &self,
        token: TokenHash,
        binding: TokenHash,
        ip_address: &str,
        timeouts: SessionTimeouts,
        now: UnixMillis,
    ) -> Result<Option<SignedIn>, PersonError> {
        let (oldest_start, oldest_use) = timeouts.active_cutoffs(now);
        let find = query(ACTIVE_BOUND)
            .bind(token.0.as_slice())
            .bind(oldest_start.0)
            .bind(oldest_use.0)
            .bind(binding.0.as_slice());
        let found = self.db.fetch_optional(find).await?;
        self.touch(found, ip_address, timeouts, now).await
    }

    /// Updates the last use now and then.
    async fn touch(
        &self,
        found: Option<SignedIn>,
        ip_address: &str,
        timeouts: SessionTimeouts,
        now: UnixMillis,
    ) -> Result<Option<SignedIn>, PersonError> {
        let (oldest_start, oldest_use) = timeouts.active_cutoffs(now);
        if let Some(SignedIn { session, .. }) = &found
            && (session.last_used_at.0 + touch_interval_ms(timeouts) <= now.0
                || session.ip_address != ip_address)
        {
            let touch = query(TOUCH)
                .bind(session.id.0)
                .bind(now.0)
                .bind(ip_address)
                .bind(oldest_start.0)
                .bind(oldest_use.0);
            self.db.execute(touch, COMMAND_RETRY_LIMIT).await?;
        }
        Ok(found)
    }

    /// The ID token of a session, if it has one, as `start_session` got it.
    pub async fn stored_id_token(&self, token: TokenHash) -> Result<Option<Vec<u8>>, PersonError> {
        let row = token.0.as_slice();
        let stored: Option<Vec<u8>> = self.db.fetch_optional(query(ID_TOKEN).bind(row)).await?;
        Ok(stored.map(|stored| self.keyring.open(SESSION_ID_TOKEN, row, &stored)).transpose()?)
    }

    /// Replaces the token and the authentication of a session, which goes on. False if it has ended. A step-up is audited.
    pub async fn renew_session(&self, renewed: RenewedSession) -> Result<bool, PersonError> {
        let keyring = self.keyring.clone();
        self.audited
            .run_then_record(move |tx| {
                let authentication = &renewed.authentication;
                let (row, id_token) = (renewed.token.0.as_slice(), authentication.id_token.as_deref());
                let id_token = keyring.seal_optional(tx, SESSION_ID_TOKEN, row, id_token)?;
                let renew = query(RENEW)
                    .bind(renewed.person.0)
                    .bind(renewed.old_token.0.as_slice())
                    .bind(row)
                    .bind(renewed.binding.as_ref().map(|binding| binding.0.as_slice()))
                    .bind(authentication.authenticated_at.0)
                    .bind(renewed.confirmed_at.0)
                    .bind(authentication.sid.as_deref())
                    .bind(id_token.as_deref());
                let is_renewed = renew.execute(tx)? > 0;
                let rows = match renewed.step_up.as_ref().filter(|_| is_renewed) {
                    Some(origin) => {
                        let known = lock_person(tx, renewed.person)?;
                        event_of(known, EventKind::Reauthenticated, origin)
                    }
                    None => Vec::new(),
                };
                Ok((is_renewed, rows))
            })
            .await
    }

    /// Audits that the person has to authenticate again before they can do something that the policy allows.
    pub async fn record_reauthentication_required(
        &self,
        person: &Person,
        origin: &EventOrigin,
    ) -> Result<(), PersonError> {
        let by = Some((person.id, person.role));
        let event = AuditEvent::new(EventKind::ReauthenticationRequired, person.id);
        let row = AuditRow::Event(AuditedEvent { by, event, origin: origin.clone() });
        Ok(self.audited.record(vec![row]).await?)
    }

    /// Active sessions, most recently used first.
    pub async fn list_sessions(
        &self,
        person: PersonId,
        timeouts: SessionTimeouts,
        now: UnixMillis,
    ) -> Result<Vec<Session>, PersonError> {
        let (oldest_start, oldest_use) = timeouts.active_cutoffs(now);
        let find = query(OF_PERSON).bind(person.0).bind(oldest_start.0).bind(oldest_use.0);
        Ok(self.db.fetch_all(find).await?)
    }

    /// Returns whether the person had such a session.
    pub async fn end_session(
        &self,
        person: PersonId,
        session: SessionId,
        origin: &EventOrigin,
    ) -> Result<bool, PersonError> {
        Ok(end(&self.audited, END, person, Some(session), origin).await? > 0)
    }

    /// Returns the number of sessions.
    pub async fn end_all_sessions(
        &self,
        person: PersonId,
        except: Option<SessionId>,
        origin: &EventOrigin,
    ) -> Result<u64, PersonError> {
        end(&self.audited, END_ALL, person, except, origin).await
    }

    pub async fn delete_expired_sessions(
        &self,
        timeouts: SessionTimeouts,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, PersonError> {
        let (oldest_start, oldest_use) = timeouts.active_cutoffs(now);
        let delete = query(DELETE_EXPIRED).bind(oldest_start.0).bind(oldest_use.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }
}
