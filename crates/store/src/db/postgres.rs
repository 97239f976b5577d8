//! Opens a PostgreSQL database that several nodes may share. Every wait is bounded: a server that is gone is an error
//! within seconds, never a hang.

use crate::DbError;
use crate::OpenError;
use crate::db::error_codes::{STATEMENT_TIMEOUT, explain};
use crate::db::write_slot::Connector;
use crate::db::{Conn, migrate};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use std::future::Future;
use std::time::Duration;

/// Longest wait for a connection, whether it must be made or become free.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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

pub(crate) fn connect_options(options: &PgConnectOptions) -> PgConnectOptions {
    options.clone().application_name("chancery").disable_statement_logging()
}

/// A connection without a statement timeout, for a migration may take its time.
pub(crate) async fn connect_first(options: &PgConnectOptions) -> Result<PgConnection, OpenError> {
    Ok(connect(options).await.map_err(|error| {
        let place = format!("PostgreSQL at {}:{}", options.get_host(), options.get_port());
        match explain(&error) {
            DbError::Unavailable(why) => DbError::Unavailable(format!("{place}: {why}")),
            other => other,
        }
    })?)
}

/// Checks the server and migrates.
pub(crate) async fn prepare(mut connection: PgConnection) -> Result<(), OpenError> {
    check_server(&mut connection).await?;
    migrate::apply(Conn::from(&mut connection)).await?;
    Ok(connection.close().await?)
}

/// Whether the database can keep what is given to it.
pub(crate) async fn check_server(connection: &mut PgConnection) -> Result<(), OpenError> {
    let (encoding, fsync): (String, String) =
        sqlx::query_as("SELECT current_setting('server_encoding'), current_setting('fsync')")
            .fetch_one(connection)
            .await
            .map_err(|error| explain(&error))?;
    if encoding != "UTF8" {
        return Err(OpenError::SchemaMismatch {
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

pub(crate) async fn begin_session(
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
