//! Entries of a record: reads pages; adds, changes and archives entries. Every change updates the counts on the client
//! that lists show, and the search index.

use crate::ClientError;
use crate::clients::entry_terms::{EntryTerms, add_entry_terms, entry_terms, replace_entry_terms};
use crate::clients::types::{
    ArchiveChange, ENTRIES_PER_PAGE, EntryChange, EntryCounts, EntryCursor, EntryQuery, NewEntry, SaveOutcome,
};
use crate::clients::versions::add_entry_version;
use crate::db::{Query, QueryError, Row, Statement, Tx, from_row, query};
use chancery_domain::{
    AccessRequest, ClientId, ClientName, DisputeDetails, EmailSubject, Entry, EntryId, EntryKind,
    LetterHeading, SentLetter, Version,
};
use std::collections::BTreeSet;

/// Most entries of one client, archived ones included: about three a day for years.
pub const MAX_ENTRIES_PER_CLIENT: u64 = 5000;

/// Rows per statement.
const MAX_ROWS_PER_STATEMENT: usize = 500;

pub(crate) const SELECT_ENTRIES: &str = "SELECT e.id, e.client_id, e.kind, e.at_ms, e.author_id, p.email AS author_email, \
    e.is_open, e.amount_minor, e.due_day, e.version, e.archived_at_ms, e.title, e.text, s.sent_at_ms, s.sent_to, \
    s.subject AS sent_subject, s.firm_name, s.letterhead, s.recipient, s.printed_date, s.sent_by, \
    sender.email AS sender_email FROM entries e JOIN people p ON p.id = e.author_id \
    LEFT JOIN sent_letters s ON s.entry_id = e.id LEFT JOIN people sender ON sender.id = s.sent_by WHERE ";

const HAS_ENTRY: &str = "SELECT COUNT(*) FROM entries WHERE id = $1 AND client_id = $2";

from_row!(Entry {
    id,
    client: "client_id",
    kind,
    at: "at_ms",
    author: person("author_id", "author_email"),
    title,
    text,
    is_open,
    dispute: DisputeDetails::from_row,
    version,
    archived_at: "archived_at_ms",
    sent: sent_letter
});

fn sent_letter(row: &Row<'_>) -> Result<Option<SentLetter>, QueryError> {
    let Some(at) = row.get("sent_at_ms")? else { return Ok(None) };
    Ok(Some(SentLetter {
        at,
        to: row.get("sent_to")?,
        by: row.person("sent_by", "sender_email")?,
        subject: EmailSubject::from_stored(row.get("sent_subject")?),
        heading: LetterHeading {
            firm_name: row.get("firm_name")?,
            letterhead: row.get("letterhead")?,
            recipient: row.get("recipient")?,
            date: row.get("printed_date")?,
        },
    }))
}

const UPDATE: &str = "UPDATE entries SET at_ms = $2, is_open = $3, version = $4, archived_at_ms = $5, is_archived = $6, \
    amount_minor = $7, due_day = $8, title = $9, text = $10 WHERE id = $1";

/// An archived entry counts only in `archived_entries`. Without entries, the time of creation orders the list.
const RECOUNT: &str = "UPDATE clients SET (last_entry_at_ms, meeting_notes, billing_disputes, draft_letters, \
    open_disputes, open_letters, archived_entries, next_due_day) = (SELECT \
    COALESCE(MAX(at_ms) FILTER (WHERE NOT is_archived), (SELECT c.created_at_ms FROM clients c WHERE c.id = $1)), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'meeting_note'), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'billing_dispute'), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'draft_letter'), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'billing_dispute' AND is_open), \
    COUNT(*) FILTER (WHERE NOT is_archived AND kind = 'draft_letter' AND is_open), \
    COUNT(*) FILTER (WHERE is_archived), \
    MIN(due_day) FILTER (WHERE NOT is_archived AND kind = 'billing_dispute' AND is_open) \
    FROM entries WHERE client_id = $1) WHERE id = $1";

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
    pub(crate) next_due_day: Option<i64>,
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
                    let due = due_day(&new_dispute(entry)).filter(|_| is_open(entry));
                    counts.next_due_day = [counts.next_due_day, due].into_iter().flatten().min();
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

fn new_dispute(new: &NewEntry) -> DisputeDetails {
    of_kind(new.kind, new.dispute)
}

/// Only disputes have an amount and a due date.
fn of_kind(kind: EntryKind, dispute: DisputeDetails) -> DisputeDetails {
    if kind == EntryKind::BillingDispute { dispute } else { DisputeDetails::default() }
}

