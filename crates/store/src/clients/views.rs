//! Who has opened a record: counted as it is read, so that its page need not look through the audit.

use crate::audit::step::Stopped;
use crate::clients::rows::{count, person_ref};
use crate::db::both::{Statement, for_both_connections, push_list, stored_row};
use crate::{Look, MAX_LOOKS};
use chancery_domain::{Asked, ClientId, UnixMillis};
use std::collections::{BTreeSet, HashMap};

/// Rows that one statement adds.
const MAX_ROWS_AT_ONCE: usize = 1000;

stored_row! {
    struct StoredLook {
        client_id: i64,
        person_id: i64,
        email: String,
        last_at_ms: i64,
        times: i64,
    }
}

#[async_trait::async_trait]
pub(crate) trait ClientLooks {
    /// Counts that the asker has opened these records. The command line is nobody.
    async fn note_looks(&mut self, asked: &Asked, clients: &[ClientId]) -> Result<(), Stopped>;

    /// The latest of each, the last first.
    async fn looks_at(&mut self, clients: &[ClientId]) -> Result<HashMap<ClientId, Vec<Look>>, Stopped>;
}

for_both_connections! {
    impl ClientLooks {
        async fn note_looks(&mut self, asked: &Asked, clients: &[ClientId]) -> Result<(), Stopped> {
            let Some(person) = asked.by.person() else { return Ok(()) };
            let clients: Vec<ClientId> = clients.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
            for clients in clients.chunks(MAX_ROWS_AT_ONCE) {
                let mut note =
                    Statement::<Self>::new("INSERT INTO client_looks (client_id, person_id, last_at_ms, times) ");
                note.push_values(clients, |mut columns, client| {
                    columns.push_bind(client.0).push_bind(person.0).push_bind(asked.at.0).push("1");
                });
                note.push(
                    " ON CONFLICT (client_id, person_id) DO UPDATE SET last_at_ms = excluded.last_at_ms, \
                     times = client_looks.times + 1",
                );
                note.build().persistent(clients.len() == 1).execute(&mut *self).await?;
            }
            Ok(())
        }

        async fn looks_at(&mut self, clients: &[ClientId]) -> Result<HashMap<ClientId, Vec<Look>>, Stopped> {
            let mut latest = HashMap::new();
            for clients in clients.chunks(MAX_ROWS_AT_ONCE) {
                let mut read = Statement::<Self>::new(
                    "SELECT l.client_id, l.person_id, p.email, l.last_at_ms, l.times FROM client_looks l \
                     JOIN people p ON p.id = l.person_id WHERE l.client_id IN ",
                );
                push_list!(read, clients.iter().map(|client| client.0));
                read.push(" ORDER BY l.client_id, l.last_at_ms DESC, l.person_id");
                let read = read.build_query_as().persistent(clients.len() == 1);
                let rows: Vec<StoredLook> = read.fetch_all(&mut *self).await?;
                for row in rows {
                    let looks: &mut Vec<Look> = latest.entry(ClientId(row.client_id)).or_default();
                    if looks.len() < MAX_LOOKS as usize {
                        let person = person_ref(row.person_id, &row.email)?;
                        looks.push(Look { person, last_at: UnixMillis(row.last_at_ms), times: count(row.times)? });
                    }
                }
            }
            Ok(latest)
        }
    }
}
