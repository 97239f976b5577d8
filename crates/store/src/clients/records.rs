//! Lists and changes of client records. Every step takes its own permit; a change is in the transaction that records its
//! decision (`audit/step.rs`). Reads of records are in `reads`.

use crate::ClientError;
use crate::DbError;
use crate::audit::principal::ensure_principal_unchanged;
use crate::audit::step::AuditedSteps;
use crate::clients::changes::{archive_client, change_client, set_owner};
use crate::clients::entries::{
    archive_entry, change_entry, ensure_entry_capacity, find_entry, insert_entries, recount_entries,
    total_entries,
};
use crate::clients::import::{add_clients, allocate_ids, created};
use crate::clients::list::list;
use crate::clients::list_filter::{ListFilter, restrict_owner};
use crate::clients::locks::{LockMode, is_owner_unchanged, lock_client, lock_for_change, lock_owners};
use crate::clients::page_slots::PageSlots;
use crate::clients::rows::{ensure_active_member, ensure_person_exists};
use crate::clients::same_name::clients_with_name;
use crate::clients::types::{
    ArchiveChange, ClientChange, ClientOwner, ClientPage, ClientQuery, EntryChange, NewClient, NewEntry,
    PastReassignment, SaveOutcome,
};
use crate::clients::unsaved_rows::{FormOfPerson, UnsavedForm, delete_unsaved_text};
use crate::db::Db;
use crate::db::error_codes::LONG_RESPONSE_TIMEOUT;
use crate::db::{QueryError, Tx, from_row, query};
use chancery_domain::{
    AccessRequest, Action, AuditRow, Client, ClientId, ClientName, Decision, Entry, EntryId, PersonId,
    UnixMillis, Version,
};
use chancery_policy::{
    ArchiveClient, AuthzAction, CreateClient, EditClient, ListClients, Permit, ReassignClient,
};
use std::collections::{BTreeMap, HashSet};

/// Returns one row in any case, so that an id without a client takes as long.
const OWNER: &str = "SELECT (SELECT owner_id FROM clients WHERE id = $1)";
const CLIENT_OWNERS: &str = "SELECT id, owner_id FROM clients WHERE id > $1 ORDER BY id LIMIT $2";
/// The index separates archived clients, so each kind is one index scan.
const CLIENTS_OF_OWNER: &str = "SELECT id, owner_id FROM \
    (SELECT id, owner_id FROM clients WHERE owner_id = $3 AND is_archived = $4 AND id > $1 ORDER BY id LIMIT $2) AS active \
    UNION ALL SELECT id, owner_id FROM \
    (SELECT id, owner_id FROM clients WHERE owner_id = $3 AND is_archived = $5 AND id > $1 ORDER BY id LIMIT $2) AS archived \
    ORDER BY id LIMIT $2";

/// The clients that were reassigned at this time. The audit log finds them, their versions know the former owner.
const REASSIGNED_AT: &str = "SELECT c.id, c.owner_id, f.owner_id AS former_owner_id, \
    CAST(CASE WHEN o.removed_at_ms IS NULL AND NOT EXISTS (SELECT 1 FROM client_versions l \
        WHERE l.client_id = n.client_id AND l.version > n.version AND l.owner_id <> n.owner_id) THEN 1 ELSE 0 END AS BIGINT) \
        AS can_undo \
    FROM (SELECT DISTINCT client_id, at_ms FROM audit_rows WHERE at_ms = $1 AND action = $2 AND decision = $3) AS a \
    JOIN client_versions n ON n.client_id = a.client_id AND n.at_ms = a.at_ms \
    JOIN client_versions f ON f.client_id = n.client_id AND f.version = n.version - 1 AND f.owner_id <> n.owner_id \
    JOIN clients c ON c.id = n.client_id JOIN people o ON o.id = f.owner_id ORDER BY c.id";

