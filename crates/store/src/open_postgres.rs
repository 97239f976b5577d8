//! Opens a PostgreSQL database.

use crate::db::error_codes::QueryError;
use crate::db::postgres::PostgresOptions;
use crate::db::postgres_session::open_session;
use crate::db::{Db, Driver, POSTGRES_THREADS, PostgresDatabase, Tx, migrate, query};
use crate::ledger::partitions::PartitionTracker;
use crate::ledger::postgres::PostgresLedger;
use crate::ledger::writer::LedgerWriter;
use crate::open_database::{IfMissing, OpenDatabase};
use crate::{DatabaseUrl, DbError, LedgerPartitions, OpenError};
use chancery_domain::{OsRandomness, SystemClock, WriterId};
use std::sync::Arc;

/// How many connections may wait for an account's row lock at once. The rest stay available for other work.
const MAX_CONCURRENT_RESERVATIONS: u32 = POSTGRES_THREADS as u32 / 2;

pub(crate) async fn open(
    url: &DatabaseUrl,
    options: &PostgresOptions,
    if_missing: IfMissing,
) -> Result<OpenDatabase, OpenError> {
    if !prepare(options, if_missing == IfMissing::Create).await? {
        return Err(OpenError::NoDatabase { location: url.to_string() });
    }
    let db = Db::from(PostgresDatabase::new(options));
    let months = Arc::new(PartitionTracker::default());
    let ledger = PostgresLedger::new(options.clone(), Arc::clone(&months));
    let writer_id = WriterId::random(&OsRandomness);
    let writer = LedgerWriter::start_thread(writer_id, ledger, SystemClock);
    Ok(OpenDatabase {
        writer: writer.map_err(|error| DbError::Unavailable(error.to_string()))?,
        writer_id,
        partitions: LedgerPartitions { monthly: Some((months, db.clone())) },
        db,
        max_concurrent_reservations: MAX_CONCURRENT_RESERVATIONS,
    })
}

/// Checks the server and migrates. Returns false, and changes nothing, if there is no schema and none may be created.
async fn prepare(options: &PostgresOptions, may_create: bool) -> Result<bool, OpenError> {
    let options = options.clone();
    let preparing = tokio::task::spawn_blocking(move || {
        let mut session = open_session(&options)?;
        let mut tx = Tx::outside(Driver::Postgres(&mut session));
        if !may_create && !migrate::has_schema(&mut tx)? {
            return Ok(false);
        }
        check_server(&mut tx)?;
        migrate::apply(&mut tx)?;
        Ok(true)
    });
    preparing.await.unwrap_or_else(|_| Err(QueryError::Panicked.into()))
}

/// Checks the server settings that the store depends on.
pub(crate) fn check_server(tx: &mut Tx<'_>) -> Result<(), OpenError> {
    let encoding: String = query("SELECT current_setting('server_encoding')").fetch_one(tx)?;
    if encoding != "UTF8" {
        return Err(OpenError::SchemaMismatch {
            why: format!("its encoding is {encoding}; create a database with `createdb --encoding=UTF8`"),
        });
    }
    let fsync: String = query("SELECT current_setting('fsync')").fetch_one(tx)?;
    if fsync == "off" {
        tracing::warn!("postgres runs with fsync = off: a power failure can lose settled requests");
    }
    Ok(())
}
