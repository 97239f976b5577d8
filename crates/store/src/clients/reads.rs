//! Reads of records. A read that fits in a page is one step: it records the decision, counts the view, and reads, in one
//! transaction. Exports and whole records are longer. Their decisions are recorded here, and `record_reader` reads them
//! afterwards, page by page.

use crate::ClientError;
use crate::audit::principal::distinct;
use crate::audit::step::AuditedSteps;
use crate::clients::entries::{find_entries, find_entry, read_page};
use crate::clients::locks::{LockMode, is_owner_unchanged, lock_for_reading, lock_owners};
use crate::clients::record_reader::{RecordEntries, RecordReader, RecordedRead};
use crate::clients::records::{Clients, clients_of};
use crate::clients::rows::StoredClient;
use crate::clients::types::{ClientRecord, ClientVersion, EntryQuery, EntryVersion, VersionQuery};
use crate::clients::versions::{versions_of_client, versions_of_entry};
use crate::clients::views::{latest_views, record_views};
use crate::db::Tx;
use chancery_domain::{AuditRow, Client, ClientId, Entry, EntryId};
use chancery_policy::{AuthzAction, EditClient, ExportClient, Permit, ReadClient};

/// Most decisions in one transaction of an export. Each has a row in the audit log and counts a view.
const MAX_DECISIONS_PER_STEP: usize = 50;

/// The client of the permit, after counting this view of it. `None` if there is no such client, as the policy saw too.
pub(crate) fn view_client<A: AuthzAction>(
    tx: &mut Tx<'_>,
    permit: &Permit<A>,
) -> Result<Option<StoredClient>, ClientError> {
    let Some(found) = lock_for_reading(tx, permit)? else { return Ok(None) };
    record_views(tx, permit.access_request(), &[found.client.id])?;
    Ok(Some(found))
}

/// Records the decision and the view of a record that is read afterwards.
async fn record_read<A: AuthzAction>(
    audited: &AuditedSteps,
    permit: Permit<A>,
) -> Result<Option<RecordedRead>, ClientError> {
    audited
        .run(vec![permit.to_audit_row()], move |tx| {
            let found = view_client(tx, &permit)?;
            Ok(found.map(|StoredClient { client, .. }| RecordedRead {
                client: client.id,
                owner: client.owner.id,
                by: permit.by(),
            }))
        })
        .await
}

/// Records the decisions and views of those clients that still have their owners.
async fn record_exports(
    audited: &AuditedSteps,
    permits: Vec<Permit<ExportClient>>,
) -> Result<Vec<RecordedRead>, ClientError> {
    let principals = distinct(permits.iter().map(Permit::by));
    audited
        .run_as(principals, move |tx| {
            let owners = lock_owners(tx, clients_of(&permits), LockMode::Reading)?;
            let permits = permits.iter().filter(|permit| is_owner_unchanged(&owners, permit));
            let valid: Vec<(&Permit<ExportClient>, RecordedRead)> = permits
                .filter_map(|permit| {
                    let (client, owner) = (permit.client()?, permit.owner()?);
                    Some((permit, RecordedRead { client, owner, by: permit.by() }))
                })
                .collect();
            let same_request = |permit: &Permit<ExportClient>| (permit.by(), permit.access_request().at);
            for same in valid.chunk_by(|one, other| same_request(one.0) == same_request(other.0)) {
                let clients: Vec<ClientId> = same.iter().map(|(_, read)| read.client).collect();
                if let Some((permit, _)) = same.first() {
                    record_views(tx, permit.access_request(), &clients)?;
                }
            }
            let decisions: Vec<AuditRow> = valid.iter().map(|(permit, _)| permit.to_audit_row()).collect();
            Ok((valid.into_iter().map(|(_, read)| read).collect(), decisions))
        })
        .await
}

