//! Public types of client records.

use crate::clients::search::TermRange;
use crate::{ListTotal, NewMessage};
use chancery_domain::{
    AccessRequest, Client, ClientId, ClientName, ContactDetails, ContactEmail, Day, DisputeDetails,
    EmailSubject, Entry, EntryId, EntryKind, EntryText, EntryTitle, LetterHeading, MinorUnits, PersonId,
    PersonRef, UnixMillis, Version,
};
use chancery_policy::{Permit, ReadClient};
use std::collections::{BTreeMap, BTreeSet};

pub const CLIENTS_PER_PAGE: u32 = 25;

pub const ENTRIES_PER_PAGE: u32 = 25;

/// Most bytes of titles and texts in a page of a whole record, unless a single entry has more. Counted when the record is
/// opened.
pub const MAX_RECORD_PAGE_BYTES: u64 = 1024 * 1024;

/// Most entries in a page of a whole record. An entry may grow before its page is read, so this bounds a page whatever
/// happens.
pub const MAX_RECORD_PAGE_ENTRIES: usize = 100;

pub const MAX_VERSIONS_PER_READ: u32 = 100;

/// Most disputes, and most letters, in a summary of work.
pub const MAX_WORK_ITEMS: u32 = 20;

/// Most recently viewed clients in a summary of work.
pub const MAX_RECENT_CLIENTS: u32 = 8;

/// Most people on a record's list of views.
pub const MAX_RECORD_VIEWS: u32 = 20;

/// A client in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSummary {
    pub client: Client,
    /// Unresolved disputes.
    pub open_disputes: u32,
    /// Unsent letters.
    pub open_letters: u32,
    /// The earliest due date of its open disputes.
    pub next_due: Option<Day>,
}

/// Which clients to list, by their open disputes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisputeFilter {
    /// At least one is open.
    Open,
    /// At least one is open and was due before this day.
    DueBefore(Day),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientOrder {
    /// Newest entry first; a client without entries by the time of its creation, so that a new one comes first.
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
    /// Search terms. Each must be a part of the id or telephone number, or a prefix of a word in the name, contact or
    /// email address, or in an entry that is not archived. Terms of one or two letters do not search entries. Empty
    /// matches all.
    pub words: String,
    pub owner: Option<PersonId>,
    pub disputes: Option<DisputeFilter>,
    pub is_archived: bool,
    pub order: ClientOrder,
    /// Starts at 1. Beyond the last page there are no rows, but still the total.
    pub page: u32,
    /// Whether to count every match of a search, however many there are.
    pub counts_all: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientPage {
    pub lines: Vec<ClientSummary>,
    pub total: ListTotal,
    /// `None` without a search, and if no entry of these clients has a search term.
    pub search: Option<RecordedSearch>,
}

/// Proof that the decision to list clients is recorded, and which of the listed clients have a search term in an entry.
/// `Clients::find_matches` reads those entries. Only `Clients::list_clients` creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSearch {
    pub(crate) access_request: AccessRequest,
    /// Those that are long enough to be looked up in entries.
    pub(crate) terms: Vec<TermRange>,
    pub(crate) clients: BTreeSet<ClientId>,
}

impl RecordedSearch {
    pub fn has_matches_of(&self, client: ClientId) -> bool {
        self.clients.contains(&client)
    }

    /// Whether the permit is for one of these clients, and for the same person in the same request.
    pub(crate) fn covers(&self, permit: &Permit<ReadClient>) -> bool {
        is_same_request(&self.access_request, permit)
            && permit.client().is_some_and(|client| self.has_matches_of(client))
    }
}

/// Whether the permit is for the same person in the same request.
fn is_same_request(recorded: &AccessRequest, permit: &Permit<ReadClient>) -> bool {
    let AccessRequest { by, request_id, .. } = permit.access_request();
    *by == recorded.by && *request_id == recorded.request_id
}

/// Whose work to sum up, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkQuery {
    /// Only this owner's clients; within what the principal may read.
    pub owner: Option<PersonId>,
    /// Disputes due on this day or earlier.
    pub due_by: Day,
}

/// Numbers of an entry that waits, and of its client. Nothing of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkEntry {
    pub(crate) client: ClientOwner,
    pub(crate) entry: EntryId,
}

