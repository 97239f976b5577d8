//! How a transaction begins in either database.

use crate::db::postgres::PostgresStore;
use crate::db::sqlite::SqliteStore;

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

/// Several reads of one moment: what is written meanwhile is in none of them.
pub(crate) trait BeginReading {
    const BEGIN_READING: &'static str;
}

impl BeginReading for SqliteStore {
    const BEGIN_READING: &'static str = "BEGIN";
}

impl BeginReading for PostgresStore {
    const BEGIN_READING: &'static str = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";
}
