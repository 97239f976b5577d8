//! The team page: people with their clients and active sessions.

use super::rows::PersonRow;
use crate::People;
use crate::PersonError;
use crate::TeamMember;
use crate::db::{FromRow, QueryError, Row, Tx, query};
use chancery_domain::{SessionTimeouts, UnixMillis};
use chancery_policy::{ManageTeam, Permit, ReadTeam};

/// Sessions of removed people do not count. The parameters are the two values of `is_archived` (false, true), and the
/// cutoffs for a session's start and last use.
const MEMBERS: &str = "SELECT p.id, p.issuer, p.subject, p.email, p.role, p.joined_at_ms, p.removed_at_ms, p.name, \
    p.time_zone, COALESCE((SELECT k.clients FROM client_counts k WHERE k.owner_id = p.id AND k.is_archived = $1), 0) AS clients, \
    COALESCE((SELECT k.clients FROM client_counts k WHERE k.owner_id = p.id AND k.is_archived = $2), 0) \
        AS archived_clients, \
    COUNT(s.id) AS sessions, MAX(s.last_used_at_ms) AS session_used_at_ms \
    FROM people p LEFT JOIN sessions s ON s.person_id = p.id AND p.removed_at_ms IS NULL \
        AND s.started_at_ms > $3 AND s.last_used_at_ms > $4 \
    GROUP BY p.id, p.issuer, p.subject, p.email, p.role, p.joined_at_ms, p.removed_at_ms, p.name, p.time_zone";

impl FromRow for TeamMember {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let PersonRow { person, removed_at } = PersonRow::from_row(row)?;
        Ok(Self {
            person,
            removed_at,
            clients: row.get("clients")?,
            archived_clients: row.get("archived_clients")?,
            sessions: row.get("sessions")?,
            last_used_at: row.get("session_used_at_ms")?,
        })
    }
}

/// Active people by email address, then removed people.
pub(crate) fn members(
    tx: &mut Tx<'_>,
    timeouts: SessionTimeouts,
    now: UnixMillis,
) -> Result<Vec<TeamMember>, QueryError> {
    let (oldest_start, oldest_use) = timeouts.active_cutoffs(now);
    let find = query(MEMBERS).bind(false).bind(true).bind(oldest_start.0).bind(oldest_use.0);
    let mut members: Vec<TeamMember> = find.fetch_all(tx)?;
    // Sorted here, because the databases sort addresses differently.
    members.sort_by_cached_key(|member| {
        (member.removed_at.is_some(), member.person.email.clone(), member.person.id)
    });
    Ok(members)
}

impl People {
    /// Active people by email address, then removed people.
    pub async fn read_team(
        &self,
        permit: Permit<ReadTeam>,
        timeouts: SessionTimeouts,
    ) -> Result<Vec<TeamMember>, PersonError> {
        let now = permit.access_request().at;
        self.audited.run(vec![permit.to_audit_row()], move |tx| Ok(members(tx, timeouts, now)?)).await
    }

    /// Audits the decision that the principal may manage the team, before the change itself.
    pub async fn record_team_management(&self, permit: Permit<ManageTeam>) -> Result<(), PersonError> {
        Ok(self.audited.record(vec![permit.to_audit_row()]).await?)
    }
}