from_row!(PastReassignment {
    now: ClientOwner::from_row,
    former_owner: "former_owner_id",
    can_undo: flag("can_undo")
});

pub(crate) fn clients_of<A: AuthzAction>(permits: &[Permit<A>]) -> Vec<ClientId> {
    permits.iter().filter_map(Permit::client).collect()
}

fn no_row(of: &str) -> ClientError {
    DbError::Unavailable(format!("the database returned no row for {of}")).into()
}

/// Deletes the principal's unsaved text of a form that was just saved.
fn delete_saved_text(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    client: ClientId,
    form: UnsavedForm,
) -> Result<(), QueryError> {
    match access_request.by.person() {
        Some(person) => delete_unsaved_text(tx, FormOfPerson { person, client, form }),
        None => Ok(()),
    }
}

/// Adds an entry, and deletes the unsaved text of the form that it was typed into.
async fn insert_entry(
    audited: &AuditedSteps,
    permit: Permit<EditClient>,
    new: NewEntry,
    saved_form: Option<UnsavedForm>,
) -> Result<Entry, ClientError> {
    let client = permit.client().unwrap_or(ClientId(0));
    let added = audited
        .run(vec![permit.to_audit_row()], move |tx| {
            // The decision is recorded even if no client has this id.
            let Some(found) = lock_for_change(tx, &permit)? else { return Ok(None) };
            ensure_entry_capacity(&found.client.name, total_entries(&found.counts), 1)?;
            ensure_person_exists(tx, new.author)?;
            let id = found.client.id;
            for number in allocate_ids(tx, "entries", 1)? {
                insert_entries(tx, permit.access_request(), &[(EntryId(number), id, &new)])?;
                recount_entries(tx, id)?;
                if let Some(form) = saved_form {
                    delete_saved_text(tx, permit.access_request(), id, form)?;
                }
                if let Some(entry) = find_entry(tx, id, EntryId(number))? {
                    return Ok(Some(entry));
                }
            }
            Err(no_row("the entry"))
        })
        .await?;
    added.ok_or(ClientError::NoSuchClient(client))
}

/// Client records.
#[derive(Clone)]
pub struct Clients {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
    pub(crate) page_slots: PageSlots,
}

impl Clients {
    pub async fn owner_of(&self, client: ClientId) -> Result<Option<PersonId>, ClientError> {
        let found: Option<i64> = self.db.fetch_one(query(OWNER).bind(client.0)).await?;
        Ok(found.map(PersonId))
    }

