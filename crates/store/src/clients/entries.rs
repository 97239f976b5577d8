//! The entries of a record: read in pages, added, changed and put away, each version kept. What lists show of them is counted
//! on the client with every change.

use crate::audit::step::Stopped;
use crate::clients::rows::{NO_ENTRY_MS, StoredClient, count, person_ref};
use crate::db::both::{Statement, for_both_connections, push_list, stored_row};
use crate::ledger::batch::stored_count;
use crate::{
    Changed, ENTRIES_PER_PAGE, EntriesWanted, EntryChange, EntryPlace, EntryVersion, NewEntry, StoreError,
    VersionsWanted,
};
use chancery_domain::{
    Asked, ClientId, ClientName, Entry, EntryId, EntryKind, EntryText, EntryTitle, PersonId, PersonRef,
    UnixMillis, Version,
};
use std::collections::HashMap;

/// Entries of one client, those put away included: some three a day for years.
pub const MAX_ENTRIES_PER_CLIENT: u64 = 5000;

/// Rows that one statement adds or reads.
const MAX_ROWS_AT_ONCE: usize = 500;

stored_row! {
    struct StoredEntry {
        id: i64,
        client_id: i64,
        kind: String,
        at_ms: i64,
        author_id: i64,
        author_email: String,
        is_open: bool,
        version: i64,
        archived_at_ms: Option<i64>,
        title: String,
        text: String,
    }
}

macro_rules! entry_columns {
    () => {
        "SELECT e.id, e.client_id, e.kind, e.at_ms, e.author_id, p.email AS author_email, e.is_open, e.version, \
         e.archived_at_ms, e.title, e.text FROM entries e JOIN people p ON p.id = e.author_id WHERE "
    };
}

const ENTRY: &str = concat!(entry_columns!(), "e.id = $1 AND e.client_id = $2");

impl StoredEntry {
    fn into_entry(self) -> Result<Entry, StoreError> {
        let kind = self.kind.parse().map_err(|error| StoreError::Corrupt {
            what: "an entry's kind",
            why: format!("{error}, and not {:?}", self.kind),
        })?;
        Ok(Entry {
            id: EntryId(self.id),
            client: ClientId(self.client_id),
            kind,
            at: UnixMillis(self.at_ms),
            author: person_ref(self.author_id, &self.author_email)?,
            title: EntryTitle::from_stored(self.title),
            text: EntryText::from_stored(self.text),
            is_open: self.is_open,
            version: Version(self.version),
            archived_at: self.archived_at_ms.map(UnixMillis),
        })
    }
}

stored_row! {
    struct StoredEntryVersion {
        version: i64,
        at_ms: i64,
        is_open: bool,
        is_archived: bool,
        by_id: Option<i64>,
        by_email: Option<String>,
        changed_at_ms: i64,
        title: String,
        text: String,
    }
}

macro_rules! version_columns {
    () => {
        "SELECT v.version, v.at_ms, v.is_open, v.is_archived, v.by_id, p.email AS by_email, v.changed_at_ms, v.title, \
        v.text FROM entry_versions v LEFT JOIN people p ON p.id = v.by_id WHERE v.entry_id = $1 AND "
    };
}

const PAGE_OF_VERSIONS: &str = concat!(version_columns!(), "v.version < $2 ORDER BY v.version DESC LIMIT $3");
const TWO_VERSIONS: &str = concat!(version_columns!(), "v.version IN ($2, $3) ORDER BY v.version DESC");

impl StoredEntryVersion {
    fn into_version(self) -> Result<EntryVersion, StoreError> {
        Ok(EntryVersion {
            version: Version(self.version),
            title: EntryTitle::from_stored(self.title),
            text: EntryText::from_stored(self.text),
            at: UnixMillis(self.at_ms),
            is_open: self.is_open,
            is_archived: self.is_archived,
            by: changed_by(self.by_id, self.by_email.as_deref())?,
            changed_at: UnixMillis(self.changed_at_ms),
        })
    }
}

/// None: the command line.
pub(crate) fn changed_by(id: Option<i64>, email: Option<&str>) -> Result<Option<PersonRef>, StoreError> {
    id.map(|id| person_ref(id, email.unwrap_or_default())).transpose()
}

const UPDATE: &str = "UPDATE entries SET at_ms = $2, is_open = $3, version = $4, archived_at_ms = $5, is_archived = $6, \
    title = $7, text = $8 WHERE id = $1";
