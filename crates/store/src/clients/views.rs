//! Views of records. They are counted on each read, so that the page need not search the audit log.

use crate::clients::types::{MAX_RECORD_VIEWS, RecordView};
use crate::db::{QueryError, Statement, Tx, from_row, query};
use chancery_domain::{AccessRequest, ClientId};
use std::collections::BTreeSet;

/// Rows per INSERT.
const MAX_ROWS_PER_STATEMENT: usize = 1000;

const COUNT_AGAIN: &str = " ON CONFLICT (client_id, person_id) DO UPDATE SET \
    last_viewed_at_ms = excluded.last_viewed_at_ms, view_count = record_views.view_count + 1";

const LATEST: &str = "SELECT l.person_id, p.email, l.last_viewed_at_ms, l.view_count FROM record_views l \
    JOIN people p ON p.id = l.person_id WHERE l.client_id = $1 \
    ORDER BY l.last_viewed_at_ms DESC, l.person_id LIMIT $2";

from_row!(RecordView {
    person: person("person_id", "email"),
    last_at: "last_viewed_at_ms",
    times: "view_count"
});

/// Counts a view of these records by the principal. Views by the command line are not counted.
pub(crate) fn record_views(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    clients: &[ClientId],
) -> Result<(), QueryError> {
    let Some(person) = access_request.by.person() else { return Ok(()) };
    let clients: Vec<ClientId> = clients.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    for clients in clients.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut add =
            Statement::new("INSERT INTO record_views (client_id, person_id, last_viewed_at_ms, view_count) ");
        add.push_values(clients, |client| {
            [client.0.into(), person.0.into(), access_request.at.0.into(), 1_i64.into()]
        });
        add.push(COUNT_AGAIN);
        add.build().persistent(clients.len() == 1).execute(tx)?;
    }
    Ok(())
}

/// The latest views of a record, newest first.
pub(crate) fn latest_views(tx: &mut Tx<'_>, client: ClientId) -> Result<Vec<RecordView>, QueryError> {
    query(LATEST).bind(client.0).bind(i64::from(MAX_RECORD_VIEWS)).fetch_all(tx)
}
