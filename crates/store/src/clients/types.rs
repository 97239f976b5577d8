//! Client records as the rest of Chancery sees them.

use chancery_domain::{
    Client, ClientId, ClientName, ContactFacts, Entry, EntryId, EntryKind, EntryText, EntryTitle, PersonId,
    PersonRef, UnixMillis, Version,
};

/// Rows of a list on one page.
pub const CLIENTS_PER_PAGE: u32 = 25;

/// Entries of a record on one page.
pub const ENTRIES_PER_PAGE: u32 = 25;

/// Versions that are read at once.
pub const MAX_VERSIONS_AT_ONCE: u32 = 100;

/// People on the list of those who opened a record.
pub const MAX_LOOKS: u32 = 20;

/// What a list shows of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLine {
    pub client: Client,
    /// Disputes that are not settled.
    pub open_disputes: u32,
    /// Letters that were not sent.
    pub open_letters: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientOrder {
    /// The newest entry first; clients without entries last, by number.
    #[default]
    RecentFirst,
    OldestFirst,
    Name,
    NameBackwards,
    Id,
    IdBackwards,
    /// By the owner's address, then by name.
    Owner,
    OwnerBackwards,
}

/// What to list of those clients that the permit's holder may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientQuery {
    /// Words, each of which must begin a word of the name, of the contact or of the e-mail address, or the number. Empty: all.
    pub words: String,
    pub owner: Option<PersonId>,
    pub is_archived: bool,
    pub order: ClientOrder,
    /// The first is 1. Past the last one there are no lines, but still the total.
    pub page: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPage {
    pub lines: Vec<ClientLine>,
    pub total: u64,
}

/// Which entries of a record to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntriesWanted {
    /// A page of them, newest first, after the given one.
    Page { kind: Option<EntryKind>, is_archived: bool, after: Option<EntryPlace> },
    /// All that are not archived, newest first.
    All,
}

/// Where an entry stands in the timeline: newest first, and of one moment the later written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPlace {
    pub at: UnixMillis,
    pub id: EntryId,
}

/// Somebody who has opened a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
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
    /// Whether there are entries after the last of these.
    pub has_more: bool,
    pub counts: EntryCounts,
    /// Who has opened it, this reading included, the latest first.
    pub looks: Vec<Look>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClient {
    pub name: ClientName,
    pub facts: ContactFacts,
    /// For clients that are brought in from elsewhere.
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
    /// For entries that are brought in from elsewhere.
    pub is_archived: bool,
}

/// What a client is to be called from now on. `version` is the one that was on the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientChange {
    pub version: Version,
    pub name: ClientName,
    pub facts: ContactFacts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryChange {
    pub entry: EntryId,
    pub version: Version,
    pub title: EntryTitle,
    pub text: EntryText,
    /// None: when it was.
    pub at: Option<UnixMillis>,
    pub is_open: bool,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed<T> {
    Saved(T),
    /// Somebody else was quicker: as it is now. Nothing was changed.
    Conflict(T),
    /// There is no such thing.
    Gone,
}

/// A version of a client's facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientVersion {
    pub version: Version,
    pub name: ClientName,
    pub facts: ContactFacts,
    pub owner: PersonRef,
    pub is_archived: bool,
    /// None: the command line.
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
    /// None: the command line.
    pub by: Option<PersonRef>,
    pub changed_at: UnixMillis,
}

/// Which versions of something to read. There may be any number of them, each as long as the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionsWanted {
    /// The newest of those before the given one: up to `limit`, and never more than `MAX_VERSIONS_AT_ONCE`.
    Page { before: Option<Version>, limit: u32 },
    /// What somebody started from, and what is saved now.
    NowAnd(Version),
    /// Only what is saved now, without who saved it.
    None,
}

impl VersionsWanted {
    pub const NEWEST: Self = Self::Page { before: None, limit: MAX_VERSIONS_AT_ONCE };
}

/// Whose client it is: all that the policy has to know, and nothing of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    pub client: ClientId,
    pub owner: PersonId,
}