fn amount_minor(dispute: &DisputeDetails) -> Option<i64> {
    dispute.amount.map(|amount| amount.0)
}

fn due_day(dispute: &DisputeDetails) -> Option<i64> {
    dispute.due.map(|day| i64::from(day.0))
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

/// Number of entries that are not archived.
pub(crate) fn active_entries(counts: &EntryCounts) -> u64 {
    counts.meeting_notes + counts.billing_disputes + counts.draft_letters
}

/// Number of entries, archived ones included.
pub(crate) fn total_entries(counts: &EntryCounts) -> u64 {
    active_entries(counts) + counts.archived
}

/// The entries of a page, and whether there are more.
pub(crate) fn read_page(
    tx: &mut Tx<'_>,
    client: ClientId,
    filter: &EntryQuery,
) -> Result<(Vec<Entry>, bool), QueryError> {
    let EntryQuery { kind, is_open, is_archived, after } = filter;
    let mut read = Statement::new(SELECT_ENTRIES);
    read.push("e.client_id = ").push_bind(client.0).push(" AND e.is_archived = ").push_bind(*is_archived);
    if let Some(kind) = kind {
        read.push(" AND e.kind = ").push_bind(kind.as_str());
    }
    if let Some(is_open) = is_open {
        read.push(" AND e.is_open = ").push_bind(*is_open);
    }
    if let Some(EntryCursor { at, id }) = after {
        read.push(" AND (e.at_ms, e.id) < (").push_bind(at.0).push(", ").push_bind(id.0).push(")");
    }
    read.push(" ORDER BY e.at_ms DESC, e.id DESC LIMIT ").push_bind(i64::from(ENTRIES_PER_PAGE) + 1);
    let mut entries: Vec<Entry> = read.build().fetch_all(tx)?;
    let has_more = entries.len() > ENTRIES_PER_PAGE as usize;
    entries.truncate(ENTRIES_PER_PAGE as usize);
    Ok((entries, has_more))
}

/// Entries of a record that may be read, in any order.
pub(crate) fn select_by_id(ids: &[EntryId]) -> Query {
    let mut read = Statement::new(SELECT_ENTRIES);
    read.push("e.id IN ").push_list(ids.iter().map(|entry| entry.0));
    read.build().persistent(false)
}

/// Whether the client has this entry. Reads nothing else of it.
pub(crate) fn has_entry(tx: &mut Tx<'_>, client: ClientId, entry: EntryId) -> Result<bool, QueryError> {
    let found: i64 = query(HAS_ENTRY).bind(entry.0).bind(client.0).fetch_one(tx)?;
    Ok(found > 0)
}

pub(crate) fn find_entry(
    tx: &mut Tx<'_>,
    client: ClientId,
    entry: EntryId,
) -> Result<Option<Entry>, QueryError> {
    let mut read = Statement::new(SELECT_ENTRIES);
    read.push("e.client_id = ").push_bind(client.0).push(" AND e.id = ").push_bind(entry.0);
    read.build().fetch_optional(tx)
}

/// Those of the given entries that belong to this client and are not archived, newest first.
pub(crate) fn find_entries(
    tx: &mut Tx<'_>,
    client: ClientId,
    ids: &[EntryId],
) -> Result<Vec<Entry>, QueryError> {
    let mut found: Vec<Entry> = Vec::new();
    for ids in ids.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut read = Statement::new(SELECT_ENTRIES);
        read.push("e.client_id = ").push_bind(client.0).push(" AND e.is_archived = ").push_bind(false);
        read.push(" AND e.id IN ").push_list(ids.iter().map(|entry| entry.0));
        found.extend(read.build().persistent(false).fetch_all::<Entry>(tx)?);
    }
    found.sort_by_key(|entry| std::cmp::Reverse((entry.at, entry.id)));
    // An id may be given twice.
    found.dedup_by_key(|entry| entry.id);
    Ok(found)
}

