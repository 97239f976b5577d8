//! Public types of client records.

use chancery_domain::{
    Client, ClientId, ClientName, ContactDetails, Entry, EntryId, EntryKind, EntryText, EntryTitle, PersonId,
    PersonRef, UnixMillis, Version,
};

pub const CLIENTS_PER_PAGE: u32 = 25;

pub const ENTRIES_PER_PAGE: u32 = 25;

pub const MAX_VERSIONS_PER_READ: u32 = 100;

/// Most people on a record's list of views.
pub const MAX_RECORD_VIEWS: u32 = 20;

/// A client in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSummary {
    pub client: Client,
    /// Unsettled disputes.
    pub open_disputes: u32,
    /// Unsent letters.
    pub open_letters: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientOrder {
    /// Newest entry first; clients without entries last, by id.
    #[default]
    RecentFirst,
    OldestFirst,
    Name,
    NameDescending,
    Id,
    IdDescending,
    /// By the owner's email address, then by name.
    Owner,
    OwnerDescending,
}

/// A query on the clients that the principal may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientQuery {
    /// Search terms. Each must be a prefix of a word in the name, contact or email address, or of the id. Empty matches
    /// all.
    pub words: String,
    pub owner: Option<PersonId>,
    pub is_archived: bool,
    pub order: ClientOrder,
    /// Starts at 1. Beyond the last page there are no rows, but still the total.
    pub page: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPage {
    pub lines: Vec<ClientSummary>,
    pub total: u64,
}

/// Which entries of a record to read: a page, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryQuery {
    pub kind: Option<EntryKind>,
    pub is_archived: bool,
    /// The page begins after this entry.
    pub after: Option<EntryCursor>,
}

/// The position of an entry in the timeline: newest first; at the same time, the later id first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryCursor {
    pub at: UnixMillis,
    pub id: EntryId,
}

/// A person who has viewed a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordView {
    pub person: PersonRef,
    pub last_at: UnixMillis,
    pub times: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryCounts {
    pub meeting_notes: u64,
    pub billing_disputes: u64,
    pub draft_letters: u64,
    pub open_disputes: u64,
    pub open_letters: u64,
    pub archived: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRecord {
    pub client: Client,
    pub entries: Vec<Entry>,
    /// Whether more entries follow.
    pub has_more: bool,
    pub counts: EntryCounts,
    /// Views of the record including this one, latest first.
    pub views: Vec<RecordView>,
}

/// A part of a record that is read in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPart {
    /// As it is when this part is read.
    pub client: Client,
    pub is_first: bool,
    /// The next entries of the record. None of them is in another part.
    pub entries: Vec<Entry>,
    /// Whether the record ends here.
    pub is_last: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClient {
    pub name: ClientName,
    pub details: ContactDetails,
    /// For imported clients.
    pub entries: Vec<NewEntry>,
    pub is_archived: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    pub kind: EntryKind,
    pub title: EntryTitle,
    pub text: EntryText,
    pub at: UnixMillis,
    pub author: PersonId,
    pub is_open: bool,
    /// For imported entries.
    pub is_archived: bool,
}

/// New name and contact details. `version` is the version that the editor saw (optimistic lock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientChange {
    pub version: Version,
    pub name: ClientName,
    pub details: ContactDetails,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryChange {
    pub entry: EntryId,
    pub version: Version,
    pub title: EntryTitle,
    pub text: EntryText,
    /// `None` leaves the time as it is.
    pub at: Option<UnixMillis>,
    pub is_open: bool,
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveOutcome<T> {
    Saved(T),
    /// A concurrent change came first: the current state. Nothing was changed.
    Conflict(T),
    /// The client or entry does not exist.
    NotFound,
}

/// A version of a client's details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientVersion {
    pub version: Version,
    pub name: ClientName,
    pub details: ContactDetails,
    pub owner: PersonRef,
    pub is_archived: bool,
    /// `None` for the command line.
    pub by: Option<PersonRef>,
    pub at: UnixMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryVersion {
    pub version: Version,
    pub title: EntryTitle,
    pub text: EntryText,
    pub at: UnixMillis,
    pub is_open: bool,
    pub is_archived: bool,
    /// `None` for the command line.
    pub by: Option<PersonRef>,
    pub changed_at: UnixMillis,
}

/// Which versions to read. There may be any number of them, each a full copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionQuery {
    /// The newest versions before the given one: up to `limit`, and at most `MAX_VERSIONS_PER_READ`.
    Page { before: Option<Version>, limit: u32 },
    /// The version that the editor started from, and the current one.
    CurrentAnd(Version),
    /// No versions: only the current state, without its author.
    None,
}

impl VersionQuery {
    pub const NEWEST: Self = Self::Page { before: None, limit: MAX_VERSIONS_PER_READ };
}

/// A client's owner: all that the policy needs, and nothing of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOwner {
    pub client: ClientId,
    pub owner: PersonId,
}
