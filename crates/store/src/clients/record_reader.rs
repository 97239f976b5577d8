//! Whole records, read in pages. The decisions are committed first; then each page is read from a snapshot of its own on
//! a read connection, which checks the owners and the principal again. So neither memory nor any other work depends on
//! how long a record is, or on how slowly the caller takes it.
//!
//! The entries of a record are chosen when its first page is read, by id. An entry that is added later is not in any
//! page, and one that is moved or archived meanwhile is in exactly one.

use crate::ClientError;
use crate::audit::principal::{distinct, ensure_principals_unchanged};
use crate::clients::entries::select_by_id;
use crate::clients::page_slots::PageSlots;
use crate::clients::rows::{SELECT_CLIENTS, StoredClient};
use crate::clients::small_record::{active_entries, read_small_record};
use crate::clients::types::{EntryCounts, MAX_RECORD_PAGE_BYTES, MAX_RECORD_PAGE_ENTRIES, RecordPart};
use crate::db::{Conn, Db, FromRow, Row, Statement, TxError, corrupt};
use chancery_domain::{ClientId, Entry, EntryId, EntryKind, PersonId};
use chancery_policy::{AuthzAction, Permit};
use std::collections::{HashMap, VecDeque};

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
            Self::AllOldestFirst => active_entries(counts) + counts.archived,
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

impl FromRow for EntrySize {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let kind: String = row.get("kind")?;
        Ok(Self {
            client: ClientId(row.get("client_id")?),
            id: EntryId(row.get("id")?),
            kind: kind.parse().map_err(|error| corrupt("an entry's kind", format!("{error}: {kind:?}")))?,
            bytes: row.count("bytes")?,
        })
    }
}

/// Records that recorded decisions allow to read, and how far they have been read. Only `Clients` creates one, from
/// permits that it takes by value.
pub struct RecordReader<A: AuthzAction> {
    db: Db,
    page_slots: PageSlots,
    contents: RecordEntries,
    pending: VecDeque<PendingRecord<A>>,
}

struct PendingRecord<A: AuthzAction> {
    client: ClientId,
    permit: Permit<A>,
    /// What is left of the record. `None` until its first page is read.
    entries: Option<VecDeque<EntrySize>>,
    is_started: bool,
}

impl<A: AuthzAction> PendingRecord<A> {
    /// Ids start at 1, so 0 matches no person.
    fn owner(&self) -> PersonId {
        self.permit.owner().unwrap_or(PersonId(0))
    }
}

/// A page, and what is left of the records in it.
struct Page {
    parts: Vec<RecordPart>,
    /// One for each of the first pending records, as far as the page looked at them.
    remaining: Vec<VecDeque<EntrySize>>,
}

impl<A: AuthzAction> RecordReader<A> {
    /// The decisions must be on record, and the permits have owners.
    pub(crate) fn new(
        db: Db,
        page_slots: PageSlots,
        contents: RecordEntries,
        permits: Vec<Permit<A>>,
    ) -> Self {
        let pending = permits.into_iter().filter_map(|permit| {
            let client = permit.client()?;
            Some(PendingRecord { client, permit, entries: None, is_started: false })
        });
        Self { db, page_slots, contents, pending: pending.collect() }
    }

