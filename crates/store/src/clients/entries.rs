//! Entries of a record: reads pages; adds, changes and archives entries. Every change updates the counts on the client
//! that lists show.

use crate::ClientError;
use crate::clients::rows::{NO_ENTRY_MS, person_ref};
use crate::clients::types::{
    ENTRIES_PER_PAGE, EntryChange, EntryCounts, EntryCursor, EntryQuery, NewEntry, SaveOutcome,
};
use crate::clients::versions::add_entry_version;
use crate::db::{Conn, FromRow, Query, Row, Statement, corrupt, query};
use chancery_domain::{
    AccessRequest, ClientId, ClientName, Entry, EntryId, EntryKind, EntryText, EntryTitle, UnixMillis,
    Version,
};

/// Most entries of one client, archived ones included: about three a day for years.
pub const MAX_ENTRIES_PER_CLIENT: u64 = 5000;

/// Rows per statement.
const MAX_ROWS_PER_STATEMENT: usize = 500;

const SELECT_ENTRIES: &str = "SELECT e.id, e.client_id, e.kind, e.at_ms, e.author_id, p.email AS author_email, \
    e.is_open, e.version, e.archived_at_ms, e.title, e.text \
    FROM entries e JOIN people p ON p.id = e.author_id WHERE ";

const HAS_ENTRY: &str = "SELECT COUNT(*) FROM entries WHERE id = $1 AND client_id = $2";

impl FromRow for Entry {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let kind: String = row.get("kind")?;
        let kind =
            kind.parse().map_err(|error| corrupt("an entry's kind", format!("{error}, and not {kind:?}")))?;
        Ok(Self {
            id: EntryId(row.get("id")?),
            client: ClientId(row.get("client_id")?),
            kind,
            at: UnixMillis(row.get("at_ms")?),
            author: person_ref(row.get("author_id")?, &row.get::<String>("author_email")?)?,
            title: EntryTitle::from_stored(row.get("title")?),
            text: EntryText::from_stored(row.get("text")?),
            is_open: row.get("is_open")?,
            version: Version(row.get("version")?),
            archived_at: row.get::<Option<i64>>("archived_at_ms")?.map(UnixMillis),
        })
    }
}

const UPDATE: &str = "UPDATE entries SET at_ms = $2, is_open = $3, version = $4, archived_at_ms = $5, is_archived = $6, \
    title = $7, text = $8 WHERE id = $1";

/// An archived entry counts only in `archived_entries`.
const RECOUNT: &str = "UPDATE clients SET (last_entry_at_ms, meeting_notes, billing_disputes, draft_letters, \
    open_disputes, open_letters, archived_entries) = (SELECT \
    COALESCE(MAX(at_ms) FILTER (WHERE NOT is_archived), $2), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'meeting_note'), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'billing_dispute'), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'draft_letter'), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'billing_dispute' AND is_open), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'draft_letter' AND is_open), \
    COUNT(*) FILTER (WHERE is_archived) FROM entries WHERE client_id = $1) WHERE id = $1";

/// The entry counts of a new client, the same as `RECOUNT` computes.
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

/// Fails if the record would exceed `MAX_ENTRIES_PER_CLIENT`.
pub(crate) fn ensure_entry_capacity(
    client: &ClientName,
    existing: u64,
    new: usize,
) -> Result<(), ClientError> {
    match existing + new as u64 <= MAX_ENTRIES_PER_CLIENT {
        true => Ok(()),
        false => Err(ClientError::TooManyEntries { client: client.clone(), max: MAX_ENTRIES_PER_CLIENT }),
    }
}

/// Number of entries, archived ones included.
pub(crate) fn total_entries(counts: &EntryCounts) -> u64 {
    counts.meeting_notes + counts.billing_disputes + counts.draft_letters + counts.archived
}

/// The entries of a page, and whether there are more.
pub(crate) type EntryPage = (Vec<Entry>, bool);

/// Reads a page plus one entry.
pub(crate) fn select_page(client: ClientId, filter: &EntryQuery) -> Query<'static> {
    let EntryQuery { kind, is_archived, after } = filter;
    let mut read = Statement::new(SELECT_ENTRIES);
    read.push("e.client_id = ").push_bind(client.0).push(" AND e.is_archived = ").push_bind(*is_archived);
    if let Some(kind) = kind {
        read.push(" AND e.kind = ").push_bind(kind.as_str());
    }
    if let Some(EntryCursor { at, id }) = after {
        read.push(" AND (e.at_ms, e.id) < (").push_bind(at.0).push(", ").push_bind(id.0).push(")");
    }
    read.push(" ORDER BY e.at_ms DESC, e.id DESC LIMIT ").push_bind(i64::from(ENTRIES_PER_PAGE) + 1);
    read.build()
}

/// Turns the result of `select_page` into a page.
pub(crate) fn into_page(mut entries: Vec<Entry>) -> EntryPage {
    let has_more = entries.len() > ENTRIES_PER_PAGE as usize;
    if has_more {
        entries.pop();
    }
    (entries, has_more)
}

/// Entries of a record that may be read, in any order.
pub(crate) fn select_by_id(ids: &[EntryId]) -> Query<'static> {
    let mut read = Statement::new(SELECT_ENTRIES);
    read.push("e.id IN ").push_list(ids.iter().map(|entry| entry.0));
    read.build().persistent(false)
}

