//! How decisions are linked into the chain of the process that made them. The chain's end is read and moved in the
//! transaction that adds the rows.

use crate::audit::step::Stopped;
use crate::db::both::{for_both_connections, stored_row};
use crate::db::{Conn, Dialect, Statement, query};
use crate::ledger::batch::stored_count;
use crate::ledger::queries::StoredHead;
use crate::{ChainedAuditRow, StoreError};
use chancery_domain::{
    Asked, Asker, AuditRow, ChainHead, ClientId, PersonId, RequestId, Role, UnixMillis, WriterId,
};

/// Rows that one statement adds, far within the databases' bounds on parameters.
const MAX_ROWS_AT_ONCE: usize = 500;

pub(crate) const HEAD: &str = "SELECT row_count, head FROM audit_writers WHERE id = $1";

/// Changes nothing where the chain ends elsewhere than at $2.
const SET_HEAD: &str = "INSERT INTO audit_writers (id, row_count, head) VALUES ($1, $3, $4) \
    ON CONFLICT (id) DO UPDATE SET row_count = excluded.row_count, head = excluded.head \
    WHERE audit_writers.row_count = $2";

stored_row! {
    struct StoredAuditRow named by request_id {
        at_ms: i64,
        asker: String,
        person_id: Option<i64>,
        action: String,
        client_id: Option<i64>,
        request_id: String,
        decision: String,
    }
}

impl StoredAuditRow {
    pub(crate) fn into_audit_row(self) -> Result<AuditRow, StoreError> {
        let corrupt = |what, why: String| StoreError::Corrupt {
            what,
            why: format!("a decision of request {} has {why}", self.request_id),
        };
        let by = match (self.person_id, self.asker.parse::<Role>()) {
            (Some(id), Ok(role)) => Asker::Person { id: PersonId(id), role },
            (None, Err(_)) if self.asker == Asker::Operator.as_what() => Asker::Operator,
            _ => return Err(corrupt("who asked", format!("{:?}", self.asker))),
        };
        let action = self.action.parse().map_err(|_| corrupt("what was asked", self.action.clone()))?;
        let decision = self.decision.parse().map_err(|_| corrupt("a decision", self.decision.clone()))?;
        let asked = Asked {
            by,
            action,
            client: self.client_id.map(ClientId),
            at: UnixMillis(self.at_ms),
            request_id: RequestId::from_stored(self.request_id),
        };
        Ok(AuditRow { asked, decision })
    }
}

stored_row! {
    struct StoredChainedAuditRow {
        place: i64,
        hash: Vec<u8>,
        ..row: StoredAuditRow,
    }
}

impl StoredChainedAuditRow {
    pub(crate) fn into_chained_row(self) -> Result<ChainedAuditRow, StoreError> {
        // A place and a hash together are what a chain's end has.
        let head = StoredHead { row_count: self.place, head: self.hash }.into_chain_head()?;
        Ok(ChainedAuditRow { row: self.row.into_audit_row()?, place: head.rows, hash: head.hash })
    }
}

/// Adds the rows, in their order, to the end of the writer's chain.
pub(crate) async fn link(conn: &mut Conn<'_>, writer: WriterId, rows: &[AuditRow]) -> Result<(), Stopped> {
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
    async fn link(&mut self, writer: WriterId, rows: &[AuditRow]) -> Result<(), Stopped>;
}

for_both_connections! {
    impl AuditChain {
        async fn link(&mut self, writer: WriterId, rows: &[AuditRow]) -> Result<(), Stopped> {
            link(&mut Conn::from(&mut *self), writer, rows).await
        }
    }
}