    /// The clients that are not read to their end, in order.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.pending.iter().map(|record| record.client)
    }

    /// The next page, or `None` at the end. Fails with `OwnerChanged` if the next client has another owner than the one
    /// that the policy saw. It can then go on under a new decision (`Clients::renew_permit`) or without this client
    /// (`leave_out`). Fails with `PrincipalChanged` if the principal has another role or was removed.
    pub async fn next_page(&mut self) -> Result<Option<Vec<RecordPart>>, ClientError> {
        if self.pending.is_empty() {
            return Ok(None);
        }
        let slot = self.page_slots.acquire().await;
        if let Some(permit) = self.unread_single_record()
            && let Some(part) = read_small_record(&self.db, permit).await?
        {
            self.pending.clear();
            return Ok(Some(vec![part]));
        }
        let page =
            self.db.snapshot(&*self, |conn, reader| Box::pin(async move { reader.read_page(conn).await }));
        let page = page.await;
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

    /// The permit of the only record, if none of its entries has been chosen yet.
    fn unread_single_record(&self) -> Option<&Permit<A>> {
        match (self.contents, self.pending.front()) {
            (RecordEntries::ActiveByKind, Some(record))
                if self.pending.len() == 1 && record.entries.is_none() =>
            {
                Some(&record.permit)
            }
            _ => None,
        }
    }

    /// Adds the records of another reader. Both are then read in the order of the clients' ids.
    pub fn merge(&mut self, other: Self) {
        self.pending.extend(other.pending);
        self.pending.make_contiguous().sort_by_key(|record| record.client);
    }

    /// Skips the rest of this client. Returns whether a part of it has been read.
    pub fn leave_out(&mut self, client: ClientId) -> bool {
        let is_started = self.pending.iter().any(|record| record.client == client && record.is_started);
        self.pending.retain(|record| record.client != client);
        is_started
    }

    /// Goes on under this permit, whose decision must be on record.
    pub(crate) fn replace_permit(&mut self, permit: Permit<A>) {
        let client = permit.client();
        if let Some(record) = self.pending.iter_mut().find(|record| Some(record.client) == client) {
            record.permit = permit;
        }
    }

    async fn read_page(&self, conn: &mut Conn<'_>) -> Result<Page, TxError<ClientError>> {
        let principals = distinct(self.pending.iter().map(|record| record.permit.by()));
        ensure_principals_unchanged::<ClientError>(conn, &principals).await?;
        let mut clients = self.permitted_clients(conn).await?;
        let (mut chosen, mut entries) = (Vec::new(), 0);
        for record in &self.pending {
            match clients.remove(&record.client) {
                Some(stored) => {
                    entries += match &record.entries {
                        Some(rest) => rest.len() as u64,
                        None => self.contents.count(&stored.counts),
                    };
                    chosen.push((record, stored.client));
                }
                None if chosen.is_empty() => return Err(ClientError::OwnerChanged(record.client).into()),
                // The next page begins with it, or it did not fit in this one.
                None => break,
            }
            if entries >= MAX_RECORD_PAGE_ENTRIES as u64 {
                break;
            }
        }
        let unopened = chosen.iter().filter(|(record, _)| record.entries.is_none());
        let mut sizes = self.entry_sizes(conn, unopened.map(|(record, _)| record.client).collect()).await?;

        let (mut bytes, mut ids) = (0, Vec::new());
        let (mut parts, mut remaining) = (Vec::new(), Vec::new());
        let mut is_full = false;
        for (record, client) in chosen {
            let mut rest = match &record.entries {
                Some(rest) => rest.clone(),
                None => sizes.remove(&record.client).unwrap_or_default(),
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
            let entries: Vec<Entry> = select_by_id(&ids).fetch_all(conn).await?;
            found.extend(entries.into_iter().map(|entry| (entry.id, entry)));
        }
        let mut take = |id: &EntryId| {
            let entry = found.remove(id);
            entry.ok_or_else(|| corrupt("a client's record", format!("entry {id} is missing")))
        };
        let parts = parts.into_iter().map(|(client, range, is_first, is_last)| {
            let entries = ids[range].iter().map(&mut take).collect::<Result<_, sqlx::Error>>()?;
            Ok(RecordPart { client, is_first, entries, is_last })
        });
        Ok(Page { parts: parts.collect::<Result<_, sqlx::Error>>()?, remaining })
    }

    /// Those of the next clients that still have the owner that the policy saw, as many as may be in this page.
    async fn permitted_clients(
        &self,
        conn: &mut Conn<'_>,
    ) -> Result<HashMap<ClientId, StoredClient>, sqlx::Error> {
        let rest_of_first =
            self.pending.front().and_then(|record| record.entries.as_ref()).map_or(0, VecDeque::len);
        let max = if rest_of_first < MAX_RECORD_PAGE_ENTRIES { MAX_RECORD_PAGE_ENTRIES } else { 1 };
        let mut read = Statement::new(SELECT_CLIENTS);
        read.push(" FROM clients c JOIN people p ON p.id = c.owner_id WHERE ");
        for (index, record) in self.pending.iter().take(max).enumerate() {
            read.push(if index > 0 { " OR (c.id = " } else { "(c.id = " }).push_bind(record.client.0);
            read.push(" AND c.owner_id = ").push_bind(record.owner().0).push(")");
        }
        let is_single = self.pending.len() == 1;
        let rows: Vec<StoredClient> = read.build().persistent(is_single).fetch_all(conn).await?;
        Ok(rows.into_iter().map(|row| (row.client.id, row)).collect())
    }

    /// The entries of these clients in the order in which they are read, without their content.
    async fn entry_sizes(
        &self,
        conn: &mut Conn<'_>,
        clients: Vec<ClientId>,
    ) -> Result<HashMap<ClientId, VecDeque<EntrySize>>, sqlx::Error> {
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
        let mut sizes: Vec<EntrySize> = read.build().persistent(clients.len() == 1).fetch_all(conn).await?;
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
