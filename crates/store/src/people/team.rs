//! Everybody of the firm as the team's page shows them: their clients and the sessions that are alive.

use crate::audit::step::Stopped;
use crate::clients::rows::count;
use crate::db::both::{for_both_connections, stored_row};
use crate::people::people::StoredPerson;
use crate::{StoreError, TeamMember};
use chancery_domain::{SessionTimes, UnixMillis};

stored_row! {
    struct StoredMember {
        clients: i64,
        archived_clients: i64,
        sessions: i64,
        session_used_at_ms: Option<i64>,
        ..person: StoredPerson,
    }
}

/// Sessions of those who were removed open nothing. The parameters: not archived, archived, and from when on a session must
/// have started and been used.
const MEMBERS: &str = "SELECT p.id, p.issuer, p.subject, p.email, p.role, p.joined_at_ms, p.removed_at_ms, \
    COALESCE((SELECT k.clients FROM client_counts k WHERE k.owner_id = p.id AND k.is_archived = $1), 0) AS clients, \
    COALESCE((SELECT k.clients FROM client_counts k WHERE k.owner_id = p.id AND k.is_archived = $2), 0) \
        AS archived_clients, \
    COUNT(s.id) AS sessions, MAX(s.last_used_at_ms) AS session_used_at_ms \
    FROM people p LEFT JOIN sessions s ON s.person_id = p.id AND p.removed_at_ms IS NULL \
        AND s.started_at_ms > $3 AND s.last_used_at_ms > $4 \
    GROUP BY p.id, p.issuer, p.subject, p.email, p.role, p.joined_at_ms, p.removed_at_ms";

impl StoredMember {
    fn into_member(self) -> Result<TeamMember, StoreError> {
        Ok(TeamMember {
            removed_at: self.person.removed_at_ms.map(UnixMillis),
            person: self.person.into_person()?,
            clients: count(self.clients)?,
            archived_clients: count(self.archived_clients)?,
            sessions: count(self.sessions)?,
            last_used_at: self.session_used_at_ms.map(UnixMillis),
        })
    }
}

#[async_trait::async_trait]
pub(crate) trait Team {
    /// Everybody who was not removed, by address, then those who were.
    async fn members(&mut self, times: SessionTimes, now: UnixMillis) -> Result<Vec<TeamMember>, Stopped>;
}

for_both_connections! {
    impl Team {
        async fn members(&mut self, times: SessionTimes, now: UnixMillis) -> Result<Vec<TeamMember>, Stopped> {
            let (oldest_start, oldest_use) = times.oldest_alive(now);
            let rows: Vec<StoredMember> = sqlx::query_as(MEMBERS)
                .bind(false)
                .bind(true)
                .bind(oldest_start.0)
                .bind(oldest_use.0)
                .fetch_all(&mut *self)
                .await?;
            let members: Result<Vec<TeamMember>, StoreError> =
                rows.into_iter().map(StoredMember::into_member).collect();
            let mut members = members?;
            // Sorted here, because the databases would not sort addresses alike.
            members.sort_by(|one, other| {
                let key = |member: &TeamMember| (member.removed_at.is_some(), member.person.email.clone(), member.person.id);
                key(one).cmp(&key(other))
            });
            Ok(members)
        }
    }
}
