//! The steps about client records, each for a permit of its own: the decision is written down in the transaction that does what
//! it allows (`audit/step.rs`).

use crate::ClientError;
use crate::DbError;
use crate::audit::step::AuditedSteps;
use crate::clients::changes::{archive_client, change_client, is_still_owned, lock_owners, move_clients};
use crate::clients::entries::{
    all_entries, archive_entry, change_entry, entries_among, find_entry, insert_entries, into_page,
    leave_room_for, recount_entries, select_page,
};
use crate::clients::export::whole_records;
use crate::clients::import::created;
use crate::clients::import::{add_clients, draw_numbers};
use crate::clients::list::{ListFilter, list, owner_within};
use crate::clients::rows::{
    LockFor, lock_client, lock_for_change, lock_for_read, must_be_known, must_be_member,
};
use crate::clients::types::{
    Changed, ClientChange, ClientPage, ClientQuery, ClientRecord, ClientVersion, EntriesWanted, EntryChange,
    EntryVersion, NewClient, NewEntry, Ownership, VersionsWanted,
};
use crate::clients::versions::{versions_of_client, versions_of_entry};
use crate::clients::views::{record_views, views_of};
use crate::db::Db;
use crate::db::error_codes::LONG_ANSWER_TIMEOUT;
use crate::db::query;
use chancery_domain::{AuditRow, Client, ClientId, Entry, EntryId, PersonId};
use chancery_policy::{
    Act, ArchiveClient, CreateClient, EditClient, ExportClient, ListClients, Permit, ReadClient,
    ReassignClient,
};
use std::collections::HashSet;

/// One row in any case, so that it takes as long for a number that is no client's.
const OWNER: &str = "SELECT (SELECT owner_id FROM clients WHERE id = $1)";
const OWNERSHIPS: &str = "SELECT id, owner_id FROM clients WHERE id > $1 ORDER BY id LIMIT $2";
/// The index has those that are archived apart, so each kind is a walk by itself.
const OWNERSHIPS_OF: &str = "SELECT id, owner_id FROM \
    (SELECT id, owner_id FROM clients WHERE owner_id = $3 AND is_archived = $4 AND id > $1 ORDER BY id LIMIT $2) AS active \
    UNION ALL SELECT id, owner_id FROM \
    (SELECT id, owner_id FROM clients WHERE owner_id = $3 AND is_archived = $5 AND id > $1 ORDER BY id LIMIT $2) AS archived \
    ORDER BY id LIMIT $2";

fn clients_of<A: Act>(permits: &[Permit<A>]) -> Vec<ClientId> {
    permits.iter().filter_map(Permit::client).collect()
}

/// Client records.
#[derive(Clone)]
pub struct Clients {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl Clients {
    pub async fn owner_of(&self, client: ClientId) -> Result<Option<PersonId>, ClientError> {
        let found: Option<i64> = self.db.fetch_one(query(OWNER).bind(client.0)).await?;
        Ok(found.map(PersonId))
    }

    /// The decision is written down first; then the page is read, without keeping anybody waiting who writes.
    pub async fn list_clients(
        &self,
        permit: Permit<ListClients>,
        query: &ClientQuery,
    ) -> Result<ClientPage, ClientError> {
        self.audited.record(&[permit.to_audit_row()]).await?;
        let Some(filter) = ListFilter::of(permit.scope(), query) else {
            return Ok(ClientPage { lines: Vec::new(), total: 0 });
        };
        // Each statement looks for itself whose the clients are, and a search may look at many: the ledger and other
        // people's records do not wait for it.
        self.db
            .read(&(&filter, query), |conn, (filter, query)| {
                Box::pin(async move { Ok(list(conn, filter, query.order, query.page).await?) })
            })
            .await
    }

