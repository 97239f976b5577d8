//! Queries on the audit log: pages for people, newest decision first, and chains for `verify`.

use crate::DbError;
use crate::audit::principal::ensure_principal_unchanged;
use crate::audit::step::AuditedSteps;
use crate::audit::types::{
    AUDIT_ROWS_PER_PAGE, AuditCursor, AuditListRow, AuditQuery, AuditRowId, ChainedAuditRow,
};
use crate::db::{self, Db, QueryError, Statement, Tx, from_any_column, from_row};
use crate::ledger::batch::to_db_count;
use chancery_domain::{
    AuditEvent, AuditRow, AuditedEvent, ChainHead, EventKind, EventOrigin, Person, WriterId,
};
use chancery_policy::{Denial, Permit, ReadAudit};

const NEWEST_FIRST: &str = " ORDER BY a.at_ms DESC, a.id DESC LIMIT ";
const OLDEST_FIRST: &str = " ORDER BY a.at_ms, a.id LIMIT ";
const HEAD: &str = "SELECT row_count, head FROM audit_writers WHERE id = $1";
const AT: &str = "SELECT at_ms FROM audit_rows WHERE id = $1";

/// From the writers with rows and those with a chain head, which should be the same.
const NEXT_WRITER: &str = "SELECT MIN(id) FROM (SELECT MIN(writer_id) AS id FROM audit_rows WHERE writer_id > $1 \
    UNION ALL SELECT MIN(id) FROM audit_writers WHERE id > $1) AS next";

const CHAIN_PAGE: &str =
    "SELECT * FROM audit_rows WHERE writer_id = $1 AND position >= $2 ORDER BY position LIMIT $3";

from_any_column!(i64, Self, AuditRowId);

from_row!(AuditListRow {
    position: "id",
    row: AuditRow::from_row,
    person: joined_person("person_id", "person_email"),
    subject: joined_person("subject_id", "subject_email"),
    client_name
});

fn page(tx: &mut Tx<'_>, query: &AuditQuery) -> Result<Vec<AuditListRow>, QueryError> {
    let AuditQuery { person, client, action, event, decision, from, until, cursor } = query;
    let mut read = Statement::new(
        "SELECT a.id, a.at_ms, a.principal_kind, a.person_id, a.action, a.client_id, a.request_id, a.decision, a.event, \
         a.subject_id, a.old_role, a.new_role, a.invited_address, a.ip_address, p.email AS person_email, \
         s.email AS subject_email, c.name AS client_name \
         FROM audit_rows a LEFT JOIN people p ON p.id = a.person_id LEFT JOIN people s ON s.id = a.subject_id \
         LEFT JOIN clients c ON c.id = a.client_id WHERE a.at_ms >= ",
    );
    read.push_bind(from.map_or(i64::MIN, |from| from.0));
    if let Some(until) = until {
        read.push(" AND a.at_ms < ").push_bind(until.0);
    }
    if let Some(person) = person {
        read.push(" AND a.person_id = ").push_bind(person.0);
    }
    if let Some(client) = client {
        read.push(" AND a.client_id = ").push_bind(client.0);
    }
    if let Some(action) = action {
        read.push(" AND a.action = ").push_bind(action.as_str());
    }
    if let Some(event) = event {
        read.push(" AND a.event = ").push_bind(event.as_str());
    }
    if let Some(decision) = decision {
        read.push(" AND a.decision = ").push_bind(decision.as_str());
    }
    let (AuditRowId(id), compared, order) = match cursor {
        None => (AuditRowId(0), None, NEWEST_FIRST),
        Some(AuditCursor::Before(row)) => (*row, Some(" AND (a.at_ms, a.id) < ("), NEWEST_FIRST),
        Some(AuditCursor::After(row)) => (*row, Some(" AND (a.at_ms, a.id) > ("), OLDEST_FIRST),
    };
    if let Some(compared) = compared {
        let at: Option<i64> = db::query(AT).bind(id).fetch_optional(tx)?;
        let Some(at) = at else { return Ok(Vec::new()) };
        read.push(compared).push_bind(at).push(", ").push_bind(id).push(")");
    }
    read.push(order).push_bind(i64::from(AUDIT_ROWS_PER_PAGE));
    let mut lines: Vec<AuditListRow> = read.build().fetch_all(tx)?;
    if let Some(AuditCursor::After(_)) = cursor {
        // The query reads upwards from the row; pages are newest first.
        lines.reverse();
    }
    Ok(lines)
}

/// The audit log, for people.
#[derive(Clone)]
pub struct AuditLog {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl AuditLog {
    /// Records the denial.
    pub async fn record_denial(&self, denial: Denial) -> Result<(), DbError> {
        self.audited.record(vec![denial.to_audit_row()]).await
    }

    /// Audits that the person exported too often, so that an export that the policy allows was rejected.
    pub async fn record_export_quota_exceeded(
        &self,
        person: &Person,
        origin: &EventOrigin,
    ) -> Result<(), DbError> {
        let by = Some((person.id, person.role));
        let event = AuditEvent::new(EventKind::ExportQuotaExceeded, person.id);
        let row = AuditRow::Event(AuditedEvent { by, event, origin: origin.clone() });
        self.audited.record(vec![row]).await
    }

    /// A page, newest first, including this decision.
    pub async fn read_audit(
        &self,
        permit: &Permit<ReadAudit>,
        query: &AuditQuery,
    ) -> Result<Vec<AuditListRow>, DbError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        // A selective filter may scan very many rows. That must not block audited writes.
        self.read_audit_page(permit, query).await
    }

    /// The next page after `read_audit`, for exporting the whole log.
    pub async fn read_audit_page(
        &self,
        permit: &Permit<ReadAudit>,
        query: &AuditQuery,
    ) -> Result<Vec<AuditListRow>, DbError> {
        let (by, query) = (permit.by(), query.clone());
        self.db
            .read_report(move |tx| {
                let lines = page(tx, &query)?;
                ensure_principal_unchanged::<DbError>(tx, by)?;
                Ok(lines)
            })
            .await
    }
}

/// The audit log as hash chains, for `verify`.
#[derive(Clone)]
pub struct AuditChains {
    pub(crate) db: Db,
}

impl AuditChains {
    /// The writer with the next higher id that has rows or a chain head.
    pub async fn next_audit_writer(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, DbError> {
        let after = writer.map_or(i64::MIN, |writer| writer.0);
        let next: Vec<Option<i64>> = self.db.fetch_report(db::query(NEXT_WRITER).bind(after)).await?;
        Ok(next.into_iter().flatten().next().map(WriterId))
    }

    /// The stored head of the writer's chain.
    pub async fn audit_chain_head(&self, writer: WriterId) -> Result<Option<ChainHead>, DbError> {
        Ok(self.db.fetch_optional(db::query(HEAD).bind(writer.0)).await?)
    }

    /// One writer's rows in chain order: up to `limit` from position `from` on.
    pub async fn audit_rows(
        &self,
        writer: WriterId,
        from: u64,
        limit: u32,
    ) -> Result<Vec<ChainedAuditRow>, DbError> {
        let rows = db::query(CHAIN_PAGE).bind(writer.0).bind(to_db_count(from)).bind(i64::from(limit));
        Ok(self.db.fetch_report(rows).await?)
    }
}
