//! Reads many whole records at once, for an export file.

use crate::clients::entries::entries_by_client;
use crate::clients::rows::{SELECT_CLIENTS, StoredClient};
use crate::clients::types::ClientRecord;
use crate::clients::views::views_of;
use crate::db::{Conn, Statement};
use chancery_domain::ClientId;
use std::collections::HashMap;

/// Clients per statement.
const MAX_CLIENTS_PER_STATEMENT: usize = 500;

/// Whole records with all entries, archived ones included, in the order of the given ids.
pub(crate) async fn full_records(
    conn: &mut Conn<'_>,
    clients: &[ClientId],
) -> Result<Vec<ClientRecord>, sqlx::Error> {
    let mut records = Vec::with_capacity(clients.len());
    for clients in clients.chunks(MAX_CLIENTS_PER_STATEMENT) {
        let mut read = Statement::new(SELECT_CLIENTS);
        read.push(" FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id IN ");
        read.push_list(clients.iter().map(|client| client.0));
        let rows: Vec<StoredClient> = read.build().persistent(false).fetch_all(conn).await?;
        let mut rows: HashMap<ClientId, StoredClient> =
            rows.into_iter().map(|row| (row.client.id, row)).collect();
        let mut entries = entries_by_client(conn, clients).await?;
        let mut views = views_of(conn, clients).await?;
        records.extend(clients.iter().filter_map(|id| {
            let client = rows.remove(id)?;
            let (entries, views) =
                (entries.remove(id).unwrap_or_default(), views.remove(id).unwrap_or_default());
            Some(client.into_record(entries, false, views))
        }));
    }
    Ok(records)
}
