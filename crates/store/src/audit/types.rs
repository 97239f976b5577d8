//! The audit log as the rest of Chancery sees it.

use crate::{StoreError, TeamMember};
use async_trait::async_trait;
use chancery_domain::{
    Action, AuditRow, ChainHash, ChainHead, ClientId, Decision, EventKind, PersonId, PersonRef, SessionTimes,
    UnixMillis, WriterId,
};
use chancery_policy::{ManageTeam, Permit, ReadAudit, ReadTeam};

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

#[async_trait]
pub trait Audit: Send + Sync + 'static {
    /// A page, newest first, this decision included.
    async fn read_audit(
        &self,
        permit: &Permit<ReadAudit>,
        query: &AuditQuery,
    ) -> Result<Vec<AuditLine>, StoreError>;

    /// The next page of what `read_audit` began, for a file with all of it.
    async fn read_more_audit(
        &self,
        permit: &Permit<ReadAudit>,
        query: &AuditQuery,
    ) -> Result<Vec<AuditLine>, StoreError>;

    /// Everybody who was not removed, by address, then those who were.
    async fn read_team(
        &self,
        permit: Permit<ReadTeam>,
        times: SessionTimes,
    ) -> Result<Vec<TeamMember>, StoreError>;

    /// Writes down that somebody may change something about somebody else, before it is changed.
    async fn note_managing_team(&self, permit: Permit<ManageTeam>) -> Result<(), StoreError>;

    /// The writer with the next higher number that has rows or an end.
    async fn audit_writer_after(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, StoreError>;

    /// Where the writer's chain is said to end.
    async fn audit_chain_head(&self, writer: WriterId) -> Result<Option<ChainHead>, StoreError>;

    /// One writer's rows in order of their places: up to `limit` from the given place on.
    async fn audit_rows(
        &self,
        writer: WriterId,
        from: u64,
        limit: u32,
    ) -> Result<Vec<ChainedAuditRow>, StoreError>;
}
