//! Connects to a PostgreSQL database.

use crate::db::error_codes::{LONG_STATEMENT_TIMEOUT, STATEMENT_TIMEOUT};
use crate::db::postgres::{
    CONNECT_TIMEOUT, PostgresConnector, begin_session, connect_first, connect_options, prepare,
};
use crate::db::write_slot::WriteSlot;
use crate::db::{Conn, Db, Pool, WritePool, migrate};
use crate::ledger::partitions::PartitionTracker;
use crate::ledger::postgres::PostgresLedger;
use crate::ledger::writer::LedgerWriter;
use crate::open_database::{IfMissing, OpenDatabase, WriteConnection};
use crate::{DatabaseUrl, LedgerPartitions, OpenError};
use chancery_domain::{OsRandomness, SystemClock, WriterId};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use std::sync::Arc;

/// Connections per node for everything but the ledger, which has its own connection so that reads cannot starve it.
const MAX_CONNECTIONS: u32 = 16;

/// How many connections may wait for an account's row lock at once. The rest stay available for other work.
const MAX_CONCURRENT_RESERVATIONS: u32 = MAX_CONNECTIONS / 2;

/// Connections per node for sums over the whole ledger. They are separate because a few such queries would delay every
/// key lookup.
const MAX_LONG_CONNECTIONS: u32 = 4;

pub(crate) async fn open(
    url: &DatabaseUrl,
    options: &PgConnectOptions,
    if_missing: IfMissing,
) -> Result<OpenDatabase, OpenError> {
    let options = connect_options(options);
    let mut connection = connect_first(&options).await?;
    let schema_exists = migrate::has_schema(&mut Conn::from(&mut connection)).await?;
    if !schema_exists && if_missing == IfMissing::Reject {
        return Err(OpenError::NoDatabase { location: url.to_string() });
    }
    prepare(connection).await?;
    let pool = |max_connections, statement_timeout| {
        PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(CONNECT_TIMEOUT)
            .after_connect(move |connection, _| Box::pin(begin_session(connection, statement_timeout)))
            .connect_lazy_with(options.clone())
    };
    let reader = pool(MAX_CONNECTIONS, STATEMENT_TIMEOUT);
    let long_reader = pool(MAX_LONG_CONNECTIONS, LONG_STATEMENT_TIMEOUT);
    let slot = Arc::new(WriteSlot::empty(PostgresConnector { options }));
    let db =
        Db::new(Pool::Postgres(reader.clone()), Pool::Postgres(long_reader), WritePool::Pool(reader.clone()));
    let months = Arc::new(PartitionTracker::default());
    let ledger = PostgresLedger::new(Arc::clone(&slot), Arc::clone(&months));
    let writer_id = WriterId::random(&OsRandomness);
    Ok(OpenDatabase {
        db,
        writer_id,
        writer: LedgerWriter::start(writer_id, ledger, SystemClock),
        slot: WriteConnection::Postgres(slot),
        partitions: LedgerPartitions { monthly: Some((months, reader)) },
        max_concurrent_reservations: MAX_CONCURRENT_RESERVATIONS,
    })
}
