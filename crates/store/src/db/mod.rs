//! Shared by all aggregates: connections, statements, rows and transactions on SQLite and PostgreSQL. An aggregate
//! writes its SQL once, with `$1` parameters, and never names a driver's type.

mod conn;
mod database;
pub(crate) mod error;
pub(crate) mod error_codes;
pub(crate) mod migrate;
pub(crate) mod postgres;
pub(crate) mod probe;
mod query;
pub(crate) mod read_pool;
pub(crate) mod retry;
mod row;
pub(crate) mod serving_lock;
pub(crate) mod sqlite;
mod statement;
pub(crate) mod tables;
mod tx;
pub(crate) mod url;
pub(crate) mod values;
pub(crate) mod whole_transaction;
pub(crate) mod write_slot;

pub(crate) use conn::{Conn, Dialect};
pub(crate) use database::{COMMAND_RETRY_LIMIT, Db, Pool, Step, WritePool};
pub(crate) use query::{Query, Value, query};
pub(crate) use row::{Corrupt, FromRow, Row, corrupt};
pub(crate) use statement::Statement;
pub(crate) use tx::{Rejection, TxError};