/// Proof that the decision to list clients is recorded, and the numbers of what waits. `Clients::read_work` reads it.
/// Only `Clients::find_work` creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedWork {
    pub(crate) access_request: AccessRequest,
    pub(crate) due_by: Day,
    pub(crate) disputes: Vec<WorkEntry>,
    pub(crate) letters: Vec<WorkEntry>,
    pub(crate) recent: Vec<ClientOwner>,
}

impl RecordedWork {
    pub(crate) fn empty(access_request: &AccessRequest, due_by: Day) -> Self {
        let (disputes, letters, recent) = (Vec::new(), Vec::new(), Vec::new());
        Self { access_request: access_request.clone(), due_by, disputes, letters, recent }
    }

    /// The clients of what waits, each once. Callers ask the policy about each.
    pub fn clients(&self) -> Vec<ClientOwner> {
        let entries = self.disputes.iter().chain(&self.letters).map(|found| found.client);
        let clients = entries.chain(self.recent.iter().copied()).map(|found| (found.client, found));
        clients.collect::<BTreeMap<ClientId, ClientOwner>>().into_values().collect()
    }

    /// Whether the permit is for the same person in the same request.
    pub(crate) fn covers(&self, permit: &Permit<ReadClient>) -> bool {
        is_same_request(&self.access_request, permit)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkSummary {
    /// Open disputes, the earliest first: up to `MAX_WORK_ITEMS`.
    pub disputes: Vec<DueDispute>,
    /// Unsent letters, the newest first: up to `MAX_WORK_ITEMS`.
    pub letters: Vec<UnsentLetter>,
    /// Clients that the principal viewed last: up to `MAX_RECENT_CLIENTS`.
    pub recent: Vec<RecentClient>,
}

/// An entry that waits, and its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkItem {
    pub client: ClientId,
    pub client_name: ClientName,
    pub owner: PersonRef,
    pub entry: EntryId,
    pub title: EntryTitle,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDispute {
    pub item: WorkItem,
    pub amount: Option<MinorUnits>,
    pub due: Day,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsentLetter {
    pub item: WorkItem,
    pub at: UnixMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentClient {
    pub summary: ClientSummary,
    pub viewed_at: UnixMillis,
}

/// Which entries of a record to read: a page, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryQuery {
    pub kind: Option<EntryKind>,
    /// Only open entries, or only those that are not.
    pub is_open: Option<bool>,
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
    /// Ignored unless the entry is a dispute.
    pub dispute: DisputeDetails,
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
    /// `None` leaves them as they are. Ignored unless the entry is a dispute.
    pub dispute: Option<DisputeDetails>,
}

/// Archives or restores a client or an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveChange {
    pub is_archived: bool,
    /// The only version that may be changed, so that an undo never undoes anything newer. `None`: any.
    pub version: Option<Version>,
}

impl ArchiveChange {
    pub const ARCHIVE: Self = Self { is_archived: true, version: None };
    pub const RESTORE: Self = Self { is_archived: false, version: None };
}

/// Restores the content of an earlier version. `current` is the version that the user saw (optimistic lock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRestore {
    pub current: Version,
    pub to: Version,
}

/// A letter with its client.
#[derive(Clone, Debug)]
pub struct OpenedLetter {
    pub client: Client,
    pub letter: Entry,
    /// Whether the person has typed changes of the letter that are not saved. False for a sent letter.
    pub has_unsaved_text: bool,
}

/// A letter to send by email.
#[derive(Clone, Debug)]
pub struct LetterEmail {
    pub letter: EntryId,
    /// The version that the sender saw.
    pub version: Version,
    /// The client's address that the sender saw. It must be the client's address still.
    pub to: ContactEmail,
    pub subject: EmailSubject,
    /// As the PDF of the email has it.
    pub heading: LetterHeading,
    pub message: NewMessage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterOutcome {
    Sent,
    /// By an earlier request. Nothing was sent again.
    AlreadySent,
    /// Someone edited the letter since the sender saw it. Nothing was sent, as in all cases below.
    LetterChanged,
    RecipientChanged,
    /// The sender has sent as many letters as they can in a day.
    QuotaExceeded {
        until: UnixMillis,
    },
    /// The client has no such letter, or it is archived.
    NotFound,
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
    pub dispute: DisputeDetails,
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
    /// This version, if there is one.
    Only(Version),
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

/// A client that was given another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastReassignment {
    pub now: ClientOwner,
    pub former_owner: PersonId,
    /// False if the client has had another owner since, or the former one was removed.
    pub can_undo: bool,
}
