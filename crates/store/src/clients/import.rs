//! Creates clients, one from a form or many from a file, with their first version, search terms and entries.

use crate::ClientError;
use crate::DbError;
use crate::audit::step::{AppendedDecisions, AuditedSteps};
use crate::clients::entries::{NewEntryCounts, ensure_entry_capacity, insert_entries, recount_entries};
use crate::clients::rows::{ensure_active_member, ensure_person_exists};
use crate::clients::search::{SearchTermRow, add_search_terms, search_terms_of, sort_name};
use crate::clients::types::{NewClient, NewEntry};
use crate::db::{Db, Dialect, QueryError, Statement, Tx, query};
use chancery_domain::{AccessRequest, AuditRow, ClientId, ClientName, EntryId, PersonId, Version};
use chancery_policy::{CreateClient, Permit};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc;

/// Clients per batch: far below both databases' parameter limits, and fast.
pub(crate) const MAX_CLIENTS_PER_STATEMENT: usize = 500;

/// SQLite has one writer, so the ids after the last one are free. Inserting the rows advances the sequence.
const ALLOCATE_IDS_SQLITE: &str = "WITH RECURSIVE drawn (n) AS \
    (SELECT 1 UNION ALL SELECT n + 1 FROM drawn WHERE n < $2) \
    SELECT seq + n FROM sqlite_sequence, drawn WHERE name = $1";
const ALLOCATE_IDS_POSTGRES: &str =
    "SELECT nextval(pg_get_serial_sequence($1, 'id')) FROM generate_series(CAST(1 AS BIGINT), $2)";

/// Prepares SQLite for very many rows in one transaction. PostgreSQL needs no preparation.
///
/// Inserts touch index pages at random. With SQLite's default cache of 2 MB, each page is read and written again and
/// again. This cache has 8 MB; `restore_page_cache` resets it.
fn enlarge_page_cache(tx: &mut Tx<'_>) -> Result<(), QueryError> {
    if tx.dialect() == Dialect::Sqlite {
        query("PRAGMA cache_size = -8192").persistent(false).execute(tx)?;
    }
    Ok(())
}

fn restore_page_cache(tx: &mut Tx<'_>) -> Result<(), QueryError> {
    if tx.dialect() == Dialect::Sqlite {
        query("PRAGMA cache_size = -2000").persistent(false).execute(tx)?;
        query("PRAGMA shrink_memory").persistent(false).execute(tx)?;
    }
    Ok(())
}

/// Upper bound for one import.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(3_600);

const ANY: &str = "SELECT COUNT(*) FROM (SELECT id FROM clients LIMIT 1) AS some_client";

/// Allocates the next ids of a table, in order.
pub(crate) fn allocate_ids(
    tx: &mut Tx<'_>,
    table: &'static str,
    count: usize,
) -> Result<Vec<i64>, ClientError> {
    let allocate = query(match tx.dialect() {
        Dialect::Sqlite => ALLOCATE_IDS_SQLITE,
        Dialect::Postgres => ALLOCATE_IDS_POSTGRES,
    });
    let requested = i64::try_from(count).unwrap_or(i64::MAX);
    let mut ids: Vec<i64> = allocate.bind(table).bind(requested).fetch_all(tx)?;
    ids.sort_unstable();
    match ids.len() == count {
        true => Ok(ids),
        false => Err(DbError::Corrupt { what: "the last number issued", why: format!("of {table}") }.into()),
    }
}

/// A new client with its allocated id.
struct NewClientRow<'a> {
    id: ClientId,
    owner: PersonId,
    permit: &'a Permit<CreateClient>,
    new: &'a NewClient,
}

impl NewClientRow<'_> {
    fn since_day(&self) -> Option<i64> {
        self.new.details.since.map(|day| i64::from(day.0))
    }

    fn audit_row(&self) -> AuditRow {
        self.permit.to_audit_row_for_client(self.id)
    }

    fn term_rows(&self) -> impl Iterator<Item = SearchTermRow> + use<> {
        let (client, owner, is_archived) = (self.id, self.owner, self.new.is_archived);
        let terms = search_terms_of(client, &self.new.name, &self.new.details);
        terms.into_iter().map(move |term| SearchTermRow { client, term, owner, is_archived })
    }

    /// Whether both were decided for the same principal at the same time, as all clients of one file are.
    fn is_same_decision(&self, other: &Self) -> bool {
        let (one, other) = (self.permit.access_request(), other.permit.access_request());
        (one.by, one.at) == (other.by, other.at)
    }
}