const KEEP_VERSION: &str = "INSERT INTO entry_versions \
    (entry_id, version, at_ms, is_open, is_archived, by_id, changed_at_ms, title, text) \
    SELECT e.id, e.version, e.at_ms, e.is_open, e.is_archived, $2, $3, e.title, e.text FROM entries e WHERE e.id = $1";

/// An entry that is put away counts only as that.
const RECOUNT: &str = "UPDATE clients SET (last_entry_at_ms, meeting_notes, billing_disputes, draft_letters, \
    open_disputes, open_letters, archived_entries) = (SELECT \
    COALESCE(MAX(at_ms) FILTER (WHERE NOT is_archived), $2), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'meeting_note'), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'billing_dispute'), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'draft_letter'), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'billing_dispute' AND is_open), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'draft_letter' AND is_open), \
    COUNT(*) FILTER (WHERE is_archived) FROM entries WHERE client_id = $1) WHERE id = $1";

/// What is counted of a client's entries, of one that is new: the same as `RECOUNT` does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewEntryCounts {
    pub(crate) last_at_ms: Option<i64>,
    pub(crate) meeting_notes: i64,
    pub(crate) billing_disputes: i64,
    pub(crate) draft_letters: i64,
    pub(crate) open_disputes: i64,
    pub(crate) open_letters: i64,
    pub(crate) archived_entries: i64,
}

impl NewEntryCounts {
    pub(crate) fn of(entries: &[NewEntry]) -> Self {
        let mut counts = Self::default();
        for entry in entries {
            if entry.is_archived {
                counts.archived_entries += 1;
                continue;
            }
            counts.last_at_ms = counts.last_at_ms.max(Some(entry.at.0));
            let open = i64::from(is_open(entry));
            match entry.kind {
                EntryKind::MeetingNote => counts.meeting_notes += 1,
                EntryKind::BillingDispute => {
                    counts.billing_disputes += 1;
                    counts.open_disputes += open;
                }
                EntryKind::DraftLetter => {
                    counts.draft_letters += 1;
                    counts.open_letters += open;
                }
            }
        }
        counts
    }
}

fn is_open(new: &NewEntry) -> bool {
    new.is_open && new.kind.can_be_open()
}

/// Refuses a record that would have too many.
pub(crate) fn leave_room_for(client: &ClientName, there: u64, new: usize) -> Result<(), StoreError> {
    match there + new as u64 <= MAX_ENTRIES_PER_CLIENT {
        true => Ok(()),
        false => Err(StoreError::TooManyEntries { client: client.clone(), max: MAX_ENTRIES_PER_CLIENT }),
    }
}

/// Entries on a page, and whether there are more.
pub(crate) type EntryPage = (Vec<Entry>, bool);

#[async_trait::async_trait]
pub(crate) trait Entries {
    /// With an owner: of a client that is no longer theirs there are none.
    async fn entries_of(
        &mut self,
        client: ClientId,
        wanted: &EntriesWanted,
        owner: Option<PersonId>,
    ) -> Result<EntryPage, Stopped>;

