//! Opens a SQLite file.

use crate::db::error_codes::{STATEMENT_TIMEOUT, map_open_error};
use crate::db::read_pool::ReadPool;
use crate::db::sqlite::{
    SqliteConnector, create_private_file, is_chancery_database, read_options, write_options,
};
use crate::db::write_slot::{Connector, WriteSlot};
use crate::db::{Conn, Db, Pool, WritePool, migrate};
use crate::ledger::sqlite::SqliteLedger;
use crate::ledger::writer::LedgerWriter;
use crate::open_database::{IfMissing, LedgerSlot, OpenDatabase};
use crate::{LedgerPartitions, OpenError};
use chancery_domain::{OsRandomness, SystemClock, WriterId};
use std::path::Path;
use std::sync::Arc;

/// Each read connection is a thread. Reads are short, so a few serve many requests.
const MAX_READERS: u32 = 4;

/// Connections for sums over the whole ledger. They are separate because a few such queries would delay every key
/// lookup.
const MAX_REPORT_READERS: u32 = 2;

/// SQLite has one write connection. With one concurrent reservation, the ledger waits for at most one of them.
const MAX_CONCURRENT_RESERVATIONS: u32 = 1;

/// Opens the file. Its folder must exist.
pub(crate) async fn open(file: &Path, if_missing: IfMissing) -> Result<OpenDatabase, OpenError> {
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
    let (reads, long_reads) = (Pool::Sqlite(Arc::new(reader)), Pool::Sqlite(Arc::new(long_reader)));
    let db = Db::new(reads, long_reads, WritePool::Slot(Arc::clone(&slot)));
    let writer_id = WriterId::random(&OsRandomness);
    Ok(OpenDatabase {
        db,
        writer_id,
        writer: LedgerWriter::start(writer_id, SqliteLedger::new(Arc::clone(&slot)), SystemClock),
        slot: LedgerSlot::Sqlite(slot),
        partitions: LedgerPartitions { monthly: None },
        max_concurrent_reservations: MAX_CONCURRENT_RESERVATIONS,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DbError;
    use crate::{LedgerError, NewAccount, NewKey, Store};
    use chancery_domain::{
        AccountId, ApiKey, KeyId, KeyLimits, Nanos, OsRandomness, Prices, RateLimits, RequestId, StopReason,
        TokenPrice, UnixMillis, UsageRow,
    };
    use sqlx::{ConnectOptions, SqliteConnection};

    fn slot(store: &Store) -> &WriteSlot<SqliteConnector> {
        match &store.slot {
            LedgerSlot::Sqlite(slot) => slot,
            LedgerSlot::Postgres(_) => panic!("it is a SQLite file"),
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
        assert_eq!(pragma(&mut writer, "journal_mode").await, "wal");
        assert_eq!(pragma(&mut writer, "synchronous").await, "2", "FULL");
        assert_eq!(pragma(&mut writer, "foreign_keys").await, "1");
        assert_eq!(pragma(&mut writer, "secure_delete").await, "1");
        assert_eq!(busy_timeout_ms(&mut writer).await, 0, "refusals come at once, for `patience` to wait");
        drop(writer);
        let mut reader = read_options(&folder.path().join("chancery.db")).connect().await.unwrap();
        assert_eq!(pragma(&mut reader, "journal_mode").await, "wal");
        assert_eq!(busy_timeout_ms(&mut reader).await, 5000);
        assert!(sqlx::query("DELETE FROM accounts").execute(&mut reader).await.is_err());
    }

    fn row(number: usize, account: AccountId, key: KeyId) -> UsageRow {
        UsageRow {
            request_id: RequestId::from_stored(format!("req_{number:06}")),
            account,
            key,
            model: "m".repeat(500),
            input_tokens: 1,
            cached_input_tokens: 0,
            output_tokens: 1,
            prices: Prices {
                input: TokenPrice::from_nanos_per_token(1),
                cached_input: TokenPrice::from_nanos_per_token(1),
                output: TokenPrice::from_nanos_per_token(2),
            },
            cost: Nanos(3),
            at: UnixMillis(0),
            stop_reason: StopReason::Complete,
        }
    }

    #[tokio::test]
    async fn full_or_read_only_disk_is_reported_without_losing_rows() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
        let new = NewAccount { name: "A".parse().unwrap(), limits, created_at: UnixMillis(0) };
        let account = store.create_account(new).await.unwrap().id;
        let api_key = ApiKey::generate(&OsRandomness);
        let (prefix, hash) = (api_key.prefix(), api_key.hash());
        let new = NewKey {
            prefix,
            hash,
            label: String::new(),
            account: None,
            created_at: UnixMillis(0),
            limits: KeyLimits::default(),
        };
        let key = store.create_key(new).await.unwrap().id;

        let set_pages = async |pages: u32| {
            let sql = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
            let mut writer = slot(&store).acquire().await.unwrap();
            sqlx::query(sql).fetch_all(&mut *writer).await.unwrap();
        };
        set_pages(30).await;
        let mut settled = 0;
        let error = loop {
            match store.ledger.settle(row(settled, account, key).into()).await {
                Ok(()) => settled += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LedgerError::Database(DbError::DiskFull(_))), "{error:?}");
        assert!(error.to_string().contains("free some space"), "{error}");
        assert_eq!(store.ledger_chains.ledger_rows(None, u32::MAX).await.unwrap().len(), settled);

        let statement = "PRAGMA query_only = ON";
        sqlx::query(statement).execute(&mut *slot(&store).acquire().await.unwrap()).await.unwrap();
        let error = store.ledger.settle(row(settled, account, key).into()).await.unwrap_err();
        assert!(matches!(error, LedgerError::Database(DbError::ReadOnly(_))), "{error:?}");
        let statement = "PRAGMA query_only = OFF";
        sqlx::query(statement).execute(&mut *slot(&store).acquire().await.unwrap()).await.unwrap();

        set_pages(3000).await;
        store.ledger.settle(row(settled, account, key).into()).await.unwrap();
        assert_eq!(store.ledger_chains.ledger_rows(None, u32::MAX).await.unwrap().len(), settled + 1);
        store.close().await;
    }
}