/// Adds the clients with their entries. Returns the decisions that allowed them, with the new ids, in order.
pub(crate) fn add_clients(
    tx: &mut Tx<'_>,
    new: &[(Permit<CreateClient>, NewClient)],
) -> Result<Vec<AuditRow>, ClientError> {
    // A permit to create a client always has an owner. Ids start at 1, so 0 matches no person.
    let owner = |permit: &Permit<CreateClient>| permit.owner().unwrap_or(PersonId(0));
    let owners: BTreeSet<PersonId> = new.iter().map(|(permit, _)| owner(permit)).collect();
    for owner in &owners {
        ensure_active_member(tx, *owner)?;
    }
    let entries = || new.iter().flat_map(|(_, new)| &new.entries);
    let authors: BTreeSet<PersonId> = entries().map(|entry| entry.author).collect();
    for author in authors.difference(&owners) {
        ensure_person_exists(tx, *author)?;
    }
    for (_, new) in new {
        ensure_entry_capacity(&new.name, 0, new.entries.len())?;
    }

    let numbered: Vec<NewClientRow<'_>> = allocate_ids(tx, "clients", new.len())?
        .into_iter()
        .zip(new)
        .map(|(id, (permit, new))| NewClientRow { id: ClientId(id), owner: owner(permit), permit, new })
        .collect();
    insert_clients(tx, &numbered)?;
    let term_rows: Vec<SearchTermRow> = numbered.iter().flat_map(NewClientRow::term_rows).collect();
    add_search_terms(tx, &term_rows)?;

    let entry_ids = match entries().count() {
        0 => Vec::new(),
        numbers => allocate_ids(tx, "entries", numbers)?,
    };
    let mut entry_ids = entry_ids.into_iter().map(EntryId);
    for together in numbered.chunk_by(NewClientRow::is_same_decision) {
        let mut entries: Vec<(EntryId, ClientId, &NewEntry)> = Vec::new();
        for client in together {
            let numbers = entry_ids.by_ref().take(client.new.entries.len());
            entries.extend(numbers.zip(&client.new.entries).map(|(id, entry)| (id, client.id, entry)));
        }
        if let Some(first) = together.first() {
            insert_entries(tx, first.permit.access_request(), &entries)?;
        }
    }
    Ok(numbered.iter().map(NewClientRow::audit_row).collect())
}

fn insert_clients(tx: &mut Tx<'_>, new: &[NewClientRow<'_>]) -> Result<(), QueryError> {
    let mut add = Statement::new(
        "INSERT INTO clients (id, name, sort_name, contact, email, telephone, address, since_day, owner_id, \
         version, created_at_ms, archived_at_ms, is_archived, last_entry_at_ms, meeting_notes, billing_disputes, \
         draft_letters, open_disputes, open_letters, archived_entries, next_due_day) ",
    );
    add.push_values(new, |client| {
        let NewClient { name, details, entries, is_archived } = client.new;
        let (at, counts) = (client.permit.access_request().at, NewEntryCounts::of(entries));
        [
            client.id.0.into(),
            name.as_str().into(),
            sort_name(name).into(),
            details.contact.as_str().into(),
            details.email.as_str().into(),
            details.telephone.as_str().into(),
            details.address.as_str().into(),
            client.since_day().into(),
            client.owner.0.into(),
            Version::FIRST.0.into(),
            at.0.into(),
            is_archived.then_some(at.0).into(),
            (*is_archived).into(),
            counts.last_at_ms.unwrap_or(at.0).into(),
            counts.meeting_notes.into(),
            counts.billing_disputes.into(),
            counts.draft_letters.into(),
            counts.open_disputes.into(),
            counts.open_letters.into(),
            counts.archived_entries.into(),
            counts.next_due_day.into(),
        ]
    });
    add.build().persistent(new.len() == 1).execute(tx)?;
    let mut add_versions = Statement::new(
        "INSERT INTO client_versions (client_id, version, name, contact, email, telephone, address, since_day, \
         owner_id, is_archived, actor_id, at_ms) ",
    );
    add_versions.push_values(new, |client| {
        let (details, access_request) = (&client.new.details, client.permit.access_request());
        [
            client.id.0.into(),
            Version::FIRST.0.into(),
            client.new.name.as_str().into(),
            details.contact.as_str().into(),
            details.email.as_str().into(),
            details.telephone.as_str().into(),
            details.address.as_str().into(),
            client.since_day().into(),
            client.owner.0.into(),
            client.new.is_archived.into(),
            access_request.by.person().map(|person| person.0).into(),
            access_request.at.0.into(),
        ]
    });
    add_versions.build().persistent(new.len() == 1).execute(tx)?;
    Ok(())
}

/// The ids of the created clients.
pub(crate) fn created(decisions: &[AuditRow]) -> Vec<ClientId> {
    decisions.iter().filter_map(AuditRow::client).collect()
}

