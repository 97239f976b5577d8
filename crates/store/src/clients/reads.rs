//! Reads of records. The decision and the view are committed first, in a short transaction that reads nothing of the
//! record. The record itself is read after the commit, from a snapshot on a read connection, which checks the owner and
//! the principal again. So no other writer waits for it: SQLite has one writer, and the ledger needs it.

use crate::ClientError;
use crate::audit::principal::{distinct, ensure_principal_unchanged};
use crate::audit::step::AuditedSteps;
use crate::clients::entries::{find_entries, find_entry, has_entry, into_page, select_page};
use crate::clients::locks::{
    LockMode, ensure_owner_unchanged, is_owner_unchanged, lock_owners, permitted_client,
    select_permitted_client, why_not_permitted,
};
use crate::clients::record_reader::{RecordEntries, RecordReader};
use crate::clients::records::{Clients, clients_of};
use crate::clients::rows::StoredClient;
use crate::clients::types::{
    ClientRecord, ClientVersion, EntryQuery, EntryVersion, RecordView, VersionQuery,
};
use crate::clients::versions::{versions_of_client, versions_of_entry};
use crate::clients::views::{record_permitted_view, record_views, record_whole_view, select_views};
use crate::db::{Db, Dialect, FromRow};
use chancery_domain::{AuditRow, Client, ClientId, Entry, EntryId};
use chancery_policy::{AuthzAction, EditClient, ExportClient, Permit, ReadClient};

/// Most decisions in one transaction of an export. Each has a row in the audit log and counts a view.
const MAX_DECISIONS_PER_STEP: usize = 50;

/// Records the decision and the view. `None` if there is no such client, as the policy saw too.
pub(crate) async fn record_read<A: AuthzAction>(
    audited: &AuditedSteps,
    permit: &Permit<A>,
) -> Result<Option<ClientId>, ClientError> {
    if record_whole_view(audited, permit).await? {
        return Ok(permit.client());
    }
    audited
        .run_checked(&[permit.to_audit_row()], permit, |conn, permit| {
            Box::pin(async move {
                let is_counted = record_permitted_view(conn, permit).await?;
                if is_counted && conn.dialect() == Dialect::Sqlite {
                    // There is one writer: what the statement saw holds until the commit.
                    return Ok(permit.client());
                }
                let found = match is_counted {
                    true => permit.client(),
                    false => ensure_owner_unchanged(conn, permit).await?,
                };
                if let Some(client) = found.filter(|_| !is_counted) {
                    record_views(conn, permit.access_request(), &[client]).await?;
                }
                ensure_principal_unchanged::<ClientError>(conn, permit.by()).await?;
                Ok(found)
            })
        })
        .await
}

/// The page of a record whose decision is recorded.
async fn record_page<A: AuthzAction>(
    db: &Db,
    permit: &Permit<A>,
    filter: &EntryQuery,
) -> Result<ClientRecord, ClientError> {
    // No client has this id.
    let id = permit.client().unwrap_or(ClientId(i64::MIN));
    let queries = [select_permitted_client(permit), select_views(id), select_page(id, filter)];
    let [client, views, entries] = db.snapshot_rows(queries).await?;
    let Some(client) = client.first() else {
        return db
            .read(permit, |conn, permit| Box::pin(async move { Err(why_not_permitted(conn, permit).await) }))
            .await;
    };
    let views = views.iter().map(RecordView::read).collect::<Result<_, _>>()?;
    let (entries, has_more) = into_page(entries.iter().map(Entry::read).collect::<Result<_, _>>()?);
    Ok(StoredClient::read(client)?.into_record(entries, has_more, views))
}

impl Clients {
    /// `None` if there is no such client. Only principals who may read every client learn that.
    pub async fn read_client(
        &self,
        permit: Permit<ReadClient>,
        filter: &EntryQuery,
    ) -> Result<Option<ClientRecord>, ClientError> {
        match record_read(&self.audited, &permit).await? {
            Some(_) => record_page(&self.db, &permit, filter).await.map(Some),
            None => Ok(None),
        }
    }

    /// The client with all entries that are not archived, by kind and newest first, in pages. `None` as in
    /// `read_client`.
    pub async fn open_record(
        &self,
        permit: Permit<ReadClient>,
    ) -> Result<Option<RecordReader<ReadClient>>, ClientError> {
        let found = record_read(&self.audited, &permit).await?;
        Ok(found.map(|_| {
            RecordReader::new(
                self.db.clone(),
                self.page_slots.clone(),
                RecordEntries::ActiveByKind,
                vec![permit],
            )
        }))
    }

