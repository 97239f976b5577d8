//! Opens a PostgreSQL database that several nodes may share. Every wait is bounded: a server that is gone is an error
//! within seconds, never a hang.

use crate::accounts::spending::HasSpendingQueue;
use crate::accounts::spending_queue::SpendingQueue;
use crate::audit::step::{AuditedSteps, HasAudit};
use crate::db::error_codes::{LONG_STATEMENT_TIMEOUT, STATEMENT_TIMEOUT, explain};
use crate::db::url::Place;
use crate::db::write_slot::{Connector, WriteSlot};
use crate::db::{Conn, Db, HasDb, Pool, Writers, migrate};
use crate::leases::lease::{HasLease, Lease};
use crate::ledger::months::LedgerMonths;
use crate::ledger::postgres::PostgresLedger;
use crate::ledger::writer::{HasLedger, LedgerWriter};
use crate::{DatabaseUrl, StoreError};
use chancery_domain::{OsRandomness, SystemClock, WriterId};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Postgres};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Connections of one node for everything but the ledger, which has one of its own that reads cannot starve.
const MAX_CONNECTIONS: u32 = 16;

/// How many of them may wait for an account's row at the same time; the others are left for what does not wait.
const MAX_RESERVING: u32 = MAX_CONNECTIONS / 2;

/// Connections of one node for sums over the whole ledger, apart from the others, for a few of those would keep every
/// request waiting for its key to be looked up.
const MAX_LONG_CONNECTIONS: u32 = 4;

/// Longest wait for a connection, whether it must be made or become free.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What every session begins with. A commit must be on disk when it returns, so a server that is set to answer earlier
/// is overruled; one that is set to wait for more (`remote_apply`) is not. Statements that wait for a lock must see what
/// its last holder did, which another isolation than PostgreSQL's own default would keep from them.
fn session(statement_timeout: Duration) -> String {
    format!(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; \
         SET default_transaction_isolation = 'read committed'; \
         SET statement_timeout = '{}s'; \
         SET idle_in_transaction_session_timeout = '10s'",
        statement_timeout.as_secs()
    )
}

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
        let is_there =
            migrate::has_schema(&mut Conn::from(&mut connection)).await.map_err(|error| explain(&error))?;
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

    pub(crate) async fn writer(&self) -> Result<PoolConnection<Postgres>, StoreError> {
        self.reader.acquire().await.map_err(|error| explain(&error))
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

pub(crate) fn connect_options(options: &PgConnectOptions) -> PgConnectOptions {
    options.clone().application_name("chancery").disable_statement_logging()
}

/// A connection without a statement timeout, for a migration may take its time.
pub(crate) async fn connect_first(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    connect(options).await.map_err(|error| {
        let place = format!("PostgreSQL at {}:{}", options.get_host(), options.get_port());
        match explain(&error) {
            StoreError::Unavailable(why) => StoreError::Unavailable(format!("{place}: {why}")),
            other => other,
        }
    })
}

/// Checks the server and migrates.
async fn prepare(mut connection: PgConnection) -> Result<(), StoreError> {
    check_server(&mut connection).await?;
    migrate::apply(Conn::from(&mut connection)).await?;
    connection.close().await.map_err(|error| explain(&error))
}

/// Whether the database can keep what is given to it.
pub(crate) async fn check_server(connection: &mut PgConnection) -> Result<(), StoreError> {
    let (encoding, fsync): (String, String) =
        sqlx::query_as("SELECT current_setting('server_encoding'), current_setting('fsync')")
            .fetch_one(connection)
            .await
            .map_err(|error| explain(&error))?;
    if encoding != "UTF8" {
        return Err(StoreError::SchemaMismatch {
            why: format!(
                "its encoding is {encoding}, and names are kept in UTF8 (`createdb --encoding=UTF8`)"
            ),
        });
    }
    if fsync == "off" {
        tracing::warn!("PostgreSQL runs with fsync = off: a power cut can lose settled requests; turn it on");
    }
    Ok(())
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    bounded(options.connect()).await
}

async fn begin_session(
    connection: &mut PgConnection,
    statement_timeout: Duration,
) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(session(statement_timeout))).execute(connection).await.map(|_| ())
}

pub(crate) async fn bounded<T>(step: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    tokio::time::timeout(CONNECT_TIMEOUT, step).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

pub(crate) struct PostgresConnector {
    pub(crate) options: PgConnectOptions,
}

impl Connector for PostgresConnector {
    type Connection = PgConnection;

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let mut connection = connect(&self.options).await?;
        bounded(begin_session(&mut connection, STATEMENT_TIMEOUT)).await?;
        Ok(connection)
    }

    async fn disconnect(connection: PgConnection) {
        // The server notices a closed socket by itself, so a failed goodbye matters to nobody.
        let _ = bounded(connection.close()).await;
    }
}