    /// None where there is no such client, which only those learn who may read every one.
    pub async fn read_client(
        &self,
        permit: Permit<ReadClient>,
        wanted: &EntriesWanted,
    ) -> Result<Option<ClientRecord>, ClientError> {
        let found = self
            .audited
            .run(&[permit.to_audit_row()], &(&permit, wanted), |conn, (permit, wanted)| {
                Box::pin(async move {
                    let Some(client) = lock_for_read(conn, permit).await? else { return Ok(None) };
                    let id = client.client.id;
                    record_views(conn, permit.asked(), &[id]).await?;
                    let views = views_of(conn, &[id]).await?.remove(&id).unwrap_or_default();
                    let entries = match wanted {
                        EntriesWanted::Page { .. } => {
                            Some(select_page(id, wanted, None).fetch_all(conn).await?)
                        }
                        EntriesWanted::All => None,
                    };
                    Ok(Some((client, views, entries)))
                })
            })
            .await?;
        let Some((client, views, entries)) = found else { return Ok(None) };
        if let Some(entries) = entries {
            let (entries, has_more) = into_page(wanted, entries);
            return Ok(Some(client.into_record(entries, has_more, views)));
        }
        // All of a long record takes a while, for which nobody else's waits. The statement looks itself whose it is.
        let (id, owner) = (client.client.id, client.client.owner.id);
        let entries = self.db.fetch_all(select_page(id, wanted, Some(owner))).await?;
        if entries.is_empty() && all_entries(&client.counts) > client.counts.archived {
            return Err(ClientError::OwnerChanged(id));
        }
        let (entries, has_more) = into_page(wanted, entries);
        Ok(Some(client.into_record(entries, has_more, views)))
    }

    /// The client, and those of the given entries that are its own and not archived, newest first: what a letter is drafted
    /// from. None like `read_client`.
    pub async fn read_for_letter(
        &self,
        permit: Permit<EditClient>,
        entries: &[EntryId],
    ) -> Result<Option<(Client, Vec<Entry>)>, ClientError> {
        self.audited
            .run(&[permit.to_audit_row()], &(&permit, entries), |conn, (permit, entries)| {
                Box::pin(async move {
                    let Some(found) = lock_for_read(conn, permit).await? else { return Ok(None) };
                    record_views(conn, permit.asked(), &[found.client.id]).await?;
                    let entries = entries_among(conn, found.client.id, entries).await?;
                    Ok(Some((found.client, entries)))
                })
            })
            .await
    }

    /// Newest first. None like `read_client`.
    pub async fn client_versions(
        &self,
        permit: Permit<ReadClient>,
        wanted: VersionsWanted,
    ) -> Result<Option<(Client, Vec<ClientVersion>)>, ClientError> {
        self.audited
            .run(&[permit.to_audit_row()], &(&permit, wanted), |conn, (permit, wanted)| {
                Box::pin(async move {
                    let Some(found) = lock_for_read(conn, permit).await? else { return Ok(None) };
                    record_views(conn, permit.asked(), &[found.client.id]).await?;
                    let versions = versions_of_client(conn, &found.client, *wanted).await?;
                    Ok(Some((found.client, versions)))
                })
            })
            .await
    }

    /// Newest first. None where the client has no such entry.
    pub async fn entry_versions(
        &self,
        permit: Permit<ReadClient>,
        entry: EntryId,
        wanted: VersionsWanted,
    ) -> Result<Option<(Entry, Vec<EntryVersion>)>, ClientError> {
        let args = (&permit, entry, wanted);
        self.audited
            .run(&[permit.to_audit_row()], &args, |conn, (permit, entry, wanted)| {
                Box::pin(async move {
                    let Some(found) = lock_for_read(conn, permit).await? else { return Ok(None) };
                    let id = found.client.id;
                    let Some(entry) = find_entry(conn, id, *entry).await? else { return Ok(None) };
                    record_views(conn, permit.asked(), &[id]).await?;
                    let versions = versions_of_entry(conn, &entry, *wanted).await?;
                    Ok(Some((entry, versions)))
                })
            })
            .await
    }

    /// Refused with `NoSuchPerson` where the owner was removed.
    pub async fn create_client(
        &self,
        permit: Permit<CreateClient>,
        new: NewClient,
    ) -> Result<ClientId, ClientError> {
        let created = self
            .audited
            .run_then_link(&[(permit, new)], |conn, new| {
                Box::pin(async move {
                    let decisions = add_clients(conn, new).await?;
                    Ok((created(&decisions), decisions))
                })
            })
            .await?;
        let created = created.into_iter().next();
        Ok(created.ok_or_else(|| DbError::Unavailable("the client was not given back".to_owned()))?)
    }

