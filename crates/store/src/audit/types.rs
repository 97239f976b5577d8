//! The audit log as the rest of Chancery sees it.

use chancery_domain::{
    Action, AuditRow, ChainHash, ClientId, Decision, EventKind, PersonId, PersonRef, UnixMillis,
};

/// Rows of the audit on one page.
pub const AUDIT_ROWS_PER_PAGE: u32 = 100;

/// Which rows of the audit to read. All that is given must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    pub person: Option<PersonId>,
    pub client: Option<ClientId>,
    pub action: Option<Action>,
    pub event: Option<EventKind>,
    pub decision: Option<Decision>,
    /// From this moment on.
    pub from: Option<UnixMillis>,
    /// Before this moment.
    pub until: Option<UnixMillis>,
    /// The page of those before this row, or of those after it. None: the newest.
    pub turn: Option<AuditTurn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditTurn {
    Before(AuditPlace),
    /// The nearest ones, which are given newest first like all others.
    After(AuditPlace),
}

/// Where a row stands in the list: newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditPlace(pub i64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    pub place: AuditPlace,
    pub row: AuditRow,
    /// Who asked. None: the command line, or somebody who is not known yet.
    pub person: Option<PersonRef>,
    /// Whose access it is about.
    pub subject: Option<PersonRef>,
}

/// A row of the audit with its place in its writer's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedAuditRow {
    pub row: AuditRow,
    /// The first is 0.
    pub place: u64,
    pub hash: ChainHash,
}