    /// Records the decision first. The page is then read without blocking writers.
    pub async fn list_clients(
        &self,
        permit: Permit<ListClients>,
        query: &ClientQuery,
    ) -> Result<ClientPage, ClientError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        let Some(filter) = ListFilter::of(permit.scope(), query) else {
            return Ok(ClientPage::default());
        };
        let query = query.clone();
        // Each statement checks ownership itself, and the principal is checked after them. A search may scan many
        // clients, and must not block the ledger or other records.
        self.db
            .read(move |tx| {
                let page = list(tx, permit.access_request(), &filter, &query)?;
                ensure_principal_unchanged::<ClientError>(tx, permit.by())?;
                Ok(page)
            })
            .await
    }

    /// The clients with this name that the principal may read, archived ones too: at most `MAX_SAME_NAME_CLIENTS`.
    pub async fn clients_with_name(
        &self,
        permit: Permit<ListClients>,
        name: &ClientName,
    ) -> Result<Vec<Client>, ClientError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        let name = name.clone();
        self.db
            .read(move |tx| {
                let found = clients_with_name(tx, permit.scope(), &name)?;
                ensure_principal_unchanged::<ClientError>(tx, permit.by())?;
                Ok(found)
            })
            .await
    }

    /// Fails with `NoSuchPerson` if the owner was removed.
    pub async fn create_client(
        &self,
        permit: Permit<CreateClient>,
        new: NewClient,
    ) -> Result<ClientId, ClientError> {
        let (by, new) = (permit.by(), [(permit, new)]);
        self.audited
            .run_as(vec![by], move |tx| {
                let decisions = add_clients(tx, &new)?;
                let created = created(&decisions).into_iter().next();
                Ok((created.ok_or_else(|| no_row("the new client"))?, decisions))
            })
            .await
    }

    pub async fn edit_client(
        &self,
        permit: Permit<EditClient>,
        change: ClientChange,
    ) -> Result<SaveOutcome<Client>, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(found) = lock_for_change(tx, &permit)? else {
                    return Ok(SaveOutcome::NotFound);
                };
                let (id, access_request) = (found.client.id, permit.access_request());
                let outcome = change_client(tx, access_request, found, &change)?;
                if matches!(outcome, SaveOutcome::Saved(_)) {
                    delete_saved_text(tx, access_request, id, UnsavedForm::Details)?;
                }
                Ok(outcome)
            })
            .await
    }

    /// Archives or restores the client. If it is in that state already, nothing changes.
    pub async fn set_client_archived(
        &self,
        permit: Permit<ArchiveClient>,
        change: ArchiveChange,
    ) -> Result<SaveOutcome<Client>, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| match lock_for_change(tx, &permit)? {
                Some(found) => Ok(archive_client(tx, permit.access_request(), found, change)?),
                None => Ok(SaveOutcome::NotFound),
            })
            .await
    }

    /// Fails with `NoSuchPerson` if the new owner was removed. With a version, only that version is changed, so that an
    /// undo never undoes anything newer.
    pub async fn reassign_client(
        &self,
        permit: Permit<ReassignClient>,
        to: PersonId,
        version: Option<Version>,
    ) -> Result<SaveOutcome<Client>, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(found) = lock_for_change(tx, &permit)? else {
                    return Ok(SaveOutcome::NotFound);
                };
                if version.is_some_and(|version| version != found.client.version) {
                    return Ok(SaveOutcome::Conflict(found.client));
                }
                ensure_active_member(tx, to)?;
                let id = found.client.id;
                if found.client.owner.id != to {
                    set_owner(tx, permit.access_request(), &[id], to)?;
                }
                let current = lock_client(tx, id, LockMode::Changing)?;
                Ok(current.map_or(SaveOutcome::NotFound, |current| SaveOutcome::Saved(current.client)))
            })
            .await
    }

    /// Reassigns all clients, to the owners that they are listed under, or none. Returns how many got a new owner.
    pub async fn reassign_clients(
        &self,
        moves: BTreeMap<PersonId, Vec<Permit<ReassignClient>>>,
    ) -> Result<u64, ClientError> {
        let decisions: Vec<AuditRow> = moves.values().flatten().map(Permit::to_audit_row).collect();
        self.audited
            .run_long(LONG_RESPONSE_TIMEOUT, decisions, move |tx| {
                let clients = moves.values().flatten().filter_map(Permit::client).collect();
                let owners = lock_owners(tx, clients, LockMode::Changing)?;
                let (mut total, mut seen) = (0, HashSet::new());
                for (to, permits) in &moves {
                    ensure_active_member(tx, *to)?;
                    let mut moved = Vec::new();
                    for permit in permits {
                        let Some(client) = permit.client() else { continue };
                        if !is_owner_unchanged(&owners, permit) {
                            return Err(ClientError::OwnerChanged(client));
                        }
                        // A client may be listed twice, but moves once.
                        if owners.get(&client).is_some_and(|owner| owner != to) && seen.insert(client) {
                            moved.push((permit.access_request(), client));
                        }
                    }
                    for same in moved.chunk_by(|one, other| (one.0.by, one.0.at) == (other.0.by, other.0.at))
                    {
                        let clients: Vec<ClientId> = same.iter().map(|(_, client)| *client).collect();
                        if let Some((access_request, _)) = same.first() {
                            set_owner(tx, access_request, &clients, *to)?;
                        }
                    }
                    total += moved.len() as u64;
                }
                Ok(total)
            })
            .await
    }

    /// The clients that the principal may read and that got another owner at this time, for an undo. Callers ask the
    /// policy about each.
    pub async fn reassigned_at(
        &self,
        permit: &Permit<ListClients>,
        at: UnixMillis,
    ) -> Result<Vec<PastReassignment>, ClientError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        let Some(owner) = restrict_owner(permit.scope(), None) else { return Ok(Vec::new()) };
        let (action, decision) = (Action::ReassignClient.as_str(), Decision::Allowed.as_str());
        let read = query(REASSIGNED_AT).bind(at.0).bind(action).bind(decision);
        let by = permit.by();
        self.db
            .read(move |tx| {
                let mut found: Vec<PastReassignment> = read.fetch_all(tx)?;
                ensure_principal_unchanged::<ClientError>(tx, by)?;
                found.retain(|past| owner.is_none_or(|owner| past.now.owner == owner));
                Ok(found)
            })
            .await
    }

    /// Adds an entry from the form of a new one, whose unsaved text is deleted.
    pub async fn add_entry(&self, permit: Permit<EditClient>, new: NewEntry) -> Result<Entry, ClientError> {
        let form = Some(UnsavedForm::NewEntry(new.kind));
        insert_entry(&self.audited, permit, new, form).await
    }

    /// Adds an entry that was not typed into the form of a new one.
    pub async fn add_copied_entry(
        &self,
        permit: Permit<EditClient>,
        new: NewEntry,
    ) -> Result<Entry, ClientError> {
        insert_entry(&self.audited, permit, new, None).await
    }

    pub async fn edit_entry(
        &self,
        permit: Permit<EditClient>,
        change: EntryChange,
    ) -> Result<SaveOutcome<Entry>, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(found) = lock_for_change(tx, &permit)? else {
                    return Ok(SaveOutcome::NotFound);
                };
                let (id, access_request) = (found.client.id, permit.access_request());
                let outcome = change_entry(tx, access_request, id, &change)?;
                if matches!(outcome, SaveOutcome::Saved(_)) {
                    delete_saved_text(tx, access_request, id, UnsavedForm::Entry(change.entry))?;
                }
                Ok(outcome)
            })
            .await
    }

    pub async fn set_entry_archived(
        &self,
        permit: Permit<EditClient>,
        entry: EntryId,
        change: ArchiveChange,
    ) -> Result<SaveOutcome<Entry>, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| match lock_for_change(tx, &permit)? {
                Some(found) => {
                    Ok(archive_entry(tx, permit.access_request(), found.client.id, entry, change)?)
                }
                None => Ok(SaveOutcome::NotFound),
            })
            .await
    }

    /// The clients that the principal may read, by id, archived ones included: up to `limit` after the given one.
    /// Callers ask the policy about each; no record data is returned. The decision is recorded with the first page.
    pub async fn client_owners(
        &self,
        permit: &Permit<ListClients>,
        owner: Option<PersonId>,
        after: Option<ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientOwner>, ClientError> {
        if after.is_none() {
            self.audited.record(vec![permit.to_audit_row()]).await?;
        }
        let Some(owner) = restrict_owner(permit.scope(), owner) else { return Ok(Vec::new()) };
        let after = after.map_or(i64::MIN, |client| client.0);
        let read = match owner {
            None => query(CLIENT_OWNERS).bind(after).bind(i64::from(limit)),
            Some(owner) => {
                let of_owner = query(CLIENTS_OF_OWNER).bind(after).bind(i64::from(limit)).bind(owner.0);
                of_owner.bind(false).bind(true)
            }
        };
        let by = permit.by();
        self.db
            .read(move |tx| {
                let found: Vec<ClientOwner> = read.fetch_all(tx)?;
                ensure_principal_unchanged::<ClientError>(tx, by)?;
                Ok(found)
            })
            .await
    }
}