    pub async fn edit_client(
        &self,
        permit: Permit<EditClient>,
        change: ClientChange,
    ) -> Result<Changed<Client>, ClientError> {
        self.audited
            .run(&[permit.to_audit_row()], &(&permit, &change), |conn, (permit, change)| {
                Box::pin(async move {
                    match lock_for_change(conn, permit).await? {
                        Some(client) => Ok(change_client(conn, permit.asked(), client, change).await?),
                        None => Ok(Changed::Gone),
                    }
                })
            })
            .await
    }

    /// Puts it away, or takes it out again. Where it is so already, nothing is changed.
    pub async fn set_client_archived(
        &self,
        permit: Permit<ArchiveClient>,
        is_archived: bool,
    ) -> Result<Changed<Client>, ClientError> {
        let args = (&permit, is_archived);
        self.audited
            .run(&[permit.to_audit_row()], &args, |conn, (permit, is_archived)| {
                Box::pin(async move {
                    match lock_for_change(conn, permit).await? {
                        Some(client) => Ok(archive_client(conn, permit.asked(), client, *is_archived).await?),
                        None => Ok(Changed::Gone),
                    }
                })
            })
            .await
    }

    /// Refused with `NoSuchPerson` where the new owner was removed.
    pub async fn reassign_client(
        &self,
        permit: Permit<ReassignClient>,
        to: PersonId,
    ) -> Result<Changed<Client>, ClientError> {
        self.audited
            .run(&[permit.to_audit_row()], &(&permit, to), |conn, (permit, to)| {
                Box::pin(async move {
                    let Some(found) = lock_for_change(conn, permit).await? else { return Ok(Changed::Gone) };
                    must_be_member(conn, *to).await?;
                    let id = found.client.id;
                    if found.client.owner.id != *to {
                        move_clients(conn, permit.asked(), &[id], *to).await?;
                    }
                    let now = lock_client(conn, id, LockFor::Changing).await?;
                    Ok(now.map_or(Changed::Gone, |now| Changed::Saved(now.client)))
                })
            })
            .await
    }

    /// All or none of them. Gives how many changed hands.
    pub async fn reassign_clients(
        &self,
        permits: Vec<Permit<ReassignClient>>,
        to: PersonId,
    ) -> Result<u64, ClientError> {
        let decisions: Vec<AuditRow> = permits.iter().map(Permit::to_audit_row).collect();
        let args = (&permits, to);
        self.audited
            .run_long(LONG_ANSWER_TIMEOUT, &decisions, &args, |conn, (permits, to)| {
                Box::pin(async move {
                    let owners = lock_owners(conn, clients_of(permits), LockFor::Changing).await?;
                    must_be_member(conn, *to).await?;
                    let (mut moved, mut seen) = (Vec::new(), HashSet::new());
                    for permit in permits.iter() {
                        let Some(client) = permit.client() else { continue };
                        if !is_still_owned(&owners, permit) {
                            return Err(ClientError::OwnerChanged(client).into());
                        }
                        // A client that is there twice moves once.
                        if owners.get(&client).is_some_and(|owner| owner != to) && seen.insert(client) {
                            moved.push((permit.asked(), client));
                        }
                    }
                    for same in moved.chunk_by(|one, other| (one.0.by, one.0.at) == (other.0.by, other.0.at))
                    {
                        let clients: Vec<ClientId> = same.iter().map(|(_, client)| *client).collect();
                        if let Some((asked, _)) = same.first() {
                            move_clients(conn, asked, &clients, *to).await?;
                        }
                    }
                    Ok(moved.len() as u64)
                })
            })
            .await
    }