    /// Whole records with all entries, archived ones included and oldest first, in pages. A client with a new owner is
    /// left out.
    pub async fn open_records(
        &self,
        mut permits: Vec<Permit<ExportClient>>,
    ) -> Result<RecordReader<ExportClient>, ClientError> {
        let mut valid = Vec::with_capacity(permits.len());
        while !permits.is_empty() {
            let rest = permits.split_off(permits.len().min(MAX_DECISIONS_PER_STEP));
            let step = std::mem::replace(&mut permits, rest);
            let principals = distinct(step.iter().map(Permit::by));
            let is_valid = self.audited.run_as(&principals, &step, |conn, permits| {
                Box::pin(async move {
                    let owners = lock_owners(conn, clients_of(permits), LockMode::Reading).await?;
                    let is_valid: Vec<bool> = permits
                        .iter()
                        .map(|permit| permit.owner().is_some() && is_owner_unchanged(&owners, permit))
                        .collect();
                    let permits = permits.iter().zip(&is_valid).filter(|(_, is_valid)| **is_valid);
                    let permits: Vec<&Permit<ExportClient>> = permits.map(|(permit, _)| permit).collect();
                    for same in permits.chunk_by(|one, other| {
                        (one.by(), one.access_request().at) == (other.by(), other.access_request().at)
                    }) {
                        let clients: Vec<ClientId> =
                            same.iter().filter_map(|permit| permit.client()).collect();
                        if let Some(permit) = same.first() {
                            record_views(conn, permit.access_request(), &clients).await?;
                        }
                    }
                    let decisions: Vec<AuditRow> =
                        permits.iter().map(|permit| permit.to_audit_row()).collect();
                    Ok((is_valid, decisions))
                })
            });
            let is_valid: Result<Vec<bool>, ClientError> = is_valid.await;
            valid.extend(
                step.into_iter().zip(is_valid?).filter_map(|(permit, valid)| valid.then_some(permit)),
            );
        }
        Ok(RecordReader::new(self.db.clone(), self.page_slots.clone(), RecordEntries::AllOldestFirst, valid))
    }

    /// Lets the reader go on with a client whose owner has changed, under a new decision. Fails with `OwnerChanged` if
    /// it has changed again.
    pub async fn renew_permit<A: AuthzAction>(
        &self,
        permit: Permit<A>,
        reader: &mut RecordReader<A>,
    ) -> Result<(), ClientError> {
        let found = record_read(&self.audited, &permit).await?;
        found.ok_or_else(|| ClientError::NoSuchClient(permit.client().unwrap_or(ClientId(0))))?;
        reader.replace_permit(permit);
        Ok(())
    }

    /// The client, and those of the given entries that belong to it and are not archived, newest first: the material
    /// for drafting a letter. `None` as in `read_client`.
    pub async fn read_for_draft(
        &self,
        permit: Permit<EditClient>,
        entries: &[EntryId],
    ) -> Result<Option<(Client, Vec<Entry>)>, ClientError> {
        if record_read(&self.audited, &permit).await?.is_none() {
            return Ok(None);
        }
        self.db
            .snapshot(&(&permit, entries), |conn, (permit, entries)| {
                Box::pin(async move {
                    let client = permitted_client(conn, permit).await?.client;
                    let entries = find_entries(conn, client.id, entries).await?;
                    Ok(Some((client, entries)))
                })
            })
            .await
    }

    /// Newest first. `None` as in `read_client`.
    pub async fn client_versions(
        &self,
        permit: Permit<ReadClient>,
        filter: VersionQuery,
    ) -> Result<Option<(Client, Vec<ClientVersion>)>, ClientError> {
        if record_read(&self.audited, &permit).await?.is_none() {
            return Ok(None);
        }
        self.db
            .snapshot(&(&permit, filter), |conn, (permit, filter)| {
                Box::pin(async move {
                    let client = permitted_client(conn, permit).await?.client;
                    let versions = versions_of_client(conn, &client, *filter).await?;
                    Ok(Some((client, versions)))
                })
            })
            .await
    }

    /// Newest first. `None` if the client has no such entry.
    pub async fn entry_versions(
        &self,
        permit: Permit<ReadClient>,
        entry: EntryId,
        filter: VersionQuery,
    ) -> Result<Option<(Entry, Vec<EntryVersion>)>, ClientError> {
        let found: Result<bool, ClientError> = self
            .audited
            .run(&[permit.to_audit_row()], &(&permit, entry), |conn, (permit, entry)| {
                Box::pin(async move {
                    let Some(client) = ensure_owner_unchanged(conn, permit).await? else { return Ok(false) };
                    if !has_entry(conn, client, *entry).await? {
                        return Ok(false);
                    }
                    record_views(conn, permit.access_request(), &[client]).await?;
                    Ok(true)
                })
            })
            .await;
        if !found? {
            return Ok(None);
        }
        self.db
            .snapshot(&(&permit, entry, filter), |conn, (permit, entry, filter)| {
                Box::pin(async move {
                    let client = permitted_client(conn, permit).await?.client.id;
                    let Some(entry) = find_entry(conn, client, *entry).await? else { return Ok(None) };
                    let versions = versions_of_entry(conn, &entry, *filter).await?;
                    Ok(Some((entry, versions)))
                })
            })
            .await
    }
}
