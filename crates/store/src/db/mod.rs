//! What all aggregates share: connections, statements, rows and transactions over SQLite and PostgreSQL. An aggregate writes
//! its SQL once, with `$1` parameters, and never names a driver's type.

mod conn;
mod database;
mod query;
mod row;
mod statement;
mod tx;

pub(crate) use conn::{Conn, Dialect};
pub(crate) use database::{COMMAND_WAIT, Db, Pool, Step, StepFuture, Writers};
pub(crate) use query::{Query, Value, query};
pub(crate) use row::{Corrupt, FromRow, Row, corrupt};
pub(crate) use statement::Statement;
pub(crate) use tx::TxError;

/// A store that has an open database. Goes with the two stores, once every aggregate runs on `Db`.
pub(crate) trait HasDb: Send + Sync + 'static {
    fn db(&self) -> &Db;
}