impl Clients {
    /// `None` if there is no such client. Only principals who may read every client learn that.
    pub async fn read_client(
        &self,
        permit: Permit<ReadClient>,
        filter: &EntryQuery,
    ) -> Result<Option<ClientRecord>, ClientError> {
        let filter = filter.clone();
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(StoredClient { client, counts }) = view_client(tx, &permit)? else {
                    return Ok(None);
                };
                let views = latest_views(tx, client.id)?;
                let (entries, has_more) = read_page(tx, client.id, &filter)?;
                Ok(Some(ClientRecord { client, entries, has_more, counts, views }))
            })
            .await
    }

    /// The client with all entries that are not archived, by kind and newest first, in pages. `None` as in
    /// `read_client`.
    pub async fn open_record(
        &self,
        permit: Permit<ReadClient>,
    ) -> Result<Option<RecordReader<ReadClient>>, ClientError> {
        let found = record_read(&self.audited, permit).await?;
        Ok(found.map(|read| {
            let (db, page_slots) = (self.db.clone(), self.page_slots.clone());
            RecordReader::new(db, page_slots, RecordEntries::ActiveByKind, vec![read])
        }))
    }

    /// Whole records with all entries, archived ones included and oldest first, in pages. A client with a new owner is
    /// left out.
    pub async fn open_records(
        &self,
        permits: Vec<Permit<ExportClient>>,
    ) -> Result<RecordReader<ExportClient>, ClientError> {
        let mut recorded = Vec::with_capacity(permits.len());
        let mut permits = permits.into_iter();
        while !permits.as_slice().is_empty() {
            let step: Vec<_> = permits.by_ref().take(MAX_DECISIONS_PER_STEP).collect();
            recorded.extend(record_exports(&self.audited, step).await?);
        }
        let (db, page_slots) = (self.db.clone(), self.page_slots.clone());
        Ok(RecordReader::new(db, page_slots, RecordEntries::AllOldestFirst, recorded))
    }

    /// Lets the reader go on with a client whose owner has changed, under a new decision. Fails with `OwnerChanged` if
    /// it has changed again.
    pub async fn renew_permit<A: AuthzAction>(
        &self,
        permit: Permit<A>,
        reader: &mut RecordReader<A>,
    ) -> Result<(), ClientError> {
        let client = permit.client().unwrap_or(ClientId(0));
        let found = record_read(&self.audited, permit).await?;
        reader.renew(found.ok_or(ClientError::NoSuchClient(client))?);
        Ok(())
    }

    /// The client, and those of the given entries that belong to it and are not archived, newest first: the material
    /// for drafting a letter. `None` as in `read_client`.
    pub async fn read_for_draft(
        &self,
        permit: Permit<EditClient>,
        entries: &[EntryId],
    ) -> Result<Option<(Client, Vec<Entry>)>, ClientError> {
        let ids = entries.to_vec();
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(StoredClient { client, .. }) = view_client(tx, &permit)? else { return Ok(None) };
                let entries = find_entries(tx, client.id, &ids)?;
                Ok(Some((client, entries)))
            })
            .await
    }

    /// Newest first. `None` as in `read_client`.
    pub async fn client_versions(
        &self,
        permit: Permit<ReadClient>,
        filter: VersionQuery,
    ) -> Result<Option<(Client, Vec<ClientVersion>)>, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(StoredClient { client, .. }) = view_client(tx, &permit)? else { return Ok(None) };
                let versions = versions_of_client(tx, &client, filter)?;
                Ok(Some((client, versions)))
            })
            .await
    }

    /// Newest first. `None` if the client has no such entry, which counts no view.
    pub async fn entry_versions(
        &self,
        permit: Permit<ReadClient>,
        entry: EntryId,
        filter: VersionQuery,
    ) -> Result<Option<(Entry, Vec<EntryVersion>)>, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(found) = lock_for_reading(tx, &permit)? else { return Ok(None) };
                let client = found.client.id;
                let Some(entry) = find_entry(tx, client, entry)? else { return Ok(None) };
                record_views(tx, permit.access_request(), &[client])?;
                let versions = versions_of_entry(tx, &entry, filter)?;
                Ok(Some((entry, versions)))
            })
            .await
    }
}
