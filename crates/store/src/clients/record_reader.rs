//! Whole records, read in pages. The decisions are committed first. Then each page is read from a snapshot of its own, which
//! checks the owners and the principal again. So neither memory nor any other work depends on how long a record is, or on
//! how slowly the caller takes it.
//!
//! The entries of a record are chosen when its first page is read, by id. An entry that is added later is not in any
//! page, and one that is moved or archived meanwhile is in exactly one.

use crate::ClientError;
use crate::audit::principal::{distinct, ensure_principals_unchanged};
use crate::clients::entries::{active_entries, select_by_id, total_entries};
use crate::clients::page_slots::PageSlots;
use crate::clients::rows::{SELECT_CLIENTS, StoredClient};
use crate::clients::types::{EntryCounts, MAX_RECORD_PAGE_BYTES, MAX_RECORD_PAGE_ENTRIES, RecordPart};
use crate::db::{Db, QueryError, Statement, Tx, corrupt, from_row};
use chancery_domain::{ClientId, Entry, EntryId, EntryKind, PersonId, Principal};
use chancery_policy::AuthzAction;
use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;

/// The entries of a record to read, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordEntries {
    /// Those that are not archived: by kind as in `EntryKind::ALL`, newest first.
    ActiveByKind,
    /// All of them, oldest first.
    AllOldestFirst,
}

impl RecordEntries {
    fn count(self, counts: &EntryCounts) -> u64 {
        match self {
            Self::ActiveByKind => active_entries(counts),
            Self::AllOldestFirst => total_entries(counts),
        }
    }
}

/// An entry that is to be read.
#[derive(Clone, Copy)]
struct EntrySize {
    client: ClientId,
    id: EntryId,
    kind: EntryKind,
    bytes: u64,
}

from_row!(EntrySize { client: "client_id", id, kind, bytes });

/// Proof that the decision to read a record is recorded: the client with the owner and the principal that the policy saw.
/// Only the steps of `reads` create one, from permits that they take by value.
#[derive(Clone, Copy)]
pub(crate) struct RecordedRead {
    pub(crate) client: ClientId,
    pub(crate) owner: PersonId,
    pub(crate) by: Principal,
}

/// Records that recorded decisions allow to read, and how far they have been read. Only `Clients` creates one.
pub struct RecordReader<A: AuthzAction> {
    db: Db,
    page_slots: PageSlots,
    contents: RecordEntries,
    pending: VecDeque<PendingRecord>,
    action: PhantomData<A>,
}

#[derive(Clone)]
struct PendingRecord {
    read: RecordedRead,
    /// What is left of the record. `None` until its first page is read.
    entries: Option<VecDeque<EntrySize>>,
    is_started: bool,
}

/// What a step needs to read the next page.
struct PageRequest {
    contents: RecordEntries,
    /// Everybody to whom the remaining records were permitted.
    principals: Vec<Principal>,
    /// The next records, as many as may be in the page.
    records: Vec<PendingRecord>,
}

/// A page, and what is left of the records in it.
struct Page {
    parts: Vec<RecordPart>,
    /// One for each of the first pending records, as far as the page looked at them.
    remaining: Vec<VecDeque<EntrySize>>,
}

impl<A: AuthzAction> RecordReader<A> {
    pub(crate) fn new(
        db: Db,
        page_slots: PageSlots,
        contents: RecordEntries,
        reads: Vec<RecordedRead>,
    ) -> Self {
        let pending = |read| PendingRecord { read, entries: None, is_started: false };
        let pending = reads.into_iter().map(pending).collect();
        Self { db, page_slots, contents, pending, action: PhantomData }
    }

    /// The clients that are not read to their end, in order.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.pending.iter().map(|record| record.read.client)
    }

    /// The next page, or `None` at the end. Fails with `OwnerChanged` if the next client has another owner than the one
    /// that the policy saw. It can then go on under a new decision (`Clients::renew_permit`) or without this client
    /// (`leave_out`). Fails with `PrincipalChanged` if the principal has another role or was removed.
    pub async fn next_page(&mut self) -> Result<Option<Vec<RecordPart>>, ClientError> {
        if self.pending.is_empty() {
            return Ok(None);
        }
        let slot = self.page_slots.acquire().await;
        let request = self.page_request();
        let page = self.db.read(move |tx| request.read(tx)).await;
        drop(slot);
        let Page { parts, remaining } = page?;
        let finished = parts.iter().filter(|part| part.is_last).count();
        for (record, rest) in self.pending.iter_mut().zip(remaining) {
            record.entries = Some(rest);
        }
        for (record, _) in self.pending.iter_mut().zip(&parts) {
            record.is_started = true;
        }
        self.pending.drain(..finished);
        Ok(Some(parts))
    }

    fn page_request(&self) -> PageRequest {
        let rest_of_first =
            self.pending.front().and_then(|record| record.entries.as_ref()).map_or(0, VecDeque::len);
        let max = if rest_of_first < MAX_RECORD_PAGE_ENTRIES { MAX_RECORD_PAGE_ENTRIES } else { 1 };
        PageRequest {
            contents: self.contents,
            principals: distinct(self.pending.iter().map(|record| record.read.by)),
            records: self.pending.iter().take(max).cloned().collect(),
        }
    }

    /// Adds the records of another reader. Both are then read in the order of the clients' ids.
    pub fn merge(&mut self, other: Self) {
        self.pending.extend(other.pending);
        self.pending.make_contiguous().sort_by_key(|record| record.read.client);
    }

    /// Skips the rest of this client. Returns whether a part of it has been read.
    pub fn leave_out(&mut self, client: ClientId) -> bool {
        let is_started = self.pending.iter().any(|record| record.read.client == client && record.is_started);
        self.pending.retain(|record| record.read.client != client);
        is_started
    }

    /// Goes on with a client under a new decision.
    pub(crate) fn renew(&mut self, read: RecordedRead) {
        if let Some(record) = self.pending.iter_mut().find(|record| record.read.client == read.client) {
            record.read = read;
        }
    }
}

