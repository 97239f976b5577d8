//! The store in a PostgreSQL database: what every aggregate works with, put together.

use crate::accounts::spending::HasSpendingQueue;
use crate::accounts::spending_queue::SpendingQueue;
use crate::audit::step::{AuditedSteps, HasAudit};
use crate::db::error_codes::{LONG_STATEMENT_TIMEOUT, STATEMENT_TIMEOUT};
use crate::db::postgres::{
    CONNECT_TIMEOUT, PostgresConnector, begin_session, connect_first, connect_options, prepare,
};
use crate::db::url::Place;
use crate::db::write_slot::WriteSlot;
use crate::db::{Conn, Db, HasDb, Pool, Writers, migrate};
use crate::leases::lease::{HasLease, Lease};
use crate::ledger::months::LedgerMonths;
use crate::ledger::postgres::PostgresLedger;
use crate::ledger::writer::{HasLedger, LedgerWriter};
use crate::{DatabaseUrl, Months, StoreError};
use async_trait::async_trait;
use chancery_domain::{OsRandomness, SystemClock, UnixMillis, WriterId};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use std::sync::Arc;

/// Connections of one node for everything but the ledger, which has one of its own that reads cannot starve.
const MAX_CONNECTIONS: u32 = 16;

/// How many of them may wait for an account's row at the same time; the others are left for what does not wait.
const MAX_RESERVING: u32 = MAX_CONNECTIONS / 2;

/// Connections of one node for sums over the whole ledger, apart from the others, for a few of those would keep every
/// request waiting for its key to be looked up.
const MAX_LONG_CONNECTIONS: u32 = 4;

/// What becomes of a database without our schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    IsMade,
    IsRefused,
}

/// The store in a database server.
pub struct PostgresStore {
    pub(crate) db: Db,
    pub(crate) reader: PgPool,
    pub(crate) write_slot: Arc<WriteSlot<PostgresConnector>>,
    pub(crate) ledger: LedgerWriter,
    pub(crate) months: Arc<LedgerMonths>,
    pub(crate) lease: Lease,
    pub(crate) spending_queue: SpendingQueue,
    pub(crate) audited: AuditedSteps,
}

impl PostgresStore {
    /// Connects and brings the schema up to date.
    pub async fn open(url: &DatabaseUrl) -> Result<Self, StoreError> {
        Self::open_where(url, Missing::IsMade).await
    }

    /// Connects if Chancery's tables are there, and brings the schema up to date.
    pub async fn open_existing(url: &DatabaseUrl) -> Result<Self, StoreError> {
        Self::open_where(url, Missing::IsRefused).await
    }

    async fn open_where(url: &DatabaseUrl, missing: Missing) -> Result<Self, StoreError> {
        let Place::Postgres(options) = &url.0 else {
            return Err(StoreError::BadUrl(format!("{url} is not a PostgreSQL database")));
        };
        let options = connect_options(options);
        let mut connection = connect_first(&options).await?;
        let is_there = migrate::has_schema(&mut Conn::from(&mut connection)).await?;
        if !is_there && missing == Missing::IsRefused {
            return Err(StoreError::NoDatabase { place: url.to_string() });
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
        let write_slot = Arc::new(WriteSlot::empty(PostgresConnector { options }));
        let db = Db::new(
            Pool::Postgres(reader.clone()),
            Pool::Postgres(long_reader),
            Writers::Pool(reader.clone()),
        );
        let writer = WriterId::draw(&OsRandomness);
        let months = Arc::new(LedgerMonths::default());
        let database = PostgresLedger::new(Arc::clone(&write_slot), Arc::clone(&months));
        let ledger = LedgerWriter::start(writer, database, SystemClock);
        let (lease, spending_queue) = (Lease::new(db.clone(), writer), SpendingQueue::new(MAX_RESERVING));
        let audited = AuditedSteps::new(db.clone(), writer);
        Ok(Self { db, reader, write_slot, ledger, months, lease, spending_queue, audited })
    }

    /// How many commits have carried settled rows since the store was opened.
    pub fn ledger_commits(&self) -> u64 {
        self.ledger.commits()
    }
}

impl HasAudit for PostgresStore {
    fn audited(&self) -> &AuditedSteps {
        &self.audited
    }
}

impl HasDb for PostgresStore {
    fn db(&self) -> &Db {
        &self.db
    }
}

impl HasLease for PostgresStore {
    fn lease(&self) -> &Lease {
        &self.lease
    }
}

impl HasSpendingQueue for PostgresStore {
    fn spending_queue(&self) -> &SpendingQueue {
        &self.spending_queue
    }
}

impl HasLedger for PostgresStore {
    fn ledger(&self) -> &LedgerWriter {
        &self.ledger
    }

    async fn close_write_slot(&self) {
        self.write_slot.close().await;
    }
}

#[async_trait]
impl Months for PostgresStore {
    async fn make_months_ready(&self, now: UnixMillis) -> Result<(), StoreError> {
        self.months.prepare(&self.reader, now).await
    }
}
