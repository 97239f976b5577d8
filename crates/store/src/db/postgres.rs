//! Opens a PostgreSQL database that several nodes may share. Every wait is bounded: an unreachable server is an error
//! within seconds, never a hang.

use crate::DbError;
use crate::OpenError;
use crate::db::error_codes::{STATEMENT_TIMEOUT, map_db_error};
use crate::db::write_slot::Connector;
use crate::db::{Conn, migrate};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use std::future::Future;
use std::time::Duration;

/// Longest wait for a new connection or for one from the pool.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of every session. A commit must be on disk when it returns, so `synchronous_commit = off` is overridden;
/// stricter settings (`remote_apply`) are left alone. A statement that waited for a lock must see what its last holder
/// did, which requires read committed isolation.
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

/// The server as messages name it.
pub(crate) fn location(options: &PgConnectOptions) -> String {
    format!("PostgreSQL at {}:{}", options.get_host(), options.get_port())
}

/// A connection without a statement timeout, because a migration may take long.
pub(crate) async fn connect_first(options: &PgConnectOptions) -> Result<PgConnection, OpenError> {
    Ok(connect(options).await.map_err(|error| match map_db_error(&error) {
        DbError::Unavailable(why) => DbError::Unavailable(format!("{}: {why}", location(options))),
        other => other,
    })?)
}

/// Checks the server and migrates.
pub(crate) async fn prepare(mut connection: PgConnection) -> Result<(), OpenError> {
    check_server(&mut connection).await?;
    migrate::apply(Conn::from(&mut connection)).await?;
    Ok(connection.close().await?)
}

/// Checks the server settings that the store depends on.
pub(crate) async fn check_server(connection: &mut PgConnection) -> Result<(), OpenError> {
    let (encoding, fsync): (String, String) =
        sqlx::query_as("SELECT current_setting('server_encoding'), current_setting('fsync')")
            .fetch_one(connection)
            .await
            .map_err(|error| map_db_error(&error))?;
    if encoding != "UTF8" {
        return Err(OpenError::SchemaMismatch {
            why: format!("its encoding is {encoding}; create a database with `createdb --encoding=UTF8`"),
        });
    }
    if fsync == "off" {
        tracing::warn!("postgres runs with fsync = off: a power failure can lose settled requests");
    }
    Ok(())
}

pub(crate) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
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
        // The server notices a closed socket, so a failed close does not matter.
        let _ = bounded(connection.close()).await;
    }
}
