//! The steps about client records, each for a permit of its own (`decided`).

use crate::audit::chain::AuditChain;
use crate::audit::step::{Stopped, decided, decided_at_length};
use crate::clients::changes::{ClientChanges, HeldFor, is_still_owned};
use crate::clients::entries::{Entries, EntryPage, entries_there, leave_room_for};
use crate::clients::import::{MAX_CLIENTS_AT_ONCE, NewClients};
use crate::clients::list::{ClientList, ListFilter, owner_within};
use crate::clients::records::WholeRecords;
use crate::clients::rows::{HeldClients, StoredClient};
use crate::clients::views::ClientLooks;
use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{LONG_ANSWER_TIMEOUT, answer};
use crate::db::transaction::BeginWriting;
use crate::{
    Changed, ClientChange, ClientPage, ClientQuery, ClientRecord, ClientRecords, ClientVersion,
    EntriesWanted, EntryChange, EntryCounts, EntryVersion, Look, NewClient, NewEntry, Ownership, StoreError,
    VersionsWanted,
};
use chancery_domain::{Asked, AuditRow, Client, ClientId, ClientName, Entry, EntryId, PersonId};
use chancery_policy::{
    ArchiveClient, CreateClient, Denial, EditClient, ExportClient, ListClients, Permit, ReadClient,
    ReassignClient,
};
use std::collections::HashSet;
use std::time::Duration;

/// One row in any case, so that it takes as long for a number that is no client's.
/// However large a file is, whoever waits for it this long has something to look into.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(3_600);

const OWNER: &str = "SELECT (SELECT owner_id FROM clients WHERE id = $1)";
const ANY: &str = "SELECT COUNT(*) FROM (SELECT id FROM clients LIMIT 1) AS some_client";
const OWNERSHIPS: &str = "SELECT id, owner_id FROM clients WHERE id > $1 ORDER BY id LIMIT $2";
/// The index has those that are archived apart, so each kind is a walk by itself.
const OWNERSHIPS_OF: &str = "SELECT id, owner_id FROM \
    (SELECT id, owner_id FROM clients WHERE owner_id = $3 AND is_archived = $4 AND id > $1 ORDER BY id LIMIT $2) AS kept \
    UNION ALL SELECT id, owner_id FROM \
    (SELECT id, owner_id FROM clients WHERE owner_id = $3 AND is_archived = $5 AND id > $1 ORDER BY id LIMIT $2) AS away \
    ORDER BY id LIMIT $2";

stored_row! {
    struct StoredOwnership {
        id: i64,
        owner_id: i64,
    }
}

/// The clients of a list of permits.
fn clients_of<A: chancery_policy::Act>(permits: &[Permit<A>]) -> Vec<ClientId> {
    permits.iter().filter_map(Permit::client).collect()
}

