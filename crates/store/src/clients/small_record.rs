//! A whole record that fits in one page, in two statements and without a transaction: most records. The second statement
//! reads the entries only if the client is still as the first one saw it, so that both show the same moment. Everything
//! else is read by `record_reader`, which also finds out why a record may no longer be read.

use crate::ClientError;
use crate::audit::principal::push_principal_unchanged;
use crate::clients::entries::SELECT_ENTRIES;
use crate::clients::locks::find_permitted_client;
use crate::clients::types::{EntryCounts, MAX_RECORD_PAGE_BYTES, MAX_RECORD_PAGE_ENTRIES, RecordPart};
use crate::db::{Db, Query, Statement};
use crate::ledger::batch::to_db_count;
use chancery_domain::{Client, Entry, EntryKind, Principal};
use chancery_policy::{AuthzAction, Permit};

/// The client with all entries that are not archived, by kind and newest first. `None` if it has too many for a page, if
/// it was changed meanwhile, or if the permit no longer holds.
pub(crate) async fn read_small_record<A: AuthzAction>(
    db: &Db,
    permit: &Permit<A>,
) -> Result<Option<RecordPart>, ClientError> {
    db.read(permit, |conn, permit| {
        Box::pin(async move {
            let Some(stored) = find_permitted_client(conn, permit).await? else { return Ok(None) };
            let (client, count) = (stored.client, active_entries(&stored.counts));
            if count > MAX_RECORD_PAGE_ENTRIES as u64 {
                return Ok(None);
            }
            let mut entries: Vec<Entry> = match count {
                0 => Vec::new(),
                _ => select_entries_of(&client, permit.by()).fetch_all(conn).await?,
            };
            if entries.len() as u64 != count {
                return Ok(None);
            }
            // A stable sort: the newest stay first within their kind.
            entries.sort_by_key(|entry| EntryKind::ALL.iter().position(|kind| *kind == entry.kind));
            Ok(Some(RecordPart { client, is_first: true, entries, is_last: true }))
        })
    })
    .await
}

pub(crate) fn active_entries(counts: &EntryCounts) -> u64 {
    counts.meeting_notes + counts.billing_disputes + counts.draft_letters
}

/// Selects nothing if the client or the principal has changed, or if the entries are too long for a page.
fn select_entries_of(client: &Client, by: Principal) -> Query<'static> {
    let mut read = Statement::new(SELECT_ENTRIES);
    read.push("e.client_id = ").push_bind(client.id.0).push(" AND e.is_archived = ").push_bind(false);
    read.push(" AND EXISTS (SELECT 1 FROM clients c WHERE c.id = ").push_bind(client.id.0);
    read.push(" AND c.owner_id = ").push_bind(client.owner.id.0);
    read.push(" AND c.version = ").push_bind(client.version.0).push(")");
    push_principal_unchanged(&mut read, by);
    read.push(
        " AND (SELECT SUM(octet_length(b.title) + octet_length(b.text)) FROM entries b WHERE b.client_id = ",
    );
    read.push_bind(client.id.0).push(" AND b.is_archived = ").push_bind(false);
    read.push(") <= ").push_bind(to_db_count(MAX_RECORD_PAGE_BYTES));
    read.push(" ORDER BY e.at_ms DESC, e.id DESC LIMIT ");
    read.push_bind(to_db_count(MAX_RECORD_PAGE_ENTRIES as u64 + 1));
    read.build()
}
