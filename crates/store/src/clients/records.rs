//! Many whole records at once, for a file with all that somebody may take along.

use crate::audit::step::Stopped;
use crate::clients::entries::Entries;
use crate::clients::rows::{StoredClient, client_columns};
use crate::clients::views::ClientLooks;
use crate::db::both::{Statement, for_both_connections, push_list};
use crate::{ClientRecord, StoreError};
use chancery_domain::ClientId;
use std::collections::HashMap;

/// Clients that one statement reads.
const MAX_CLIENTS_AT_ONCE: usize = 500;

#[async_trait::async_trait]
pub(crate) trait WholeRecords {
    /// With all entries, those put away included, in the order of the numbers that are given.
    async fn records_of(&mut self, clients: &[ClientId]) -> Result<Vec<ClientRecord>, Stopped>;
}

for_both_connections! {
    impl WholeRecords {
        async fn records_of(&mut self, clients: &[ClientId]) -> Result<Vec<ClientRecord>, Stopped> {
            let mut records = Vec::with_capacity(clients.len());
            for clients in clients.chunks(MAX_CLIENTS_AT_ONCE) {
                let mut read = Statement::<Self>::new(concat!(
                    "SELECT ",
                    client_columns!(),
                    " FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id IN "
                ));
                push_list!(read, clients.iter().map(|client| client.0));
                let rows: Vec<StoredClient> = read.build_query_as().persistent(false).fetch_all(&mut *self).await?;
                let mut rows: HashMap<i64, StoredClient> = rows.into_iter().map(|row| (row.id, row)).collect();
                let mut entries = self.entries_of_each(clients).await?;
                let mut looks = self.looks_at(clients).await?;
                let of_one = |id: &ClientId| {
                    let client = rows.remove(&id.0)?;
                    let (entries, looks) = (entries.remove(id).unwrap_or_default(), looks.remove(id).unwrap_or_default());
                    Some(client.into_record(entries, false, looks))
                };
                let some: Result<Vec<ClientRecord>, StoreError> = clients.iter().filter_map(of_one).collect();
                records.extend(some?);
            }
            Ok(records)
        }
    }
}