impl PageRequest {
    fn read(&self, tx: &mut Tx<'_>) -> Result<Page, ClientError> {
        ensure_principals_unchanged::<ClientError>(tx, &self.principals)?;
        let mut clients = self.permitted_clients(tx)?;
        let (mut chosen, mut entries) = (Vec::new(), 0);
        for record in &self.records {
            match clients.remove(&record.read.client) {
                Some(stored) => {
                    entries += match &record.entries {
                        Some(rest) => rest.len() as u64,
                        None => self.contents.count(&stored.counts),
                    };
                    chosen.push((record, stored.client));
                }
                None if chosen.is_empty() => return Err(ClientError::OwnerChanged(record.read.client)),
                // The next page begins with it, or it did not fit in this one.
                None => break,
            }
            if entries >= MAX_RECORD_PAGE_ENTRIES as u64 {
                break;
            }
        }
        let unopened = chosen.iter().filter(|(record, _)| record.entries.is_none());
        let unopened: Vec<ClientId> = unopened.map(|(record, _)| record.read.client).collect();
        let mut sizes = self.entry_sizes(tx, &unopened)?;

        let (mut bytes, mut ids) = (0, Vec::new());
        let (mut parts, mut remaining) = (Vec::new(), Vec::new());
        let mut is_full = false;
        for (record, client) in chosen {
            let mut rest = match &record.entries {
                Some(rest) => rest.clone(),
                None => sizes.remove(&record.read.client).unwrap_or_default(),
            };
            if !is_full {
                let first = ids.len();
                while let Some(entry) = rest.front() {
                    is_full = ids.len() == MAX_RECORD_PAGE_ENTRIES
                        || (!ids.is_empty() && bytes + entry.bytes > MAX_RECORD_PAGE_BYTES);
                    if is_full {
                        break;
                    }
                    bytes += entry.bytes;
                    ids.push(entry.id);
                    rest.pop_front();
                }
                let is_last = rest.is_empty();
                if is_last || ids.len() > first {
                    parts.push((client, first..ids.len(), !record.is_started, is_last));
                }
            }
            remaining.push(rest);
        }
        let mut found: HashMap<EntryId, Entry> = HashMap::with_capacity(ids.len());
        if !ids.is_empty() {
            let entries: Vec<Entry> = select_by_id(&ids).fetch_all(tx)?;
            found.extend(entries.into_iter().map(|entry| (entry.id, entry)));
        }
        let mut take = |id: &EntryId| {
            let entry = found.remove(id);
            entry.ok_or_else(|| corrupt("a client's record", format!("entry {id} is missing")))
        };
        let parts = parts.into_iter().map(|(client, range, is_first, is_last)| {
            let entries = ids[range].iter().map(&mut take).collect::<Result<_, QueryError>>()?;
            Ok(RecordPart { client, is_first, entries, is_last })
        });
        Ok(Page { parts: parts.collect::<Result<_, QueryError>>()?, remaining })
    }

    /// Those of the clients that still have the owner that the policy saw.
    fn permitted_clients(&self, tx: &mut Tx<'_>) -> Result<HashMap<ClientId, StoredClient>, QueryError> {
        let mut read = Statement::new(SELECT_CLIENTS);
        read.push(" FROM clients c JOIN people p ON p.id = c.owner_id WHERE ");
        for (index, PendingRecord { read: RecordedRead { client, owner, .. }, .. }) in
            self.records.iter().enumerate()
        {
            read.push(if index > 0 { " OR (c.id = " } else { "(c.id = " }).push_bind(client.0);
            read.push(" AND c.owner_id = ").push_bind(owner.0).push(")");
        }
        let is_single = self.records.len() == 1;
        let rows: Vec<StoredClient> = read.build().persistent(is_single).fetch_all(tx)?;
        Ok(rows.into_iter().map(|row| (row.client.id, row)).collect())
    }

    /// The entries of these clients in the order in which they are read, without their content.
    fn entry_sizes(
        &self,
        tx: &mut Tx<'_>,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, VecDeque<EntrySize>>, QueryError> {
        let mut found: HashMap<ClientId, VecDeque<EntrySize>> = HashMap::new();
        if clients.is_empty() {
            return Ok(found);
        }
        let mut read = Statement::new(
            "SELECT e.client_id, e.id, e.kind, \
             CAST(octet_length(e.title) + octet_length(e.text) AS BIGINT) AS bytes \
             FROM entries e WHERE e.client_id IN ",
        );
        read.push_list(clients.iter().map(|client| client.0));
        match self.contents {
            RecordEntries::ActiveByKind => {
                read.push(" AND e.is_archived = ").push_bind(false).push(" ORDER BY e.at_ms DESC, e.id DESC");
            }
            RecordEntries::AllOldestFirst => {
                read.push(" ORDER BY e.at_ms, e.id");
            }
        }
        let mut sizes: Vec<EntrySize> = read.build().persistent(clients.len() == 1).fetch_all(tx)?;
        if self.contents == RecordEntries::ActiveByKind {
            // A stable sort: the newest stay first within their kind.
            sizes.sort_by_key(|entry| EntryKind::ALL.iter().position(|kind| *kind == entry.kind));
        }
        for entry in sizes {
            found.entry(entry.client).or_default().push_back(entry);
        }
        Ok(found)
    }
}