/// Whether the client has this entry. Reads nothing else of it.
pub(crate) async fn has_entry(
    conn: &mut Conn<'_>,
    client: ClientId,
    entry: EntryId,
) -> Result<bool, sqlx::Error> {
    let found: i64 = query(HAS_ENTRY).bind(entry.0).bind(client.0).fetch_one(conn).await?;
    Ok(found > 0)
}

pub(crate) async fn find_entry(
    conn: &mut Conn<'_>,
    client: ClientId,
    entry: EntryId,
) -> Result<Option<Entry>, sqlx::Error> {
    let mut read = Statement::new(SELECT_ENTRIES);
    read.push("e.client_id = ").push_bind(client.0).push(" AND e.id = ").push_bind(entry.0);
    read.build().fetch_optional(conn).await
}

/// Those of the given entries that belong to this client and are not archived, newest first.
pub(crate) async fn find_entries(
    conn: &mut Conn<'_>,
    client: ClientId,
    ids: &[EntryId],
) -> Result<Vec<Entry>, sqlx::Error> {
    let mut found: Vec<Entry> = Vec::new();
    for ids in ids.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut read = Statement::new(SELECT_ENTRIES);
        read.push("e.client_id = ").push_bind(client.0).push(" AND e.is_archived = ").push_bind(false);
        read.push(" AND e.id IN ").push_list(ids.iter().map(|entry| entry.0));
        found.extend(read.build().persistent(false).fetch_all::<Entry>(conn).await?);
    }
    found.sort_by_key(|entry| std::cmp::Reverse((entry.at, entry.id)));
    // An id may be given twice.
    found.dedup_by_key(|entry| entry.id);
    Ok(found)
}

/// Adds entries with allocated ids, and their first versions.
pub(crate) async fn insert_entries(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    entries: &[(EntryId, ClientId, &NewEntry)],
) -> Result<(), sqlx::Error> {
    let by = access_request.by.person().map(|person| person.0);
    for entries in entries.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut add = Statement::new(
            "INSERT INTO entries (id, client_id, kind, at_ms, author_id, is_open, version, archived_at_ms, \
             is_archived, title, text) ",
        );
        add.push_values(entries, |(id, client, new)| {
            [
                id.0.into(),
                client.0.into(),
                new.kind.as_str().into(),
                new.at.0.into(),
                new.author.0.into(),
                is_open(new).into(),
                Version::FIRST.0.into(),
                new.is_archived.then_some(access_request.at.0).into(),
                new.is_archived.into(),
                new.title.as_str().into(),
                new.text.as_str().into(),
            ]
        });
        add.build().persistent(entries.len() == 1).execute(conn).await?;
        let mut add_versions = Statement::new(
            "INSERT INTO entry_versions \
             (entry_id, version, at_ms, is_open, is_archived, actor_id, changed_at_ms, title, text) ",
        );
        add_versions.push_values(entries, |(id, _, new)| {
            [
                id.0.into(),
                Version::FIRST.0.into(),
                new.at.0.into(),
                is_open(new).into(),
                new.is_archived.into(),
                by.into(),
                access_request.at.0.into(),
                new.title.as_str().into(),
                new.text.as_str().into(),
            ]
        });
        add_versions.build().persistent(entries.len() == 1).execute(conn).await?;
    }
    Ok(())
}

/// Saves changed fields if the version is still the one that the editor saw.
pub(crate) async fn change_entry(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    client: ClientId,
    change: &EntryChange,
) -> Result<SaveOutcome<Entry>, sqlx::Error> {
    let Some(current) = find_entry(conn, client, change.entry).await? else {
        return Ok(SaveOutcome::NotFound);
    };
    if current.version != change.version {
        return Ok(SaveOutcome::Conflict(current));
    }
    let changed = Entry {
        title: change.title.clone(),
        text: change.text.clone(),
        at: change.at.unwrap_or(current.at),
        is_open: change.is_open && current.kind.can_be_open(),
        ..current.clone()
    };
    match changed == current {
        true => Ok(SaveOutcome::Saved(current)),
        false => save_entry(conn, access_request, changed).await,
    }
}

pub(crate) async fn archive_entry(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    client: ClientId,
    entry: EntryId,
    is_archived: bool,
) -> Result<SaveOutcome<Entry>, sqlx::Error> {
    let Some(current) = find_entry(conn, client, entry).await? else { return Ok(SaveOutcome::NotFound) };
    if current.archived_at.is_some() == is_archived {
        return Ok(SaveOutcome::Saved(current));
    }
    save_entry(
        conn,
        access_request,
        Entry { archived_at: is_archived.then_some(access_request.at), ..current },
    )
    .await
}

/// Saves the entry as its next version, and updates the client's counts.
async fn save_entry(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    entry: Entry,
) -> Result<SaveOutcome<Entry>, sqlx::Error> {
    let entry = Entry { version: entry.version.next(), ..entry };
    let update = query(UPDATE)
        .bind(entry.id.0)
        .bind(entry.at.0)
        .bind(entry.is_open)
        .bind(entry.version.0)
        .bind(entry.archived_at.map(|at| at.0))
        .bind(entry.archived_at.is_some())
        .bind(entry.title.as_str())
        .bind(entry.text.as_str());
    update.execute(conn).await?;
    add_entry_version(conn, access_request, entry.id).await?;
    recount_entries(conn, entry.client).await?;
    Ok(SaveOutcome::Saved(entry))
}

pub(crate) async fn recount_entries(conn: &mut Conn<'_>, client: ClientId) -> Result<(), sqlx::Error> {
    query(RECOUNT).bind(client.0).bind(NO_ENTRY_MS).execute(conn).await?;
    Ok(())
}
