//! Transactions on either database, and why one was rolled back.

use super::conn::Conn;
use crate::DbError;
use sqlx::{Connection, PgConnection, Postgres, Sqlite, SqliteConnection};

/// SQLite takes the write lock at once, because a transaction that has read can no longer wait for it.
const BEGIN_WRITE_SQLITE: &str = "BEGIN IMMEDIATE";
const BEGIN_WRITE_POSTGRES: &str = "BEGIN";

/// One snapshot for several reads: concurrent writes are in none of them.
const BEGIN_READ_SQLITE: &str = "BEGIN";
const BEGIN_READ_POSTGRES: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";

/// Marks an aggregate's error type, which a step rejects with.
pub(crate) trait Rejection {}

/// Why a transaction was rolled back: the database failed, or the step rejected it.
#[derive(Debug)]
pub(crate) enum TxError<E> {
    Database(sqlx::Error),
    Rejected(E),
}

impl<E> From<sqlx::Error> for TxError<E> {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl<E: Rejection> From<E> for TxError<E> {
    fn from(error: E) -> Self {
        Self::Rejected(error)
    }
}

impl<E: From<DbError>> From<DbError> for TxError<E> {
    fn from(error: DbError) -> Self {
        Self::Rejected(error.into())
    }
}

/// Rolls back when dropped.
pub(super) enum Tx<'c> {
    Sqlite(sqlx::Transaction<'c, Sqlite>),
    Postgres(sqlx::Transaction<'c, Postgres>),
}

impl<'c> Tx<'c> {
    pub(super) async fn begin_write(conn: Conn<'c>) -> Result<Self, sqlx::Error> {
        Self::begin(conn, BEGIN_WRITE_SQLITE, BEGIN_WRITE_POSTGRES).await
    }

    pub(super) async fn begin_read(conn: Conn<'c>) -> Result<Self, sqlx::Error> {
        Self::begin(conn, BEGIN_READ_SQLITE, BEGIN_READ_POSTGRES).await
    }

    async fn begin(
        conn: Conn<'c>,
        sqlite: &'static str,
        postgres: &'static str,
    ) -> Result<Self, sqlx::Error> {
        Ok(match conn {
            Conn::Sqlite(conn) => Self::Sqlite(SqliteConnection::begin_with(conn, sqlite).await?),
            Conn::Postgres(conn) => Self::Postgres(PgConnection::begin_with(conn, postgres).await?),
        })
    }

    pub(super) fn conn(&mut self) -> Conn<'_> {
        match self {
            Self::Sqlite(tx) => Conn::Sqlite(tx),
            Self::Postgres(tx) => Conn::Postgres(tx),
        }
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(tx) => tx.commit().await,
            Self::Postgres(tx) => tx.commit().await,
        }
    }

    pub(super) async fn rollback(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(tx) => tx.rollback().await,
            Self::Postgres(tx) => tx.rollback().await,
        }
    }
}
