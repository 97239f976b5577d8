//! Errors of statements and of opening a database. The texts are for logs; surfaces write their own, and the command
//! line adds advice. None of them contains a password.

use crate::SecretError;
use chancery_domain::PersonId;
use std::path::PathBuf;

/// The database failed, the data cannot be stored or summed, or the principal of a step is no longer the one that the
/// policy decided for.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DbError {
    #[error("{what} contains a NUL character; remove it")]
    NulCharacter { what: &'static str },
    #[error("the sum is too large to be exact; use a shorter period")]
    SumTooLarge,
    #[error("{what} in the database is invalid: {why}")]
    Corrupt { what: &'static str, why: String },
    #[error("the database disk is full: {0}; free some space. Nothing was partially written")]
    DiskFull(String),
    #[error(
        "the database cannot be written: {0}; give the user that runs chancery write access, or connect to the primary server"
    )]
    ReadOnly(String),
    #[error("the database did not answer: {0}")]
    Unavailable(String),
    #[error("the role of person number {0} changed during this request, or the person was removed")]
    PrincipalChanged(PersonId),
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// The database cannot be opened or served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no Chancery database at {location}")]
    NoDatabase { location: String },
    #[error("{0}; a database URL is `sqlite:PATH` or `postgres://USER:PASSWORD@HOST:PORT/DATABASE`")]
    BadUrl(String),
    #[error("the directory {folder} for the database does not exist")]
    NoFolder { folder: PathBuf },
    #[error("the database file {file} cannot be opened: {why}")]
    CannotOpen { file: PathBuf, why: String },
    #[error(
        "the database file {file} has {links} hard links; SQLite corrupts a file that processes open under several names; remove the other names, which `find DIRECTORY -samefile {file}` lists"
    )]
    HardLinked { file: PathBuf, links: u64 },
    #[error("{file} is not a database")]
    NotADatabase { file: PathBuf },
    #[error("the database already contains another program's tables")]
    NotChanceryDatabase,
    #[error(
        "the database was created by a newer version (schema {found}, this version supports {known}); start that version"
    )]
    NewerSchema { found: i64, known: i64 },
    #[error(
        "the database schema predates the first release and cannot be migrated; start with an empty database"
    )]
    OldSchema,
    #[error("unexpected database schema: {why}; start the version that created it, or restore a backup")]
    SchemaMismatch { why: String },
    #[error(
        "the database file {file} is in use by another chancery server or an import; only one server can use a SQLite file"
    )]
    DatabaseFileInUse { file: PathBuf },
    #[error("another chancery server is using this database, and this one stores rate limits in memory")]
    OtherServerRunning,
    #[error("another chancery server on this database stores rate limits in memory")]
    OtherServerUsesMemoryLimits,
    #[error(transparent)]
    Database(#[from] DbError),
}
