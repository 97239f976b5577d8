//! What can go wrong with any statement, and with opening a database. The texts are for logs; surfaces choose their own words,
//! and the command line adds what to do. None of them carries a password.

use std::path::PathBuf;

/// The database failed, or cannot store or count what it was given.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    #[error("{what} holds a NUL character, which a database cannot keep; leave it out")]
    NulCharacter { what: &'static str },
    #[error("the sum is too large to be counted exactly; ask for fewer days")]
    SumTooLarge,
    #[error("{what} in the database cannot be read: {why}")]
    Corrupt { what: &'static str, why: String },
    #[error("the database has no room left on its disk: {0}; free some space, nothing was half-written")]
    DiskFull(String),
    #[error(
        "the database cannot be written: {0}; let the user that chancery runs as write to it, or connect to the primary server"
    )]
    ReadOnly(String),
    #[error("the database did not answer: {0}")]
    Unavailable(String),
}

/// A database that cannot be opened or served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no Chancery database at {place}")]
    NoDatabase { place: String },
    #[error("{0}; a database URL is `sqlite:PATH` or `postgres://USER:PASSWORD@HOST:PORT/DATABASE`")]
    BadUrl(String),
    #[error("there is no folder {folder} to keep the database in")]
    NoFolder { folder: PathBuf },
    #[error("the database file {file} cannot be opened: {why}")]
    CannotOpen { file: PathBuf, why: String },
    #[error("{file} is not a database")]
    NotADatabase { file: PathBuf },
    #[error("the database already holds another program's tables")]
    ForeignDatabase,
    #[error(
        "the database was made by a newer chancery (its schema is {found}, this program knows {known}); start that version"
    )]
    NewerSchema { found: i64, known: i64 },
    #[error(
        "the database was made by a chancery from before the first release, whose schema cannot be brought up to date"
    )]
    OldSchema,
    #[error(
        "the database's schema is not the one this program makes: {why}; start the version that made it, or restore a backup"
    )]
    SchemaMismatch { why: String },
    #[error(
        "another chancery server, or a large import, runs on the database file {file}, and a SQLite file is for one"
    )]
    FileIsServed { file: PathBuf },
    #[error(
        "another chancery server runs on this database, and this one keeps the limits per minute in its own memory, so that accounts could use them once with each"
    )]
    ServedByAnother,
    #[error(
        "another chancery server runs on this database and keeps the limits per minute in its own memory, so that accounts could use them once with each"
    )]
    ServedWithLimitsInMemory,
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<sqlx::Error> for OpenError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}