/// What an import gets, in order.
pub enum ImportPart {
    Clients {
        /// More entries of the previous part's last client.
        more_entries: Vec<NewEntry>,
        clients: Vec<(Permit<CreateClient>, NewClient)>,
    },
    /// Everything was read. Without it, nothing is imported.
    End,
}

/// The client that more entries belong to.
struct LastClient {
    id: ClientId,
    name: ClientName,
    entries: u64,
    access_request: AccessRequest,
}

/// Adds entries to a client of an earlier part.
fn add_more_entries(tx: &mut Tx<'_>, client: &mut LastClient, new: &[NewEntry]) -> Result<(), ClientError> {
    ensure_entry_capacity(&client.name, client.entries, new.len())?;
    client.entries += new.len() as u64;
    for author in new.iter().map(|entry| entry.author).collect::<BTreeSet<PersonId>>() {
        ensure_person_exists(tx, author)?;
    }
    let ids = allocate_ids(tx, "entries", new.len())?;
    let rows: Vec<_> = ids.into_iter().zip(new).map(|(id, new)| (EntryId(id), client.id, new)).collect();
    insert_entries(tx, &client.access_request, &rows)?;
    Ok(recount_entries(tx, client.id)?)
}

/// Writes the parts until the end. Sends the number added so far, and stops if nobody waits for it any more.
fn write_parts(
    tx: &mut Tx<'_>,
    appended: &mut AppendedDecisions,
    parts: &mut mpsc::Receiver<ImportPart>,
    progress: &mpsc::UnboundedSender<u64>,
) -> Result<Vec<ClientId>, ClientError> {
    let mut added: Vec<ClientId> = Vec::new();
    let mut last: Option<LastClient> = None;
    loop {
        let part = parts.blocking_recv().ok_or(ClientError::ImportIncomplete)?;
        let ImportPart::Clients { more_entries, clients } = part else { return Ok(added) };
        if let (Some(client), false) = (&mut last, more_entries.is_empty()) {
            add_more_entries(tx, client, &more_entries)?;
        }
        for chunk in clients.chunks(MAX_CLIENTS_PER_STATEMENT) {
            let decisions = add_clients(tx, chunk)?;
            appended.append(tx, &decisions)?;
            added.extend(created(&decisions));
            progress.send(added.len() as u64).map_err(|_| ClientError::ImportIncomplete)?;
        }
        if let (Some(id), Some((permit, new))) = (added.last(), clients.last()) {
            last = Some(LastClient {
                id: *id,
                name: new.name.clone(),
                entries: new.entries.len() as u64,
                access_request: permit.access_request().clone(),
            });
        }
    }
}

/// Imports clients from a file.
#[derive(Clone)]
pub struct ClientImports {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl ClientImports {
    /// Adds all or none, in order, and returns their ids. Calls `progress` with the number added so far.
    pub async fn import_clients(
        &self,
        clients: Vec<(Permit<CreateClient>, NewClient)>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Vec<ClientId>, ClientError> {
        let (sender, parts) = mpsc::channel(2);
        for part in [ImportPart::Clients { more_entries: Vec::new(), clients }, ImportPart::End] {
            sender.try_send(part).map_err(|_| ClientError::ImportIncomplete)?;
        }
        self.import_parts(parts, progress).await
    }

    /// Adds clients that are read while they are written, all in one transaction or none. Returns their ids. `progress`
    /// receives the number added so far.
    pub async fn import_parts(
        &self,
        parts: mpsc::Receiver<ImportPart>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Vec<ClientId>, ClientError> {
        let (sender, mut added) = mpsc::unbounded_channel();
        let mut parts = Some(parts);
        let import = self.audited.run_long_in_parts(IMPORT_TIMEOUT, move |tx, appended| {
            // Parts come once. A step that runs again has lost those that it took.
            let Some(mut parts) = parts.take() else {
                let why = "the import was interrupted; nothing was imported; import it again";
                return Err(DbError::Unavailable(why.to_owned()).into());
            };
            enlarge_page_cache(tx)?;
            let written = write_parts(tx, appended, &mut parts, &sender);
            let restored = restore_page_cache(tx);
            let ids = written?;
            restored?;
            Ok(ids)
        });
        tokio::pin!(import);
        let imported = loop {
            tokio::select! {
                biased;
                Some(number) = added.recv() => progress(number),
                imported = &mut import => break imported,
            }
        };
        while let Ok(number) = added.try_recv() {
            progress(number);
        }
        imported
    }

    /// Whether there are any clients.
    pub async fn has_clients(&self) -> Result<bool, ClientError> {
        let found: i64 = self.db.fetch_one(query(ANY)).await?;
        Ok(found > 0)
    }
}