/// Adds entries with allocated ids, their first versions and their search terms.
pub(crate) fn insert_entries(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    entries: &[(EntryId, ClientId, &NewEntry)],
) -> Result<(), QueryError> {
    let by = access_request.by.person().map(|person| person.0);
    for entries in entries.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut add = Statement::new(
            "INSERT INTO entries (id, client_id, kind, at_ms, author_id, is_open, version, archived_at_ms, \
             is_archived, amount_minor, due_day, title, text) ",
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
                amount_minor(&new_dispute(new)).into(),
                due_day(&new_dispute(new)).into(),
                new.title.as_str().into(),
                new.text.as_str().into(),
            ]
        });
        add.build().persistent(entries.len() == 1).execute(tx)?;
        let mut add_versions = Statement::new(
            "INSERT INTO entry_versions \
             (entry_id, version, at_ms, is_open, is_archived, actor_id, changed_at_ms, amount_minor, due_day, title, \
             text) ",
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
                amount_minor(&new_dispute(new)).into(),
                due_day(&new_dispute(new)).into(),
                new.title.as_str().into(),
                new.text.as_str().into(),
            ]
        });
        add_versions.build().persistent(entries.len() == 1).execute(tx)?;
        let active = entries.iter().filter(|(_, _, new)| !new.is_archived);
        let terms: Vec<EntryTerms> = active
            .map(|(id, client, new)| EntryTerms {
                entry: *id,
                client: *client,
                terms: entry_terms(&new.title, &new.text),
            })
            .collect();
        add_entry_terms(tx, &terms)?;
    }
    Ok(())
}

/// Saves changed fields if the version is still the one that the editor saw. Fails with `LetterSent` for a letter that was
/// sent by email.
pub(crate) fn change_entry(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    client: ClientId,
    change: &EntryChange,
) -> Result<SaveOutcome<Entry>, ClientError> {
    let Some(current) = find_entry(tx, client, change.entry)? else {
        return Ok(SaveOutcome::NotFound);
    };
    if current.sent.is_some() {
        return Err(ClientError::LetterSent { client, letter: current.id });
    }
    if current.version != change.version {
        return Ok(SaveOutcome::Conflict(current));
    }
    let changed = Entry {
        title: change.title.clone(),
        text: change.text.clone(),
        at: change.at.unwrap_or(current.at),
        is_open: change.is_open && current.kind.can_be_open(),
        dispute: change.dispute.map_or(current.dispute, |dispute| of_kind(current.kind, dispute)),
        ..current.clone()
    };
    if changed == current {
        return Ok(SaveOutcome::Saved(current));
    }
    Ok(save_entry(tx, access_request, &current, changed)?)
}

pub(crate) fn archive_entry(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    client: ClientId,
    entry: EntryId,
    ArchiveChange { is_archived, version }: ArchiveChange,
) -> Result<SaveOutcome<Entry>, QueryError> {
    let Some(current) = find_entry(tx, client, entry)? else { return Ok(SaveOutcome::NotFound) };
    if version.is_some_and(|version| version != current.version) {
        return Ok(SaveOutcome::Conflict(current));
    }
    if current.archived_at.is_some() == is_archived {
        return Ok(SaveOutcome::Saved(current));
    }
    let changed = Entry { archived_at: is_archived.then_some(access_request.at), ..current.clone() };
    save_entry(tx, access_request, &current, changed)
}

/// Saves the entry as its next version, and updates the client's counts and the search index.
pub(crate) fn save_entry(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    current: &Entry,
    entry: Entry,
) -> Result<SaveOutcome<Entry>, QueryError> {
    let entry = Entry { version: entry.version.next(), ..entry };
    let update = query(UPDATE)
        .bind(entry.id.0)
        .bind(entry.at.0)
        .bind(entry.is_open)
        .bind(entry.version.0)
        .bind(entry.archived_at.map(|at| at.0))
        .bind(entry.archived_at.is_some())
        .bind(amount_minor(&entry.dispute))
        .bind(due_day(&entry.dispute))
        .bind(entry.title.as_str())
        .bind(entry.text.as_str());
    update.execute(tx)?;
    add_entry_version(tx, access_request, entry.id)?;
    recount_entries(tx, entry.client)?;
    let indexed = EntryTerms { entry: entry.id, client: entry.client, terms: indexed_terms(&entry) };
    replace_entry_terms(tx, &indexed_terms(current), &indexed)?;
    Ok(SaveOutcome::Saved(entry))
}

/// An archived entry is not found.
fn indexed_terms(entry: &Entry) -> BTreeSet<String> {
    match entry.archived_at {
        Some(_) => BTreeSet::new(),
        None => entry_terms(&entry.title, &entry.text),
    }
}

pub(crate) fn recount_entries(tx: &mut Tx<'_>, client: ClientId) -> Result<(), QueryError> {
    query(RECOUNT).bind(client.0).execute(tx)?;
    Ok(())
}
