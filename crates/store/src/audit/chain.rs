//! Appends decisions to the hash chain of the process that made them, and reads them. The chain head is moved in the
//! transaction that adds the rows. Only this process moves it, so it is read only if it is not known.

use crate::DbError;
use crate::audit::types::ChainedAuditRow;
use crate::clients::rows::count;
use crate::db::{Conn, Dialect, FromRow, Row, Statement, TxError, corrupt, query};
use crate::ledger::batch::to_db_count;
use chancery_domain::{
    AccessRequest, AuditEvent, AuditRow, AuditedDecision, AuditedEvent, ChainHash, ChainHead, ClientId,
    EmailAddress, EventOrigin, PersonId, Principal, RequestId, Role, UnixMillis, WriterId,
};

/// Rows per INSERT, far below both databases' parameter limits.
const MAX_ROWS_PER_STATEMENT: usize = 500;

pub(crate) const HEAD: &str = "SELECT row_count, head FROM audit_writers WHERE id = $1";

/// Ends with the number of rows that the chain must have. Otherwise nothing is changed.
const MOVE_HEAD: &str = " ON CONFLICT (id) DO UPDATE SET row_count = excluded.row_count, head = excluded.head \
    WHERE audit_writers.row_count = ";

impl FromRow for AuditRow {
    const ROW_LABEL_COLUMN: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let request_id: String = row.get("request_id")?;
        let corrupt = |what, why: &str| corrupt(what, format!("a row of request {request_id} has {why}"));
        let principal: String = row.get("principal_kind")?;
        let person = match (row.get::<Option<i64>>("person_id")?, principal.parse::<Role>()) {
            (Some(id), Ok(role)) => Some((PersonId(id), role)),
            (None, Err(_)) => None,
            _ => return Err(corrupt("an audit row's principal", &format!("{principal:?}"))),
        };
        let role = |column| match row.get::<Option<String>>(column)? {
            Some(role) => role.parse::<Role>().map(Some).map_err(|_| corrupt("a role", &role)),
            None => Ok(None),
        };
        let event = match row.get::<Option<String>>("event")? {
            Some(kind) => Some(AuditEvent {
                kind: kind.parse().map_err(|_| corrupt("an audit row's event", &kind))?,
                subject: row.get::<Option<i64>>("subject_id")?.map(PersonId),
                old_role: role("old_role")?,
                new_role: role("new_role")?,
            }),
            None => None,
        };
        let at = UnixMillis(row.get("at_ms")?);
        let Some(action) = row.get::<Option<String>>("action")? else {
            let by = match person {
                None if principal != Self::VISITOR => {
                    return Err(corrupt("an audit row's principal", &principal));
                }
                person => person,
            };
            let event =
                event.ok_or_else(|| corrupt("an audit row's event", "neither an action nor an event"))?;
            let ip = match row.get::<Option<String>>("ip_address")? {
                Some(ip) => Some(ip.parse().map_err(|_| corrupt("an IP address", &ip))?),
                None => None,
            };
            let origin = EventOrigin { ip, at, request_id: RequestId::from_stored(request_id) };
            return Ok(Self::Event(AuditedEvent { by, event, origin }));
        };
        let by = match person {
            Some((id, role)) => Principal::Person { id, role },
            None if principal == Principal::Operator.kind_str() => Principal::Operator,
            None => return Err(corrupt("an audit row's principal", &format!("{principal:?}"))),
        };
        let decision: String = row.get("decision")?;
        let access_request = AccessRequest {
            by,
            action: action.parse().map_err(|_| corrupt("an audit row's action", &action))?,
            client: row.get::<Option<i64>>("client_id")?.map(ClientId),
            at,
            request_id: RequestId::from_stored(request_id.clone()),
        };
        let decision = decision.parse().map_err(|_| corrupt("a decision", &decision))?;
        let invited = match row.get::<Option<String>>("invited_address")? {
            Some(address) => Some(address.parse().map_err(|_| corrupt("an invited address", &address))?),
            None => None,
        };
        Ok(Self::Decision(AuditedDecision { access_request, decision, effect: event, invited }))
    }
}