for_both_stores! {
    impl ClientRecords {
        async fn owner_of(&self, client: ClientId) -> Result<Option<PersonId>, StoreError> {
            let found: Option<i64> =
                answer(sqlx::query_scalar(OWNER).bind(client.0).fetch_one(&self.reader)).await?;
            Ok(found.map(PersonId))
        }

        async fn note_denial(&self, denial: Denial) -> Result<(), StoreError> {
            let row = [denial.to_audit_row()];
            decided!(self, |transaction| transaction.link(self.lease.writer, &row))
        }

        async fn list_clients(
            &self,
            permit: Permit<ListClients>,
            query: &ClientQuery,
        ) -> Result<ClientPage, StoreError> {
            let row = [permit.to_audit_row()];
            let noted: Result<(), StoreError> =
                decided!(self, |transaction| transaction.link(self.lease.writer, &row));
            noted?;
            let Some(filter) = ListFilter::of(permit.scope(), query) else {
                return Ok(ClientPage { lines: Vec::new(), total: 0 });
            };
            // Each statement looks for itself whose the clients are, and a search may look at many: the ledger and other
            // people's records do not wait for it.
            let page = async {
                let mut connection = self.reader.acquire().await?;
                match connection.list(&filter, query.order, query.page).await {
                    Ok(page) => Ok(Ok(page)),
                    Err(Stopped::Rejected(error)) => Ok(Err(error)),
                    Err(Stopped::Database(error)) => Err(error),
                }
            };
            answer(page).await?
        }

        async fn read_client(
            &self,
            permit: Permit<ReadClient>,
            wanted: &EntriesWanted,
        ) -> Result<Option<ClientRecord>, StoreError> {
            let row = [permit.to_audit_row()];
            let held: Result<Option<(StoredClient, Vec<Look>, Option<EntryPage>)>, StoreError> =
                decided!(self, |transaction| async {
                    transaction.link(self.lease.writer, &row).await?;
                    let Some(client) = transaction.hold_to_read(&permit).await? else { return Ok(None) };
                    let id = ClientId(client.id);
                    transaction.note_looks(permit.asked(), &[id]).await?;
                    let looks = transaction.looks_at(&[id]).await?.remove(&id).unwrap_or_default();
                    let page = match wanted {
                        EntriesWanted::Page { .. } => Some(transaction.entries_of(id, wanted, None).await?),
                        EntriesWanted::All => None,
                    };
                    Ok(Some((client, looks, page)))
                });
            let Some((client, looks, page)) = held? else { return Ok(None) };
            if let Some((entries, has_more)) = page {
                return Ok(Some(client.into_record(entries, has_more, looks)?));
            }
            // All of a long record takes a while, for which nobody else's waits. The statement looks itself whose it is.
            let (id, owner) = (ClientId(client.id), PersonId(client.owner_id));
            let read = async {
                let mut connection = self.reader.acquire().await?;
                match connection.entries_of(id, wanted, Some(owner)).await {
                    Ok(page) => Ok(Ok(page)),
                    Err(Stopped::Rejected(error)) => Ok(Err(error)),
                    Err(Stopped::Database(error)) => Err(error),
                }
            };
            let (entries, has_more) = answer(read).await??;
            let record = client.into_record(entries, has_more, looks)?;
            let EntryCounts { meeting_notes, billing_disputes, draft_letters, .. } = record.counts;
            if record.entries.is_empty() && meeting_notes + billing_disputes + draft_letters > 0 {
                return Err(StoreError::OwnerChanged(id));
            }
            Ok(Some(record))
        }

        async fn read_for_letter(
            &self,
            permit: Permit<EditClient>,
            entries: &[EntryId],
        ) -> Result<Option<(Client, Vec<Entry>)>, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                let Some(client) = transaction.hold_to_read(&permit).await? else { return Ok(None) };
                let id = ClientId(client.id);
                transaction.note_looks(permit.asked(), &[id]).await?;
                let entries = transaction.entries_among(id, entries).await?;
                Ok(Some((client.into_client()?, entries)))
            })
        }

        async fn client_versions(
            &self,
            permit: Permit<ReadClient>,
            wanted: VersionsWanted,
        ) -> Result<Option<(Client, Vec<ClientVersion>)>, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                let Some(client) = transaction.hold_to_read(&permit).await? else { return Ok(None) };
                let id = ClientId(client.id);
                transaction.note_looks(permit.asked(), &[id]).await?;
                let client = client.into_client()?;
                let versions = transaction.versions_of_client(&client, wanted).await?;
                Ok(Some((client, versions)))
            })
        }

        async fn entry_versions(
            &self,
            permit: Permit<ReadClient>,
            entry: EntryId,
            wanted: VersionsWanted,
        ) -> Result<Option<(Entry, Vec<EntryVersion>)>, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                let Some(client) = transaction.hold_to_read(&permit).await? else { return Ok(None) };
                let id = ClientId(client.id);
                let Some(entry) = transaction.entry(id, entry).await? else { return Ok(None) };
                transaction.note_looks(permit.asked(), &[id]).await?;
                let versions = transaction.versions_of_entry(&entry, wanted).await?;
                Ok(Some((entry, versions)))
            })
        }

        async fn create_client(
            &self,
            permit: Permit<CreateClient>,
            new: NewClient,
        ) -> Result<ClientId, StoreError> {
            let new = [(permit, new)];
            let made: Result<Vec<ClientId>, StoreError> =
                decided!(self, |transaction| transaction.add_clients(self.lease.writer, &new));
            made?.into_iter().next().ok_or_else(|| StoreError::Unavailable("the client was not given back".to_owned()))
        }

        async fn import_clients(
            &self,
            clients: Vec<(Permit<CreateClient>, NewClient)>,
            progress: &(dyn Fn(u64) + Send + Sync),
        ) -> Result<Vec<ClientId>, StoreError> {
            decided_at_length!(self, IMPORT_TIMEOUT, |transaction| async {
                transaction.expect_many(true).await?;
                let mut made = Vec::with_capacity(clients.len());
                for some in clients.chunks(MAX_CLIENTS_AT_ONCE) {
                    made.extend(transaction.add_clients(self.lease.writer, some).await?);
                    progress(made.len() as u64);
                }
                transaction.expect_many(false).await?;
                Ok::<_, Stopped>(made)
            })
        }

        async fn edit_client(
            &self,
            permit: Permit<EditClient>,
            change: ClientChange,
        ) -> Result<Changed<Client>, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                match transaction.hold_to_change(&permit).await? {
                    Some(client) => transaction.change_client(permit.asked(), client, &change).await,
                    None => Ok(Changed::Gone),
                }
            })
        }

        async fn set_client_archived(
            &self,
            permit: Permit<ArchiveClient>,
            is_archived: bool,
        ) -> Result<Changed<Client>, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                match transaction.hold_to_change(&permit).await? {
                    Some(client) => transaction.put_client_away(permit.asked(), client, is_archived).await,
                    None => Ok(Changed::Gone),
                }
            })
        }

        async fn reassign_client(
            &self,
            permit: Permit<ReassignClient>,
            to: PersonId,
        ) -> Result<Changed<Client>, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                let Some(client) = transaction.hold_to_change(&permit).await? else { return Ok(Changed::Gone) };
                transaction.must_be_member(to).await?;
                let id = ClientId(client.id);
                if client.owner_id != to.0 {
                    transaction.move_clients(permit.asked(), &[id], to).await?;
                }
                Ok(transaction.client_now(id).await?.map_or(Changed::Gone, Changed::Saved))
            })
        }

        async fn reassign_clients(
            &self,
            permits: Vec<Permit<ReassignClient>>,
            to: PersonId,
        ) -> Result<u64, StoreError> {
            let rows: Vec<AuditRow> = permits.iter().map(Permit::to_audit_row).collect();
            decided_at_length!(self, LONG_ANSWER_TIMEOUT, |transaction| async {
                transaction.link(self.lease.writer, &rows).await?;
                let owners = transaction.hold_all(&clients_of(&permits), HeldFor::Changing).await?;
                transaction.must_be_member(to).await?;
                let (mut moved, mut seen) = (Vec::new(), HashSet::new());
                for permit in &permits {
                    let Some(client) = permit.client() else { continue };
                    if !is_still_owned(&owners, permit) {
                        return Err(Stopped::from(StoreError::OwnerChanged(client)));
                    }
                    // A client that is there twice moves once.
                    if owners.get(&client).is_some_and(|owner| *owner != to) && seen.insert(client) {
                        moved.push((permit.asked(), client));
                    }
                }
                for same in moved.chunk_by(|one, other| (one.0.by, one.0.at) == (other.0.by, other.0.at)) {
                    let clients: Vec<ClientId> = same.iter().map(|(_, client)| *client).collect();
                    if let Some((asked, _)) = same.first() {
                        transaction.move_clients(asked, &clients, to).await?;
                    }
                }
                Ok(moved.len() as u64)
            })
        }

        async fn add_entry(&self, permit: Permit<EditClient>, new: NewEntry) -> Result<Entry, StoreError> {
            let row = [permit.to_audit_row()];
            let added = decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                // That somebody may write about a number that is no client's is on record like any other decision.
                let Some(client): Option<StoredClient> = transaction.hold_to_change(&permit).await? else {
                    return Ok(None);
                };
                let name = ClientName::from_stored(client.facts.name.clone());
                leave_room_for(&name, entries_there(&client)?, 1)?;
                transaction.must_be_known(new.author).await?;
                let id = ClientId(client.id);
                let drawn = transaction.draw_numbers("entries", 1).await?;
                for number in drawn {
                    transaction.insert_entries(permit.asked(), &[(EntryId(number), id, &new)]).await?;
                    transaction.recount_entries(id).await?;
                    if let Some(entry) = transaction.entry(id, EntryId(number)).await? {
                        return Ok(Some(entry));
                    }
                }
                Err(StoreError::Unavailable("the entry was not given back".to_owned()).into())
            });
            added?.ok_or_else(|| StoreError::NoSuchClient(permit.client().unwrap_or(ClientId(0))))
        }

        async fn edit_entry(
            &self,
            permit: Permit<EditClient>,
            change: EntryChange,
        ) -> Result<Changed<Entry>, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                match transaction.hold_to_change(&permit).await? {
                    Some(client) => transaction.change_entry(permit.asked(), &client, &change).await,
                    None => Ok(Changed::Gone),
                }
            })
        }

        async fn set_entry_archived(
            &self,
            permit: Permit<EditClient>,
            entry: EntryId,
            is_archived: bool,
        ) -> Result<Changed<Entry>, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                match transaction.hold_to_change(&permit).await? {
                    Some(client) => transaction.put_entry_away(permit.asked(), &client, entry, is_archived).await,
                    None => Ok(Changed::Gone),
                }
            })
        }

        async fn ownerships(
            &self,
            permit: &Permit<ListClients>,
            owner: Option<PersonId>,
            after: Option<ClientId>,
            limit: u32,
        ) -> Result<Vec<Ownership>, StoreError> {
            if after.is_none() {
                let row = [permit.to_audit_row()];
                let noted: Result<(), StoreError> =
                    decided!(self, |transaction| transaction.link(self.lease.writer, &row));
                noted?;
            }
            let Some(owner) = owner_within(permit.scope(), owner) else { return Ok(Vec::new()) };
            let after = after.map_or(i64::MIN, |client| client.0);
            let sql = if owner.is_some() { OWNERSHIPS_OF } else { OWNERSHIPS };
            let mut read = sqlx::query_as(sql).bind(after).bind(i64::from(limit));
            if let Some(owner) = owner {
                read = read.bind(owner.0).bind(false).bind(true);
            }
            let rows: Vec<StoredOwnership> = answer(read.fetch_all(&self.reader)).await?;
            let ownership = |row: StoredOwnership| Ownership { client: ClientId(row.id), owner: PersonId(row.owner_id) };
            Ok(rows.into_iter().map(ownership).collect())
        }

        async fn export_clients(
            &self,
            permits: Vec<Permit<ExportClient>>,
        ) -> Result<Vec<ClientRecord>, StoreError> {
            decided_at_length!(self, LONG_ANSWER_TIMEOUT, |transaction| async {
                let owners = transaction.hold_all(&clients_of(&permits), HeldFor::Reading).await?;
                let kept: Vec<&Permit<ExportClient>> = permits
                    .iter()
                    .filter(|permit| permit.owner().is_some() && is_still_owned(&owners, permit))
                    .collect();
                let rows: Vec<AuditRow> = kept.iter().map(|permit| permit.to_audit_row()).collect();
                transaction.link(self.lease.writer, &rows).await?;
                let ids: Vec<ClientId> = kept.iter().filter_map(|permit| permit.client()).collect();
                for same in kept.chunk_by(|one, other| (one.by(), one.asked().at) == (other.by(), other.asked().at)) {
                    let clients: Vec<ClientId> = same.iter().filter_map(|permit| permit.client()).collect();
                    let asked: Option<&Asked> = same.first().map(|permit| permit.asked());
                    if let Some(asked) = asked {
                        transaction.note_looks(asked, &clients).await?;
                    }
                }
                transaction.records_of(&ids).await
            })
        }

        async fn has_clients(&self) -> Result<bool, StoreError> {
            let found: i64 = answer(sqlx::query_scalar(ANY).fetch_one(&self.reader)).await?;
            Ok(found > 0)
        }
    }
}
