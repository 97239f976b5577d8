//! Who has opened a record: counted as it is read, so that its page need not look through the audit.

use crate::clients::rows::{count, person_ref};
use crate::clients::types::{Look, MAX_LOOKS};
use crate::db::{Conn, FromRow, Row, Statement};
use chancery_domain::{Asked, ClientId, UnixMillis};
use std::collections::{BTreeSet, HashMap};

/// Rows that one statement adds.
const MAX_ROWS_AT_ONCE: usize = 1000;

impl FromRow for (ClientId, Look) {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let view = Look {
            person: person_ref(row.get("person_id")?, &row.get::<String>("email")?)?,
            last_at: UnixMillis(row.get("last_at_ms")?),
            times: count(row.get("times")?)?,
        };
        Ok((ClientId(row.get("client_id")?), view))
    }
}

/// Counts that the principal has opened these records. The command line is nobody.
pub(crate) async fn record_views(
    conn: &mut Conn<'_>,
    asked: &Asked,
    clients: &[ClientId],
) -> Result<(), sqlx::Error> {
    let Some(person) = asked.by.person() else { return Ok(()) };
    let clients: Vec<ClientId> = clients.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    for clients in clients.chunks(MAX_ROWS_AT_ONCE) {
        let mut add = Statement::new("INSERT INTO client_looks (client_id, person_id, last_at_ms, times) ");
        add.push_values(clients, |client| {
            [client.0.into(), person.0.into(), asked.at.0.into(), 1_i64.into()]
        });
        add.push(
            " ON CONFLICT (client_id, person_id) DO UPDATE SET last_at_ms = excluded.last_at_ms, \
             times = client_looks.times + 1",
        );
        add.build().persistent(clients.len() == 1).execute(conn).await?;
    }
    Ok(())
}

/// The latest views of each, the last first.
pub(crate) async fn views_of(
    conn: &mut Conn<'_>,
    clients: &[ClientId],
) -> Result<HashMap<ClientId, Vec<Look>>, sqlx::Error> {
    let mut latest: HashMap<ClientId, Vec<Look>> = HashMap::new();
    for clients in clients.chunks(MAX_ROWS_AT_ONCE) {
        let mut read = Statement::new(
            "SELECT l.client_id, l.person_id, p.email, l.last_at_ms, l.times FROM client_looks l \
             JOIN people p ON p.id = l.person_id WHERE l.client_id IN ",
        );
        read.push_list(clients.iter().map(|client| client.0));
        read.push(" ORDER BY l.client_id, l.last_at_ms DESC, l.person_id");
        let rows = read.build().persistent(clients.len() == 1).fetch_all::<(ClientId, Look)>(conn).await?;
        for (client, view) in rows {
            let views = latest.entry(client).or_default();
            if views.len() < MAX_LOOKS as usize {
                views.push(view);
            }
        }
    }
    Ok(latest)
}