impl FromRow for ChainedAuditRow {
    const ROW_LABEL_COLUMN: Option<&'static str> = AuditRow::ROW_LABEL_COLUMN;

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let hash: Vec<u8> = row.get("hash")?;
        let hash = hash.try_into().map_err(|hash: Vec<u8>| {
            corrupt("a hash of the audit's chain", format!("it has {} bytes instead of 32", hash.len()))
        })?;
        Ok(Self {
            row: AuditRow::from_row(row)?,
            position: count(row.get("position")?)?,
            hash: ChainHash(hash),
        })
    }
}

/// Appends the rows, in their order, to the writer's chain. Fails unless it has as many rows as the given head says. A
/// stored hash that was changed meanwhile is not used: the rows continue from the given one, so that `chancery verify`
/// finds the change. Returns the new head, which is valid once the transaction is committed.
pub(crate) async fn append_to_chain<E: From<DbError>>(
    conn: &mut Conn<'_>,
    writer: WriterId,
    head: Option<ChainHead>,
    rows: &[AuditRow],
) -> Result<Option<ChainHead>, TxError<E>> {
    if rows.is_empty() {
        return Ok(head);
    }
    let mut end = match head {
        Some(head) => head,
        None => read_head(conn, writer).await?,
    };
    for rows in rows.chunks(MAX_ROWS_PER_STATEMENT) {
        let before = end;
        // The rows and the head in one round trip. PostgreSQL has no other way to run two statements with parameters.
        let mut add = Statement::new("");
        add.push_dialect("", "WITH added AS (").push(
            "INSERT INTO audit_rows (at_ms, principal_kind, person_id, action, client_id, request_id, decision, event, \
             subject_id, old_role, new_role, invited_address, ip_address, writer_id, position, hash) ",
        );
        add.push_values(rows, |row| {
            let position = end.rows;
            end = end.with_row(writer, row);
            let (decided, event) = (row.as_decision(), row.event());
            [
                row.at().0.into(),
                row.principal().into(),
                row.person().map(|person| person.0).into(),
                decided.map(|row| row.access_request.action.as_str()).into(),
                row.client().map(|client| client.0).into(),
                row.request_id().as_str().into(),
                decided.map(|row| row.decision.as_str()).into(),
                event.map(|event| event.kind.as_str()).into(),
                event.and_then(|event| event.subject).map(|person| person.0).into(),
                event.and_then(|event| event.old_role).map(Role::as_str).into(),
                event.and_then(|event| event.new_role).map(Role::as_str).into(),
                row.invited().map(EmailAddress::as_str).into(),
                row.ip().map_or(None::<&str>.into(), |ip| ip.to_string().into()),
                writer.0.into(),
                to_db_count(position).into(),
                end.hash.0.to_vec().into(),
            ]
        });
        add.push_dialect("; ", ") ").push("INSERT INTO audit_writers (id, row_count, head) ");
        add.push_values([end], |end| {
            [writer.0.into(), to_db_count(end.rows).into(), end.hash.0.to_vec().into()]
        });
        add.push(MOVE_HEAD).push_bind(to_db_count(before.rows));
        let changed = add.build().persistent(rows.len() == 1).execute(conn).await?;
        // SQLite counts the rows of both statements, PostgreSQL those of the last one.
        let expected = match conn.dialect() {
            Dialect::Sqlite => rows.len() as u64 + 1,
            Dialect::Postgres => 1,
        };
        if changed != expected {
            return Err(DbError::Unavailable("audit chain head conflict".to_owned()).into());
        }
    }
    Ok(Some(end))
}

async fn read_head(conn: &mut Conn<'_>, writer: WriterId) -> Result<ChainHead, sqlx::Error> {
    let read = query(match conn.dialect() {
        Dialect::Sqlite => HEAD,
        Dialect::Postgres => "SELECT row_count, head FROM audit_writers WHERE id = $1 FOR UPDATE",
    });
    Ok(read.bind(writer.0).fetch_optional(conn).await?.unwrap_or_default())
}
