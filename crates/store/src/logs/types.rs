//! Public types of the Merkle logs.

use chancery_domain::{LogName, TreeHash, UnixMillis, UsageRow, WriterId};

/// Rows of one writer's chain that follow each other in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSegment {
    /// The leaf of the first row.
    pub first_index: u64,
    pub writer: WriterId,
    /// The position of the first row in its writer's chain.
    pub first_position: u64,
    pub rows: u64,
}

/// A writer whose chain is longer than the part of it that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnloggedRows {
    pub writer: WriterId,
    pub logged: u64,
    /// The length of the chain.
    pub rows: u64,
}

/// A node of the tree above the leaves. `tlog` says which are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogNode {
    pub level: u8,
    pub index: u64,
    pub hash: TreeHash,
}

/// The hash of a row as a leaf, computed from the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLeaf {
    /// In its writer's chain.
    pub position: u64,
    pub hash: TreeHash,
}

/// What is added to a log in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogAppend {
    pub log: LogName,
    /// How many leaves the log must have before.
    pub size: u64,
    pub segments: Vec<LogSegment>,
    pub nodes: Vec<LogNode>,
}

/// A signed checkpoint of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCheckpoint {
    pub size: u64,
    /// The signed note.
    pub note: String,
    pub at: UnixMillis,
}

/// A usage row, and its leaf if it is in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedUsage {
    pub row: UsageRow,
    pub index: Option<u64>,
}
