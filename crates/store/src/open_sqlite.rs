//! Opens a SQLite file.

use crate::db::error_codes::{QueryError, STATEMENT_TIMEOUT, map_open_error};
use crate::db::sqlite::{create_private_file, is_chancery_database, open_writer, reject_hard_links};
use crate::db::{Db, Driver, SqliteDatabase, Tx, migrate};
use crate::ledger::sqlite::ledger_writer;
use crate::open_database::{IfMissing, OpenDatabase};
use crate::{DbError, LedgerPartitions, OpenError};
use chancery_domain::{OsRandomness, SystemClock, WriterId};
use rusqlite::Connection;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Reservations that may share a commit.
const MAX_CONCURRENT_RESERVATIONS: u32 = 64;

/// Opens the file. Its folder must exist.
pub(crate) async fn open(file: &Path, if_missing: IfMissing) -> Result<OpenDatabase, OpenError> {
    let path = file.to_owned();
    // It may wait for another process that is setting up the file.
    let connection = tokio::task::spawn_blocking(move || prepare(&path, if_missing))
        .await
        .map_err(|error| DbError::Unavailable(error.to_string()))??;
    let writer_id = WriterId::random(&OsRandomness);
    let (writer, ledger) = ledger_writer(writer_id, SystemClock);
    let cannot_start =
        |error: io::Error| OpenError::CannotOpen { file: file.to_owned(), why: error.to_string() };
    let db: Db =
        SqliteDatabase::start(file, connection, writer_id, Some(ledger)).map_err(cannot_start)?.into();
    Ok(OpenDatabase {
        writer: writer.with_db(db.clone()),
        db,
        writer_id,
        partitions: LedgerPartitions { monthly: None },
        max_concurrent_reservations: MAX_CONCURRENT_RESERVATIONS,
    })
}

/// Returns the connection for the thread that writes.
fn prepare(file: &Path, if_missing: IfMissing) -> Result<Connection, OpenError> {
    reject_hard_links(file)?;
    match if_missing {
        IfMissing::Create => create_private_file(file)?,
        IfMissing::Reject if is_chancery_database(file)? => {}
        IfMissing::Reject => return Err(OpenError::NoDatabase { location: file.display().to_string() }),
    }
    let map_error = |error: QueryError| map_open_error(&error, file);
    let connection = open_writer(file).map_err(map_error)?;
    connection.busy_timeout(STATEMENT_TIMEOUT).map_err(QueryError::from)?;
    migrate::apply(&mut Tx::outside(Driver::Sqlite(&connection)))?;
    connection.busy_timeout(Duration::ZERO).map_err(QueryError::from)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::db::sqlite::open_reader;

    fn pragma(connection: &Connection, name: &str) -> String {
        let sql = format!("SELECT CAST({name} AS TEXT) FROM pragma_{name}");
        connection.query_row(&sql, [], |row| row.get(0)).unwrap()
    }

    fn busy_timeout_ms(connection: &Connection) -> i64 {
        connection.query_row("PRAGMA busy_timeout", [], |row| row.get(0)).unwrap()
    }

    #[tokio::test]
    async fn writer_uses_full_sync_and_readers_are_read_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chancery.db");
        let store = Store::open_file(&file).await.unwrap();
        let writer = prepare(&file, IfMissing::Reject).unwrap();
        assert_eq!(pragma(&writer, "journal_mode"), "wal");
        assert_eq!(pragma(&writer, "synchronous"), "2", "FULL");
        assert_eq!(pragma(&writer, "foreign_keys"), "1");
        assert_eq!(pragma(&writer, "secure_delete"), "1");
        assert_eq!(pragma(&writer, "temp_store"), "2", "MEMORY");
        assert_eq!(busy_timeout_ms(&writer), 0, "the writer polls");
        let reader = open_reader(&file).unwrap();
        assert_eq!(pragma(&reader, "journal_mode"), "wal");
        assert_eq!(busy_timeout_ms(&reader), 5000);
        assert!(reader.execute("DELETE FROM accounts", []).is_err());
        store.close().await;
    }
}
