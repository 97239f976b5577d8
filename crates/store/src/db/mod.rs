//! Shared by all aggregates: threads that own connections, steps, statements and rows, on SQLite and PostgreSQL. An aggregate
//! writes its SQL once, with `$1` parameters, and never names a driver's type.

mod chain_head;
mod database;
pub(crate) mod error;
pub(crate) mod error_codes;
pub(crate) mod migrate;
pub(crate) mod postgres;
pub(crate) mod postgres_session;
mod postgres_threads;
mod query;
mod row;
pub(crate) mod serving_lock;
pub(crate) mod sqlite;
mod sqlite_reader;
mod sqlite_writer;
mod statement;
pub(crate) mod tables;
mod threads;
mod tx;
pub(crate) mod url;
mod value;
pub(crate) mod values;
mod write_turns;

pub(crate) use database::{COMMAND_RETRY_LIMIT, Db, POSTGRES_THREADS, PostgresDatabase, SqliteDatabase};
pub(crate) use error_codes::QueryError;
pub(crate) use postgres_session::PostgresSession;
#[cfg(test)]
pub(crate) use query::query_plan;
pub(crate) use query::{Query, query};
pub(crate) use row::{FromColumn, FromRow, Row, corrupt, from_row, hash};
pub(crate) use sqlite_writer::GroupEnd;
pub(crate) use statement::Statement;
pub(crate) use tx::{Dialect, Driver, Tx};
pub(crate) use value::Value;
pub(crate) use values::from_any_column;
