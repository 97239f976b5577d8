//! Why a log cannot be extended or proved.

use chancery_domain::{LogName, WriterId};
use chancery_store::DbError;
use chancery_tlog::{CheckpointError, ProofError};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(transparent)]
    Database(#[from] DbError),
    #[error("{log} log: {found} rows, but the last checkpoint in {} has {expected}: rows were removed", .folder.display())]
    Shrunk { log: LogName, found: u64, expected: u64, folder: PathBuf },
    #[error("{log} log: it no longer begins with the {size} rows of its last checkpoint: rows were changed")]
    Inconsistent { log: LogName, size: u64 },
    #[error("{log} log: the row at position {position} of writer {writer} is missing or there twice")]
    MissingRow { log: LogName, writer: WriterId, position: u64 },
    #[error("{log} log: its segments or nodes at {index} are missing or wrong")]
    MissingHashes { log: LogName, index: u64 },
    #[error(
        "{log} log: the checkpoint of {size} rows in the database cannot be used: {error}; every node needs the same checkpoint.key"
    )]
    Checkpoint { log: LogName, size: u64, error: CheckpointError },
    #[error("cannot sign a checkpoint: {0}")]
    Signature(CheckpointError),
    #[error("cannot use {}: {error}", .path.display())]
    Folder { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Proof(#[from] ProofError),
}