    pub async fn add_entry(&self, permit: Permit<EditClient>, new: NewEntry) -> Result<Entry, ClientError> {
        let added = self
            .audited
            .run(&[permit.to_audit_row()], &(&permit, &new), |conn, (permit, new)| {
                Box::pin(async move {
                    // That somebody may write about a number that is no client's is on record like any other decision.
                    let Some(found) = lock_for_change(conn, permit).await? else { return Ok(None) };
                    leave_room_for(&found.client.name, all_entries(&found.counts), 1)?;
                    must_be_known(conn, new.author).await?;
                    let id = found.client.id;
                    for number in draw_numbers(conn, "entries", 1).await? {
                        insert_entries(conn, permit.asked(), &[(EntryId(number), id, *new)]).await?;
                        recount_entries(conn, id).await?;
                        if let Some(entry) = find_entry(conn, id, EntryId(number)).await? {
                            return Ok(Some(entry));
                        }
                    }
                    Err(DbError::Unavailable("the entry was not given back".to_owned()).into())
                })
            })
            .await?;
        added.ok_or_else(|| ClientError::NoSuchClient(permit.client().unwrap_or(ClientId(0))))
    }

    pub async fn edit_entry(
        &self,
        permit: Permit<EditClient>,
        change: EntryChange,
    ) -> Result<Changed<Entry>, ClientError> {
        self.audited
            .run(&[permit.to_audit_row()], &(&permit, &change), |conn, (permit, change)| {
                Box::pin(async move {
                    match lock_for_change(conn, permit).await? {
                        Some(found) => Ok(change_entry(conn, permit.asked(), found.client.id, change).await?),
                        None => Ok(Changed::Gone),
                    }
                })
            })
            .await
    }

    pub async fn set_entry_archived(
        &self,
        permit: Permit<EditClient>,
        entry: EntryId,
        is_archived: bool,
    ) -> Result<Changed<Entry>, ClientError> {
        let args = (&permit, entry, is_archived);
        self.audited
            .run(&[permit.to_audit_row()], &args, |conn, (permit, entry, is_archived)| {
                Box::pin(async move {
                    match lock_for_change(conn, permit).await? {
                        Some(found) => {
                            Ok(archive_entry(conn, permit.asked(), found.client.id, *entry, *is_archived)
                                .await?)
                        }
                        None => Ok(Changed::Gone),
                    }
                })
            })
            .await
    }

    /// Those that the permit's holder may read, by number, archived ones included: up to `limit` after the given one. To
    /// ask the policy about each of them; nothing of the records. The decision is written down with the first of them.
    pub async fn ownerships(
        &self,
        permit: &Permit<ListClients>,
        owner: Option<PersonId>,
        after: Option<ClientId>,
        limit: u32,
    ) -> Result<Vec<Ownership>, ClientError> {
        if after.is_none() {
            self.audited.record(&[permit.to_audit_row()]).await?;
        }
        let Some(owner) = owner_within(permit.scope(), owner) else { return Ok(Vec::new()) };
        let after = after.map_or(i64::MIN, |client| client.0);
        let read = match owner {
            None => query(OWNERSHIPS).bind(after).bind(i64::from(limit)),
            Some(owner) => {
                let of_owner = query(OWNERSHIPS_OF).bind(after).bind(i64::from(limit)).bind(owner.0);
                of_owner.bind(false).bind(true)
            }
        };
        Ok(self.db.fetch_all(read).await?)
    }

    /// With all entries, archived ones too. A client that has changed hands is left out.
    pub async fn export_clients(
        &self,
        permits: Vec<Permit<ExportClient>>,
    ) -> Result<Vec<ClientRecord>, ClientError> {
        self.audited
            .run_long_then_link(LONG_ANSWER_TIMEOUT, &permits, |conn, permits| {
                Box::pin(async move {
                    let owners = lock_owners(conn, clients_of(permits), LockFor::Reading).await?;
                    let valid: Vec<&Permit<ExportClient>> = permits
                        .iter()
                        .filter(|permit| permit.owner().is_some() && is_still_owned(&owners, permit))
                        .collect();
                    let ids: Vec<ClientId> = valid.iter().filter_map(|permit| permit.client()).collect();
                    for same in valid
                        .chunk_by(|one, other| (one.by(), one.asked().at) == (other.by(), other.asked().at))
                    {
                        let clients: Vec<ClientId> =
                            same.iter().filter_map(|permit| permit.client()).collect();
                        if let Some(permit) = same.first() {
                            record_views(conn, permit.asked(), &clients).await?;
                        }
                    }
                    let records = whole_records(conn, &ids).await?;
                    Ok((records, valid.iter().map(|permit| permit.to_audit_row()).collect()))
                })
            })
            .await
    }
}
