//! Sign-out by the identity provider: a logout token ends the sessions that it names, once. The token's ID is stored in
//! the transaction that ends the sessions, so that a token whose sessions could not be ended can be sent again.

use super::rows::lock_person;
use super::sessions::Sessions;
use crate::db::{COMMAND_RETRY_LIMIT, QueryError, Tx, query};
use crate::{LogoutTarget, PersonError, ProviderLogout, ProviderLogoutOutcome};
use chancery_domain::{AuditEvent, AuditRow, AuditedEvent, EventKind, EventOrigin, PersonId, UnixMillis};
use std::collections::BTreeSet;

const RECORD_TOKEN: &str =
    "INSERT INTO logout_token_ids (id_hash, expires_at_ms) VALUES ($1, $2) ON CONFLICT (id_hash) DO NOTHING";
const END_OF_SUBJECT: &str = "DELETE FROM sessions WHERE person_id IN \
    (SELECT id FROM people WHERE issuer = $1 AND subject = $2) RETURNING person_id";
const END_OF_SID: &str = "DELETE FROM sessions WHERE sid = $3 AND person_id IN \
    (SELECT id FROM people WHERE issuer = $1 AND ($2 IS NULL OR subject = $2)) RETURNING person_id";
const END_PENDING_OF_SUBJECT: &str = "DELETE FROM pending_email_codes WHERE issuer = $1 AND subject = $2";
const END_PENDING_OF_SID: &str =
    "DELETE FROM pending_email_codes WHERE issuer = $1 AND ($2 IS NULL OR subject = $2) AND sid = $3";
const DELETE_EXPIRED: &str = "DELETE FROM logout_token_ids WHERE id_hash IN \
    (SELECT id_hash FROM logout_token_ids WHERE expires_at_ms <= $1 LIMIT $2)";

/// Ends the sessions, and the sign-ins that wait for a code. Returns the person of each session that ended.
fn end_target(tx: &mut Tx<'_>, issuer: &str, target: &LogoutTarget) -> Result<Vec<i64>, QueryError> {
    match target {
        LogoutTarget::Subject(subject) => {
            query(END_PENDING_OF_SUBJECT).bind(issuer).bind(subject.as_str()).execute(tx)?;
            query(END_OF_SUBJECT).bind(issuer).bind(subject.as_str()).fetch_all(tx)
        }
        LogoutTarget::ProviderSession { sid, subject } => {
            let named = |sql| query(sql).bind(issuer).bind(subject.as_deref()).bind(sid.as_str());
            named(END_PENDING_OF_SID).execute(tx)?;
            named(END_OF_SID).fetch_all(tx)
        }
    }
}

/// One row for each person.
fn audit_rows(tx: &mut Tx<'_>, people: &[i64], origin: &EventOrigin) -> Result<Vec<AuditRow>, QueryError> {
    let mut rows = Vec::new();
    for person in people.iter().copied().collect::<BTreeSet<i64>>() {
        let Some(known) = lock_person(tx, PersonId(person))? else { continue };
        let event = AuditEvent::new(EventKind::SignedOutByProvider, known.person.id);
        rows.push(AuditRow::Event(AuditedEvent {
            by: Some(known.principal()),
            event,
            origin: origin.clone(),
        }));
    }
    Ok(rows)
}

impl Sessions {
    /// Ends the sessions that a logout token names, and the sign-ins of the same target that wait for a code. A token works
    /// once.
    pub async fn end_sessions_by_provider(
        &self,
        logout: &ProviderLogout,
        origin: &EventOrigin,
    ) -> Result<ProviderLogoutOutcome, PersonError> {
        let (logout, origin) = (logout.clone(), origin.clone());
        self.audited
            .run_then_record(move |tx| {
                let record =
                    query(RECORD_TOKEN).bind(logout.token_id.0.as_slice()).bind(logout.token_expires_at.0);
                if record.execute(tx)? == 0 {
                    return Ok((ProviderLogoutOutcome::Replayed, Vec::new()));
                }
                let ended = end_target(tx, &logout.issuer, &logout.target)?;
                let rows = audit_rows(tx, &ended, &origin)?;
                Ok((ProviderLogoutOutcome::Ended(ended.len() as u64), rows))
            })
            .await
    }

    /// Deletes the IDs of tokens that are no longer accepted.
    pub async fn delete_expired_logout_tokens(
        &self,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, PersonError> {
        let delete = query(DELETE_EXPIRED).bind(now.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }
}
