//! Views of records. They are counted on each read, so that the page need not search the audit log.

use crate::audit::principal::push_principal_unchanged;
use crate::clients::locks::LockMode;
use crate::clients::rows::{count, person_ref};
use crate::clients::types::{MAX_RECORD_VIEWS, RecordView};
use crate::db::{Conn, FromRow, Row, Statement};
use chancery_domain::{AccessRequest, ClientId, UnixMillis};
use chancery_policy::{AuthzAction, Permit};
use std::collections::{BTreeSet, HashMap};

/// Rows per INSERT.
const MAX_ROWS_PER_STATEMENT: usize = 1000;

const COUNT_AGAIN: &str = " ON CONFLICT (client_id, person_id) DO UPDATE SET \
    last_viewed_at_ms = excluded.last_viewed_at_ms, view_count = record_views.view_count + 1";

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
        add.push(COUNT_AGAIN);
        add.build().persistent(clients.len() == 1).execute(conn).await?;
    }
    Ok(())
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
