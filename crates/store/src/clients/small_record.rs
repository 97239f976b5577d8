//! A whole record that fits in one page: most records. On SQLite it is read from a snapshot, in one command. On PostgreSQL a
//! snapshot would be two more round trips. There, a second statement reads the entries only if the client is still as the
//! first one saw it, so that both show the same moment. Everything else is read by `record_reader`, which also finds out why
//! a record may no longer be read.

use crate::ClientError;
use crate::audit::principal::push_principal_unchanged;
use crate::clients::entries::SELECT_ENTRIES;
use crate::clients::locks::{find_permitted_client, select_permitted_client};
use crate::clients::rows::StoredClient;
use crate::clients::types::{EntryCounts, MAX_RECORD_PAGE_BYTES, MAX_RECORD_PAGE_ENTRIES, RecordPart};
use crate::db::{Db, Dialect, FromRow, Query, Statement};
use crate::ledger::batch::to_db_count;
use chancery_domain::{Client, ClientId, Entry, EntryKind, Principal};
use chancery_policy::{AuthzAction, Permit};

/// The client with all entries that are not archived, by kind and newest first. `None` if it has too many for a page, if
/// it was changed meanwhile, or if the permit no longer holds.
pub(crate) async fn read_small_record<A: AuthzAction>(
    db: &Db,
    permit: &Permit<A>,
) -> Result<Option<RecordPart>, ClientError> {
    match db.dialect() {
        Dialect::Sqlite => {
            // No client has this id.
            let client = permit.client().unwrap_or(ClientId(i64::MIN));
            let queries = [select_permitted_client(permit), select_entries_of(client, |_| {})];
            let [client, entries] = db.snapshot_rows(queries).await?;
            let Some(client) = client.first() else { return Ok(None) };
            let entries = entries.iter().map(Entry::read).collect::<Result<_, _>>()?;
            Ok(into_whole_record(StoredClient::read(client)?, entries))
        }
        Dialect::Postgres => {
            db.read(permit, |conn, permit| {
                Box::pin(async move {
                    let Some(stored) = find_permitted_client(conn, permit).await? else { return Ok(None) };
                    let client = &stored.client;
                    let is_unchanged = |read: &mut Statement<'_>| push_unchanged(read, client, permit.by());
                    let entries = match active_entries(&stored.counts) {
                        0 => Vec::new(),
                        _ => select_entries_of(client.id, is_unchanged).fetch_all(conn).await?,
                    };
                    Ok(into_whole_record(stored, entries))
                })
            })
            .await
        }
    }
}

/// `None` if these are not all entries.
fn into_whole_record(stored: StoredClient, mut entries: Vec<Entry>) -> Option<RecordPart> {
    if entries.len() as u64 != active_entries(&stored.counts) {
        return None;
    }
    // A stable sort: the newest stay first within their kind.
    entries.sort_by_key(|entry| EntryKind::ALL.iter().position(|kind| *kind == entry.kind));
    Some(RecordPart { client: stored.client, is_first: true, entries, is_last: true })
}

pub(crate) fn active_entries(counts: &EntryCounts) -> u64 {
    counts.meeting_notes + counts.billing_disputes + counts.draft_letters
}

/// Selects the entries that are not archived, newest first, under one more condition. Selects nothing if they do not fit in a
/// page.
fn select_entries_of(client: ClientId, push_condition: impl FnOnce(&mut Statement<'_>)) -> Query<'static> {
    let mut read = Statement::new(SELECT_ENTRIES);
    read.push("e.client_id = ").push_bind(client.0).push(" AND e.is_archived = ").push_bind(false);
    push_condition(&mut read);
    read.push(
        " AND (SELECT f.meeting_notes + f.billing_disputes + f.draft_letters FROM clients f WHERE f.id = ",
    );
    read.push_bind(client.0).push(") <= ").push_bind(to_db_count(MAX_RECORD_PAGE_ENTRIES as u64));
    read.push(
        " AND (SELECT SUM(octet_length(b.title) + octet_length(b.text)) FROM entries b WHERE b.client_id = ",
    );
    read.push_bind(client.0).push(" AND b.is_archived = ").push_bind(false);
    read.push(") <= ").push_bind(to_db_count(MAX_RECORD_PAGE_BYTES));
    read.push(" ORDER BY e.at_ms DESC, e.id DESC");
    read.build()
}

/// The condition that the client and the principal have not changed.
fn push_unchanged(read: &mut Statement<'_>, client: &Client, by: Principal) {
    read.push(" AND EXISTS (SELECT 1 FROM clients c WHERE c.id = ").push_bind(client.id.0);
    read.push(" AND c.owner_id = ").push_bind(client.owner.id.0);
    read.push(" AND c.version = ").push_bind(client.version.0).push(")");
    push_principal_unchanged(read, by);
}
