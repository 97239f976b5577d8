//! Views of records. They are counted on each read, so that the page need not search the audit log.

use crate::clients::rows::{count, person_ref};
use crate::clients::types::{MAX_RECORD_VIEWS, RecordView};
use crate::db::{Conn, FromRow, Row, Statement};
use chancery_domain::{AccessRequest, ClientId, UnixMillis};
use std::collections::{BTreeSet, HashMap};

/// Rows per INSERT.
const MAX_ROWS_PER_STATEMENT: usize = 1000;

impl FromRow for (ClientId, RecordView) {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let view = RecordView {
            person: person_ref(row.get("person_id")?, &row.get::<String>("email")?)?,
            last_at: UnixMillis(row.get("last_viewed_at_ms")?),
            times: count(row.get("view_count")?)?,
        };
        Ok((ClientId(row.get("client_id")?), view))
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
        add.push(
            " ON CONFLICT (client_id, person_id) DO UPDATE SET last_viewed_at_ms = excluded.last_viewed_at_ms, \
             view_count = record_views.view_count + 1",
        );
        add.build().persistent(clients.len() == 1).execute(conn).await?;
    }
    Ok(())
}

/// The latest views of each record, newest first.
pub(crate) async fn views_of(
    conn: &mut Conn<'_>,
    clients: &[ClientId],
) -> Result<HashMap<ClientId, Vec<RecordView>>, sqlx::Error> {
    let mut latest: HashMap<ClientId, Vec<RecordView>> = HashMap::new();
    for clients in clients.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut read = Statement::new(
            "SELECT l.client_id, l.person_id, p.email, l.last_viewed_at_ms, l.view_count FROM record_views l \
             JOIN people p ON p.id = l.person_id WHERE l.client_id IN ",
        );
        read.push_list(clients.iter().map(|client| client.0));
        read.push(" ORDER BY l.client_id, l.last_viewed_at_ms DESC, l.person_id");
        let rows =
            read.build().persistent(clients.len() == 1).fetch_all::<(ClientId, RecordView)>(conn).await?;
        for (client, view) in rows {
            let views = latest.entry(client).or_default();
            if views.len() < MAX_RECORD_VIEWS as usize {
                views.push(view);
            }
        }
    }
    Ok(latest)
}
