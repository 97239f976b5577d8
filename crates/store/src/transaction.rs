//! How a transaction that writes begins in either database.

use crate::postgres::PostgresStore;
use crate::sqlite::SqliteStore;

pub(crate) trait BeginWriting {
    const BEGIN: &'static str;
}

/// It takes the write lock at once, for a transaction that has read cannot wait for it any more.
impl BeginWriting for SqliteStore {
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
}

impl BeginWriting for PostgresStore {
    const BEGIN: &'static str = "BEGIN";
}
