//! Public types of the audit log.

use chancery_domain::{
    Action, AuditRow, ChainHash, ClientId, ClientName, Decision, EntryId, EntryKind, EventKind, MinorUnits,
    PersonId, PersonRef, UnixMillis,
};

pub const AUDIT_ROWS_PER_PAGE: u32 = 100;

/// A filter on audit rows. A row must match every given field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    pub person: Option<PersonId>,
    pub client: Option<ClientId>,
    pub action: Option<Action>,
    pub event: Option<EventKind>,
    pub decision: Option<Decision>,
    /// Inclusive.
    pub from: Option<UnixMillis>,
    /// Exclusive.
    pub until: Option<UnixMillis>,
    /// The page before or after this row. `None`: the newest page.
    pub cursor: Option<AuditCursor>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditCursor {
    Before(AuditRowId),
    /// The nearest rows after it, also newest first.
    After(AuditRowId),
}

/// The id of an audit row, as a page cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditRowId(pub i64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditListRow {
    pub position: AuditRowId,
    pub row: AuditRow,
    /// The principal. `None` for the command line, or a person who is not known yet.
    pub person: Option<PersonRef>,
    /// The person whose access the event concerns.
    pub subject: Option<PersonRef>,
    /// The current name of the client. `None` if there is no such client.
    pub client_name: Option<ClientName>,
}

/// What a change did to a client's details or to one of its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordChange {
    pub client: ClientId,
    /// `None` for the client's own details.
    pub entry: Option<ChangedEntry>,
    /// `None` for the command line.
    pub by: Option<PersonId>,
    pub at: UnixMillis,
    /// Whether the change created it; then no field has an old value.
    pub is_new: bool,
    pub fields: Vec<FieldChange>,
}

impl RecordChange {
    /// Whether the row of the audit log is about this change: they share client, person and time.
    pub fn is_of(&self, line: &AuditListRow) -> bool {
        let person = line.person.as_ref().map(|person| person.id);
        (Some(self.client), self.by, self.at) == (line.row.client(), person, line.row.at())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedEntry {
    pub id: EntryId,
    pub kind: EntryKind,
    /// After the change.
    pub title: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    pub field: RecordField,
    pub old: FieldValue,
    pub new: FieldValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordField {
    Name,
    Contact,
    Email,
    Telephone,
    Address,
    Since,
    Owner,
    Title,
    Text,
    Date,
    /// Of a dispute: not resolved. Of a letter: a draft.
    Open,
    /// Of a dispute.
    Amount,
    /// Of a dispute.
    Due,
    Archived,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    Text(String),
    /// Too long for a list: only whether it differs from the text after the change.
    LongText {
        differs: bool,
    },
    Time(UnixMillis),
    Person(PersonRef),
    Flag(bool),
    /// In the firm's currency.
    Amount(Option<MinorUnits>),
}

/// An audit row with its position in its writer's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedAuditRow {
    pub row: AuditRow,
    /// Starts at 0.
    pub position: u64,
    pub hash: ChainHash,
}
