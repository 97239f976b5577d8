//! Opens a SQLite file.

use crate::db::error_codes::{STATEMENT_TIMEOUT, map_open_error};
use crate::db::read_pool::ReadPool;
use crate::db::sqlite::{
    SqliteConnector, create_private_file, is_chancery_database, read_options, reject_hard_links,
    write_options,
};
use crate::db::write_slot::{Connector, WriteSlot};
use crate::db::{Conn, Db, Pool, WritePool, migrate};
use crate::ledger::sqlite::SqliteLedger;
use crate::ledger::writer::LedgerWriter;
use crate::open_database::{IfMissing, OpenDatabase, WriteConnection};
use crate::{LedgerPartitions, OpenError};
use chancery_domain::{OsRandomness, SystemClock, WriterId};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Each read connection is a thread. Reads are short, so a few serve many requests.
const MAX_READERS: u32 = 4;

/// Connections for sums over the whole ledger. They are separate because a few such queries would delay every key
/// lookup.
const MAX_REPORT_READERS: u32 = 2;

/// SQLite has one writer at a time. With one concurrent reservation, the ledger waits for at most one of them.
const MAX_CONCURRENT_RESERVATIONS: u32 = 1;

/// Opens the file. Its folder must exist.
pub(crate) async fn open(file: &Path, if_missing: IfMissing) -> Result<OpenDatabase, OpenError> {
    reject_hard_links(file)?;
    match if_missing {
        IfMissing::Create => create_private_file(file)?,
        IfMissing::Reject if is_chancery_database(file).await? => {}
        IfMissing::Reject => return Err(OpenError::NoDatabase { location: file.display().to_string() }),
    }
    let map_error = |error: sqlx::Error| map_open_error(&error, file);
    let setup_connector = SqliteConnector { options: write_options(file).busy_timeout(STATEMENT_TIMEOUT) };
    let mut connection = setup_connector.connect().await.map_err(map_error)?;
    migrate::apply(Conn::from(&mut connection)).await?;
    let read_connector = || SqliteConnector { options: read_options(file) };
    let reader = ReadPool::connect(read_connector(), MAX_READERS).await.map_err(map_error)?;
    // Only after another connection is open: closing the last connection deletes the WAL file.
    SqliteConnector::disconnect(connection).await;
    let long_reader = ReadPool::new(read_connector(), MAX_REPORT_READERS);
    let slot = Arc::new(WriteSlot::empty(SqliteConnector { options: write_options(file) }));
    let ledger = SqliteLedger::new(file, Arc::clone(&slot));
    let (reads, long_reads) = (Pool::Sqlite(Arc::new(reader)), Pool::Sqlite(Arc::new(long_reader)));
    let db = Db::new(reads, long_reads, WritePool::Slot(Arc::clone(&slot)));
    let writer_id = WriterId::random(&OsRandomness);
    let cannot_start =
        |error: io::Error| OpenError::CannotOpen { file: file.to_owned(), why: error.to_string() };
    let writer = LedgerWriter::start_on_thread(writer_id, ledger, SystemClock).map_err(cannot_start)?;
    Ok(OpenDatabase {
        db,
        writer_id,
        writer,
        slot: WriteConnection::Sqlite(slot),
        partitions: LedgerPartitions { monthly: None },
        max_concurrent_reservations: MAX_CONCURRENT_RESERVATIONS,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use sqlx::{ConnectOptions, SqliteConnection};

    fn slot(store: &Store) -> &WriteSlot<SqliteConnector> {
        match &store.slot {
            WriteConnection::Sqlite(slot) => slot,
            WriteConnection::Postgres(_) => panic!("it is a SQLite file"),
        }
    }

    async fn pragma(connection: &mut SqliteConnection, name: &'static str) -> String {
        let sql = sqlx::AssertSqlSafe(format!("SELECT CAST({name} AS TEXT) FROM pragma_{name}"));
        sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
    }

    async fn busy_timeout_ms(connection: &mut SqliteConnection) -> i64 {
        sqlx::query_scalar("PRAGMA busy_timeout").fetch_one(connection).await.unwrap()
    }

    #[tokio::test]
    async fn writer_uses_full_sync_and_readers_are_read_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let mut writer = slot(&store).acquire().await.unwrap();
        assert_eq!(pragma(&mut writer.connection, "journal_mode").await, "wal");
        assert_eq!(pragma(&mut writer.connection, "synchronous").await, "2", "FULL");
        assert_eq!(pragma(&mut writer.connection, "foreign_keys").await, "1");
        assert_eq!(pragma(&mut writer.connection, "secure_delete").await, "1");
        assert_eq!(
            busy_timeout_ms(&mut writer.connection).await,
            0,
            "a busy file is reported at once, and `RetryPolicy` waits"
        );
        drop(writer);
        let mut reader = read_options(&folder.path().join("chancery.db")).connect().await.unwrap();
        assert_eq!(pragma(&mut reader, "journal_mode").await, "wal");
        assert_eq!(busy_timeout_ms(&mut reader).await, 5000);
        assert!(sqlx::query("DELETE FROM accounts").execute(&mut reader).await.is_err());
    }
}
