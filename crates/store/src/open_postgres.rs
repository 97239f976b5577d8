//! Connects to a PostgreSQL database.

use crate::db::error_codes::{LONG_STATEMENT_TIMEOUT, STATEMENT_TIMEOUT};
use crate::db::postgres::{
    CONNECT_TIMEOUT, PostgresConnector, begin_session, connect_first, connect_options, prepare,
};
use crate::db::write_slot::WriteSlot;
use crate::db::{Conn, Db, Pool, Writers, migrate};
use crate::ledger::months::LedgerMonths;
use crate::ledger::postgres::PostgresLedger;
use crate::ledger::writer::LedgerWriter;
use crate::opened::{LedgerSlot, Missing, Opened};
use crate::{DatabaseUrl, LedgerPartitions, OpenError};
use chancery_domain::{OsRandomness, SystemClock, WriterId};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use std::sync::Arc;

/// Connections of one node for everything but the ledger, which has one of its own that reads cannot starve.
const MAX_CONNECTIONS: u32 = 16;

/// How many of them may wait for an account's row at the same time; the others are left for what does not wait.
const MAX_RESERVING: u32 = MAX_CONNECTIONS / 2;

/// Connections of one node for sums over the whole ledger, apart from the others, for a few of those would keep every
/// request waiting for its key to be looked up.
const MAX_LONG_CONNECTIONS: u32 = 4;

/// Connects to the database.
pub(crate) async fn open(
    url: &DatabaseUrl,
    options: &PgConnectOptions,
    missing: Missing,
) -> Result<Opened, OpenError> {
    let options = connect_options(options);
    let mut connection = connect_first(&options).await?;
    let is_there = migrate::has_schema(&mut Conn::from(&mut connection)).await?;
    if !is_there && missing == Missing::Reject {
        return Err(OpenError::NoDatabase { place: url.to_string() });
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
        Db::new(Pool::Postgres(reader.clone()), Pool::Postgres(long_reader), Writers::Pool(reader.clone()));
    let months = Arc::new(LedgerMonths::default());
    let ledger = PostgresLedger::new(Arc::clone(&slot), Arc::clone(&months));
    let writer_id = WriterId::draw(&OsRandomness);
    Ok(Opened {
        db,
        writer_id,
        writer: LedgerWriter::start(writer_id, ledger, SystemClock),
        slot: LedgerSlot::Postgres(slot),
        partitions: LedgerPartitions { monthly: Some((months, reader)) },
        max_reserving: MAX_RESERVING,
    })
}
