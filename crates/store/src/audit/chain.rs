//! How decisions are linked into the chain of the process that made them, and read from it. The chain's end is read and moved in the
//! transaction that adds the rows.

use crate::StoreError;
use crate::audit::types::ChainedAuditRow;
use crate::clients::rows::count;
use crate::db::both::for_both_connections;
use crate::db::{Conn, Dialect, FromRow, Row, Statement, TxError, corrupt, query};
use crate::ledger::batch::stored_count;
use chancery_domain::{
    Asked, Asker, AuditRow, ChainHash, ChainHead, ClientId, PersonId, RequestId, Role, UnixMillis, WriterId,
};

/// Rows that one statement adds, far within the databases' bounds on parameters.
const MAX_ROWS_AT_ONCE: usize = 500;

pub(crate) const HEAD: &str = "SELECT row_count, head FROM audit_writers WHERE id = $1";

/// Changes nothing where the chain ends elsewhere than at $2.
const SET_HEAD: &str = "INSERT INTO audit_writers (id, row_count, head) VALUES ($1, $3, $4) \
    ON CONFLICT (id) DO UPDATE SET row_count = excluded.row_count, head = excluded.head \
    WHERE audit_writers.row_count = $2";

impl FromRow for AuditRow {
    const NAMED_BY: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (principal, request_id): (String, String) = (row.get("asker")?, row.get("request_id")?);
        let (action, decision): (String, String) = (row.get("action")?, row.get("decision")?);
        let corrupt =
            |what, why: &str| corrupt(what, format!("a decision of request {request_id} has {why}"));
        let by = match (row.get::<Option<i64>>("person_id")?, principal.parse::<Role>()) {
            (Some(id), Ok(role)) => Asker::Person { id: PersonId(id), role },
            (None, Err(_)) if principal == Asker::Operator.as_what() => Asker::Operator,
            _ => return Err(corrupt("who asked", &format!("{principal:?}"))),
        };
        let action = action.parse().map_err(|_| corrupt("what was asked", &action))?;
        let decision = decision.parse().map_err(|_| corrupt("a decision", &decision))?;
        let asked = Asked {
            by,
            action,
            client: row.get::<Option<i64>>("client_id")?.map(ClientId),
            at: UnixMillis(row.get("at_ms")?),
            request_id: RequestId::from_stored(request_id),
        };
        Ok(Self { asked, decision })
    }
}

impl FromRow for ChainedAuditRow {
    const NAMED_BY: Option<&'static str> = AuditRow::NAMED_BY;

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let hash: Vec<u8> = row.get("hash")?;
        let hash = hash.try_into().map_err(|hash: Vec<u8>| {
            corrupt("a hash of the audit's chain", format!("it has {} bytes instead of 32", hash.len()))
        })?;
        Ok(Self { row: AuditRow::from_row(row)?, place: count(row.get("place")?)?, hash: ChainHash(hash) })
    }
}

/// Adds the rows, in their order, to the end of the writer's chain.
pub(crate) async fn link(conn: &mut Conn<'_>, writer: WriterId, rows: &[AuditRow]) -> Result<(), TxError> {
    if rows.is_empty() {
        return Ok(());
    }
    let before = query(match conn.dialect() {
        Dialect::Sqlite => HEAD,
        Dialect::Postgres => "SELECT row_count, head FROM audit_writers WHERE id = $1 FOR UPDATE",
    });
    let before: ChainHead = before.bind(writer.0).fetch_optional(conn).await?.unwrap_or_default();
    let mut end = before;
    for rows in rows.chunks(MAX_ROWS_AT_ONCE) {
        let mut add = Statement::new(
            "INSERT INTO audit_rows (at_ms, asker, person_id, action, client_id, request_id, decision, writer_id, place, hash) ",
        );
        add.push_values(rows, |row| {
            let (place, asked) = (end.rows, &row.asked);
            end = end.followed_by(writer, row);
            [
                asked.at.0.into(),
                asked.by.as_what().into(),
                asked.by.person().map(|person| person.0).into(),
                asked.action.as_str().into(),
                asked.client.map(|client| client.0).into(),
                asked.request_id.as_str().into(),
                row.decision.as_str().into(),
                writer.0.into(),
                stored_count(place).into(),
                end.hash.0.to_vec().into(),
            ]
        });
        add.build().persistent(rows.len() == 1).execute(conn).await?;
    }
    let moved = query(SET_HEAD)
        .bind(writer.0)
        .bind(stored_count(before.rows))
        .bind(stored_count(end.rows))
        .bind(end.hash.0.to_vec())
        .execute(conn)
        .await?;
    match moved {
        1 => Ok(()),
        _ => Err(StoreError::Unavailable("the end of the audit's chain has moved".to_owned()).into()),
    }
}

/// For steps that do not run on `Conn` yet.
#[async_trait::async_trait]
pub(crate) trait AuditChain {
    async fn link(&mut self, writer: WriterId, rows: &[AuditRow]) -> Result<(), TxError>;
}

for_both_connections! {
    impl AuditChain {
        async fn link(&mut self, writer: WriterId, rows: &[AuditRow]) -> Result<(), TxError> {
            link(&mut Conn::from(&mut *self), writer, rows).await
        }
    }
}