    /// All of each, those put away included, newest first.
    async fn entries_of_each(
        &mut self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, Vec<Entry>>, Stopped>;

    async fn entry(&mut self, client: ClientId, entry: EntryId) -> Result<Option<Entry>, Stopped>;

    /// Those of the given ones that are this client's and not put away, newest first.
    async fn entries_among(&mut self, client: ClientId, among: &[EntryId]) -> Result<Vec<Entry>, Stopped>;

    /// Newest first.
    async fn versions_of_entry(
        &mut self,
        entry: &Entry,
        wanted: VersionsWanted,
    ) -> Result<Vec<EntryVersion>, Stopped>;

    /// Adds entries whose numbers are drawn, with their first versions.
    async fn insert_entries(
        &mut self,
        asked: &Asked,
        entries: &[(EntryId, ClientId, &NewEntry)],
    ) -> Result<(), Stopped>;

    /// Changes what is different, if the version is still the one that was seen.
    async fn change_entry(
        &mut self,
        asked: &Asked,
        client: &StoredClient,
        change: &EntryChange,
    ) -> Result<Changed<Entry>, Stopped>;

    async fn put_entry_away(
        &mut self,
        asked: &Asked,
        client: &StoredClient,
        entry: EntryId,
        is_archived: bool,
    ) -> Result<Changed<Entry>, Stopped>;

    /// Writes an entry as it is from now on, as its next version, and counts anew.
    async fn save_entry(&mut self, asked: &Asked, entry: Entry) -> Result<Entry, Stopped>;

    async fn recount_entries(&mut self, client: ClientId) -> Result<(), Stopped>;
}

for_both_connections! {
    impl Entries {
        async fn entries_of(
            &mut self,
            client: ClientId,
            wanted: &EntriesWanted,
            owner: Option<PersonId>,
        ) -> Result<EntryPage, Stopped> {
            let (kind, is_archived, after, page) = match wanted {
                EntriesWanted::Page { kind, is_archived, after } => {
                    (*kind, *is_archived, *after, u64::from(ENTRIES_PER_PAGE))
                }
                EntriesWanted::All => (None, false, None, MAX_ENTRIES_PER_CLIENT),
            };
            let mut read = Statement::<Self>::new(concat!(entry_columns!(), "e.client_id = "));
            read.push_bind(client.0).push(" AND e.is_archived = ").push_bind(is_archived);
            if let Some(owner) = owner {
                read.push(" AND EXISTS (SELECT 1 FROM clients c WHERE c.id = e.client_id AND c.owner_id = ");
                read.push_bind(owner.0).push(")");
            }
            if let Some(kind) = kind {
                read.push(" AND e.kind = ").push_bind(kind.as_str());
            }
            if let Some(EntryPlace { at, id }) = after {
                read.push(" AND (e.at_ms, e.id) < (").push_bind(at.0).push(", ").push_bind(id.0).push(")");
            }
            read.push(" ORDER BY e.at_ms DESC, e.id DESC LIMIT ").push_bind(stored_count(page + 1));
            let mut rows: Vec<StoredEntry> = read.build_query_as().fetch_all(&mut *self).await?;
            let has_more = rows.len() as u64 > page;
            if has_more {
                rows.pop();
            }
            let entries: Result<Vec<Entry>, StoreError> = rows.into_iter().map(StoredEntry::into_entry).collect();
            Ok((entries?, has_more))
        }

        async fn entries_of_each(
            &mut self,
            clients: &[ClientId],
        ) -> Result<HashMap<ClientId, Vec<Entry>>, Stopped> {
            let mut found: HashMap<ClientId, Vec<Entry>> = HashMap::new();
            for clients in clients.chunks(MAX_ROWS_AT_ONCE) {
                let mut read = Statement::<Self>::new(concat!(entry_columns!(), "e.client_id IN "));
                push_list!(read, clients.iter().map(|client| client.0));
                read.push(" ORDER BY e.client_id, e.at_ms DESC, e.id DESC");
                let rows: Vec<StoredEntry> = read.build_query_as().persistent(false).fetch_all(&mut *self).await?;
                for row in rows {
                    found.entry(ClientId(row.client_id)).or_default().push(row.into_entry()?);
                }
            }
            Ok(found)
        }

        async fn entry(&mut self, client: ClientId, entry: EntryId) -> Result<Option<Entry>, Stopped> {
            let found = sqlx::query_as(ENTRY).bind(entry.0).bind(client.0).fetch_optional(&mut *self).await?;
            Ok(found.map(StoredEntry::into_entry).transpose()?)
        }

        async fn entries_among(&mut self, client: ClientId, among: &[EntryId]) -> Result<Vec<Entry>, Stopped> {
            let mut found = Vec::new();
            for among in among.chunks(MAX_ROWS_AT_ONCE) {
                let mut read = Statement::<Self>::new(concat!(entry_columns!(), "e.client_id = "));
                read.push_bind(client.0).push(" AND e.is_archived = ").push_bind(false).push(" AND e.id IN ");
                push_list!(read, among.iter().map(|entry| entry.0));
                let rows: Vec<StoredEntry> = read.build_query_as().persistent(false).fetch_all(&mut *self).await?;
                for row in rows {
                    found.push(row.into_entry()?);
                }
            }
            found.sort_by_key(|entry| std::cmp::Reverse((entry.at, entry.id)));
            // Whoever is named twice is there once.
            found.dedup_by_key(|entry| entry.id);
            Ok(found)
        }

        async fn versions_of_entry(
            &mut self,
            entry: &Entry,
            wanted: VersionsWanted,
        ) -> Result<Vec<EntryVersion>, Stopped> {
            let Some((statement, first, second)) = wanted.choose(entry.version, PAGE_OF_VERSIONS, TWO_VERSIONS) else {
                return Ok(Vec::new());
            };
            let read = sqlx::query_as(statement).bind(entry.id.0).bind(first).bind(second);
            let rows: Vec<StoredEntryVersion> = read.fetch_all(&mut *self).await?;
            let versions: Result<Vec<EntryVersion>, StoreError> =
                rows.into_iter().map(StoredEntryVersion::into_version).collect();
            Ok(versions?)
        }

        async fn insert_entries(
            &mut self,
            asked: &Asked,
            entries: &[(EntryId, ClientId, &NewEntry)],
        ) -> Result<(), Stopped> {
            let by = asked.by.person().map(|person| person.0);
            for entries in entries.chunks(MAX_ROWS_AT_ONCE) {
                let mut add = Statement::<Self>::new(
                    "INSERT INTO entries (id, client_id, kind, at_ms, author_id, is_open, version, \
                     archived_at_ms, is_archived, title, text) ",
                );
                add.push_values(entries, |mut columns, (id, client, new)| {
                    columns
                        .push_bind(id.0)
                        .push_bind(client.0)
                        .push_bind(new.kind.as_str())
                        .push_bind(new.at.0)
                        .push_bind(new.author.0)
                        .push_bind(is_open(new))
                        .push_bind(Version::FIRST.0)
                        .push_bind(new.is_archived.then_some(asked.at.0))
                        .push_bind(new.is_archived)
                        .push_bind(new.title.as_str())
                        .push_bind(new.text.as_str());
                });
                add.build().persistent(entries.len() == 1).execute(&mut *self).await?;
                let mut keep = Statement::<Self>::new(
                    "INSERT INTO entry_versions \
                     (entry_id, version, at_ms, is_open, is_archived, by_id, changed_at_ms, title, text) ",
                );
                keep.push_values(entries, |mut columns, (id, _, new)| {
                    columns
                        .push_bind(id.0)
                        .push_bind(Version::FIRST.0)
                        .push_bind(new.at.0)
                        .push_bind(is_open(new))
                        .push_bind(new.is_archived)
                        .push_bind(by)
                        .push_bind(asked.at.0)
                        .push_bind(new.title.as_str())
                        .push_bind(new.text.as_str());
                });
                keep.build().persistent(entries.len() == 1).execute(&mut *self).await?;
            }
            Ok(())
        }

        async fn change_entry(
            &mut self,
            asked: &Asked,
            client: &StoredClient,
            change: &EntryChange,
        ) -> Result<Changed<Entry>, Stopped> {
            let Some(now) = self.entry(ClientId(client.id), change.entry).await? else { return Ok(Changed::Gone) };
            if now.version != change.version {
                return Ok(Changed::Conflict(now));
            }
            let wanted = Entry {
                title: change.title.clone(),
                text: change.text.clone(),
                at: change.at.unwrap_or(now.at),
                is_open: change.is_open && now.kind.can_be_open(),
                ..now.clone()
            };
            match wanted == now {
                true => Ok(Changed::Saved(now)),
                false => Ok(Changed::Saved(self.save_entry(asked, wanted).await?)),
            }
        }

        async fn put_entry_away(
            &mut self,
            asked: &Asked,
            client: &StoredClient,
            entry: EntryId,
            is_archived: bool,
        ) -> Result<Changed<Entry>, Stopped> {
            let Some(now) = self.entry(ClientId(client.id), entry).await? else { return Ok(Changed::Gone) };
            if now.archived_at.is_some() == is_archived {
                return Ok(Changed::Saved(now));
            }
            let wanted = Entry { archived_at: is_archived.then_some(asked.at), ..now };
            Ok(Changed::Saved(self.save_entry(asked, wanted).await?))
        }

        async fn save_entry(&mut self, asked: &Asked, entry: Entry) -> Result<Entry, Stopped> {
            let entry = Entry { version: entry.version.next(), ..entry };
            sqlx::query(UPDATE)
                .bind(entry.id.0)
                .bind(entry.at.0)
                .bind(entry.is_open)
                .bind(entry.version.0)
                .bind(entry.archived_at.map(|at| at.0))
                .bind(entry.archived_at.is_some())
                .bind(entry.title.as_str())
                .bind(entry.text.as_str())
                .execute(&mut *self)
                .await?;
            sqlx::query(KEEP_VERSION)
                .bind(entry.id.0)
                .bind(asked.by.person().map(|person| person.0))
                .bind(asked.at.0)
                .execute(&mut *self)
                .await?;
            self.recount_entries(entry.client).await?;
            Ok(entry)
        }

        async fn recount_entries(&mut self, client: ClientId) -> Result<(), Stopped> {
            sqlx::query(RECOUNT).bind(client.0).bind(NO_ENTRY_MS).execute(&mut *self).await?;
            Ok(())
        }
    }
}

/// How many entries a client has, those put away included.
pub(crate) fn entries_there(client: &StoredClient) -> Result<u64, StoreError> {
    count(client.meeting_notes + client.billing_disputes + client.draft_letters + client.archived_entries)
}
