//! Views of records. They are counted on each read, so that the page need not search the audit log.

use crate::DbError;
use crate::audit::principal::push_principal_unchanged;
use crate::audit::step::AuditedSteps;
use crate::clients::locks::LockMode;
use crate::clients::rows::{count, person_ref};
use crate::clients::types::{MAX_RECORD_VIEWS, RecordView};
use crate::db::{Conn, FromRow, Query, Row, Statement, query};
use crate::ledger::batch::to_db_count;
use chancery_domain::{AccessRequest, ChainHead, ClientId, Decision, Principal, UnixMillis, WriterId};
use chancery_policy::{AuthzAction, Permit};
use std::collections::BTreeSet;

/// Rows per INSERT.
const MAX_ROWS_PER_STATEMENT: usize = 1000;

const COUNT_AGAIN: &str = " ON CONFLICT (client_id, person_id) DO UPDATE SET \
    last_viewed_at_ms = excluded.last_viewed_at_ms, view_count = record_views.view_count + 1";

/// A decision to read and its view, if the client's owner and the principal's role are still as the policy saw them and the
/// chain ends where the decision is appended. `changes()` is 0 in a statement after one that changed nothing.
const RECORD_WHOLE_VIEW: &str = "BEGIN IMMEDIATE; \
    INSERT INTO audit_rows (at_ms, principal_kind, person_id, action, client_id, request_id, decision, writer_id, position, \
        hash) SELECT ?, ?, ?, ?, c.id, ?, ?, ?, ?, ? FROM clients c WHERE c.id = ? AND c.owner_id = ? \
        AND EXISTS (SELECT 1 FROM people r WHERE r.id = ? AND r.role = ? AND r.removed_at_ms IS NULL) \
        AND EXISTS (SELECT 1 FROM audit_writers w WHERE w.id = ? AND w.row_count = ?); \
    INSERT INTO record_views (client_id, person_id, last_viewed_at_ms, view_count) SELECT ?, ?, ?, 1 WHERE changes() = 1 \
        ON CONFLICT (client_id, person_id) DO UPDATE SET \
        last_viewed_at_ms = excluded.last_viewed_at_ms, view_count = record_views.view_count + 1; \
    UPDATE audit_writers SET row_count = ?, head = ? WHERE id = ? AND changes() = 1; \
    COMMIT";

impl FromRow for RecordView {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            person: person_ref(row.get("person_id")?, &row.get::<String>("email")?)?,
            last_at: UnixMillis(row.get("last_viewed_at_ms")?),
            times: count(row.get("view_count")?)?,
        })
    }
}

/// Counts a view of these records by the principal. Views by the command line are not counted.
pub(crate) async fn record_views(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    clients: &[ClientId],
) -> Result<(), sqlx::Error> {
    let Some(person) = access_request.by.person() else { return Ok(()) };
    let clients: Vec<ClientId> = clients.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    for clients in clients.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut add =
            Statement::new("INSERT INTO record_views (client_id, person_id, last_viewed_at_ms, view_count) ");
        add.push_values(clients, |client| {
            [client.0.into(), person.0.into(), access_request.at.0.into(), 1_i64.into()]
        });
        add.push(COUNT_AGAIN);
        add.build().persistent(clients.len() == 1).execute(conn).await?;
    }
    Ok(())
}

/// Records the decision and counts the view, like `record_permitted_view` after the decision, in one command to SQLite.
/// Returns whether it did; see `AuditedSteps::run_whole`.
pub(crate) async fn record_whole_view<A: AuthzAction>(
    audited: &AuditedSteps,
    permit: &Permit<A>,
) -> Result<bool, DbError> {
    let AccessRequest { by, action, at, request_id, .. } = permit.access_request();
    let (Some(client), Some(owner), Principal::Person { id: person, role }) =
        (permit.client(), permit.owner(), *by)
    else {
        return Ok(false);
    };
    let record = |writer: WriterId, before: ChainHead, after: ChainHead| {
        query(RECORD_WHOLE_VIEW)
            .bind(at.0)
            .bind(by.kind_str())
            .bind(person.0)
            .bind(action.as_str())
            .bind(request_id.as_str())
            .bind(Decision::Allowed.as_str())
            .bind(writer.0)
            .bind(to_db_count(before.rows))
            .bind(after.hash.0.to_vec())
            .bind(client.0)
            .bind(owner.0)
            .bind(person.0)
            .bind(role.as_str())
            .bind(writer.0)
            .bind(to_db_count(before.rows))
            .bind(client.0)
            .bind(person.0)
            .bind(at.0)
            .bind(to_db_count(after.rows))
            .bind(after.hash.0.to_vec())
            .bind(writer.0)
    };
    audited.run_whole(&permit.to_audit_row(), record).await
}

/// Counts a view of the permit's client by its principal, if both are still as the policy saw them: the client's owner and
/// the principal's role. One statement, because every read of a record waits for it. Returns whether it was counted. On
/// PostgreSQL the statement may have waited for the client, so that the principal must be checked after it.
pub(crate) async fn record_permitted_view<A: AuthzAction>(
    conn: &mut Conn<'_>,
    permit: &Permit<A>,
) -> Result<bool, sqlx::Error> {
    let (Some(client), Some(owner), Some(person)) = (permit.client(), permit.owner(), permit.by().person())
    else {
        return Ok(false);
    };
    let mut add = Statement::new(
        "INSERT INTO record_views (client_id, person_id, last_viewed_at_ms, view_count) SELECT c.id, ",
    );
    add.push_bind(person.0).push(", ").push_bind(permit.access_request().at.0);
    add.push(", 1 FROM clients c WHERE c.id = ").push_bind(client.0);
    add.push(" AND c.owner_id = ").push_bind(owner.0);
    push_principal_unchanged(&mut add, permit.by());
    add.push(LockMode::Reading.suffix(conn.dialect()));
    add.push(COUNT_AGAIN);
    Ok(add.build().execute(conn).await? > 0)
}

/// Selects the latest views of a record, newest first.
pub(crate) fn select_views(client: ClientId) -> Query<'static> {
    let mut read = Statement::new(
        "SELECT l.person_id, p.email, l.last_viewed_at_ms, l.view_count FROM record_views l \
         JOIN people p ON p.id = l.person_id WHERE l.client_id = ",
    );
    read.push_bind(client.0).push(" ORDER BY l.last_viewed_at_ms DESC, l.person_id LIMIT ");
    read.push_bind(i64::from(MAX_RECORD_VIEWS));
    read.build()
}
