//! Public types of the audit log.

use chancery_domain::{
    Action, AuditRow, ChainHash, ClientId, Decision, EventKind, PersonId, PersonRef, UnixMillis,
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
}

/// An audit row with its position in its writer's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedAuditRow {
    pub row: AuditRow,
    /// Starts at 0.
    pub position: u64,
    pub hash: ChainHash,
}
