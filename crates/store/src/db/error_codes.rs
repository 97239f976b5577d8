//! Interprets error codes: which `DbError` a failure is, and whether a retry can help. The only file that knows
//! SQLite's result codes and PostgreSQL's SQLSTATEs.

use crate::DbError;
use crate::OpenError;
use crate::SecretError;
use crate::db::Corrupt;
use futures_util::{FutureExt, TryFutureExt};
use sqlx::error::{DatabaseError, ErrorKind};
use sqlx::postgres::PgDatabaseError;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Longest wait for the result of one statement. It is above SQLite's busy timeout and PostgreSQL's statement timeout,
/// which report the cause better. This one catches an unresponsive connection.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a statement may run or wait for a lock.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The same two limits for queries over the whole ledger, which grows for years.
pub(crate) const LONG_RESPONSE_TIMEOUT: Duration = Duration::from_secs(125);
pub(crate) const LONG_STATEMENT_TIMEOUT: Duration = Duration::from_secs(120);

const _: () = assert!(STATEMENT_TIMEOUT.as_secs() < RESPONSE_TIMEOUT.as_secs());
const _: () = assert!(LONG_STATEMENT_TIMEOUT.as_secs() < LONG_RESPONSE_TIMEOUT.as_secs());

/// The cause in the `sqlx::Error::Io` of a statement that timed out.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", .limit.as_secs())]
struct ResponseTimeout {
    limit: Duration,
}

/// SQLite's primary result codes (the low byte of an extended one), and extended ones.
mod sqlite_code {
    pub(super) const ERROR: i32 = 1;
    pub(super) const BUSY: i32 = 5;
    pub(super) const READONLY: i32 = 8;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const CONSTRAINT: i32 = 19;
    pub(super) const NOTADB: i32 = 26;
    pub(super) const CONSTRAINT_CHECK: i32 = 275;
    pub(super) const CONSTRAINT_FOREIGN_KEY: i32 = 787;
    pub(super) const CONSTRAINT_NOT_NULL: i32 = 1299;
    pub(super) const CONSTRAINT_PRIMARY_KEY: i32 = 1555;
    pub(super) const CONSTRAINT_UNIQUE: i32 = 2067;
}

/// PostgreSQL's SQLSTATE for a statement timeout.
const QUERY_CANCELED: &str = "57014";

/// PostgreSQL's SQLSTATE for a server that has no connection left.
const TOO_MANY_CONNECTIONS: &str = "53300";

/// PostgreSQL's SQLSTATE for creating a table that exists.
const DUPLICATE_TABLE: &str = "42P07";

/// The SQLSTATE of our own function `undo_settlement`.
const SETTLEMENT_ABORTED: &str = "CH001";

/// The error of our trigger `invoiced_usage_is_closed`: an SQLSTATE of our own. SQLite triggers have no codes, so there
/// it is the whole text of its `RAISE`.
const MONTH_INVOICED: &str = "CH002";
const MONTH_INVOICED_SQLITE: &str = "the month is already invoiced for this account";

/// Waits for a statement's result, up to `RESPONSE_TIMEOUT`.
pub(crate) fn with_timeout<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> impl Future<Output = Result<T, sqlx::Error>> {
    with_timeout_of(RESPONSE_TIMEOUT, statement)
}

/// Not an `async fn`, nor are the others: that would store the statement twice, and callers' futures add up to many
/// kilobytes, which are copied for every request.
pub(crate) fn with_timeout_of<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> impl Future<Output = Result<T, sqlx::Error>> {
    let timed = tokio::time::timeout(limit, statement);
    timed.map(move |outcome| outcome.unwrap_or_else(|_| Err(response_timeout(limit))))
}

/// Like `with_timeout`, for a query over the whole ledger.
pub(crate) fn with_long_timeout<T>(
    query: impl Future<Output = Result<T, sqlx::Error>>,
) -> impl Future<Output = Result<T, sqlx::Error>> {
    let timed_out = |error: &sqlx::Error| {
        let error = error.as_database_error();
        error.is_some_and(|error| matches!(code(error), Code::Postgres(QUERY_CANCELED)))
    };
    with_timeout_of(LONG_RESPONSE_TIMEOUT, query).map_err(move |error| match timed_out(&error) {
        true => response_timeout(LONG_STATEMENT_TIMEOUT),
        false => error,
    })
}

fn response_timeout(limit: Duration) -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, ResponseTimeout { limit }))
}

fn timeout_of(error: &io::Error) -> Option<Duration> {
    Some(error.get_ref()?.downcast_ref::<ResponseTimeout>()?.limit)
}

/// Whether this row caused the failure, so that a retry fails again and other rows may succeed.
pub(crate) fn is_row_error(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(error) => match code(error.as_ref()) {
            Code::Sqlite(code) => code == sqlite_code::CONSTRAINT,
            // Class 22: a value out of range; class 23: a violated constraint.
            Code::Postgres(state) => {
                state.starts_with("22") || state.starts_with("23") || state == MONTH_INVOICED
            }
            Code::None => error.kind() != ErrorKind::Other,
        },
        _ => false,
    }
}

/// Whether the row was rejected because its account's month is invoiced.
pub(crate) fn is_month_invoiced(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| match code(error) {
        Code::Sqlite(code) => code == sqlite_code::CONSTRAINT && error.message() == MONTH_INVOICED_SQLITE,
        Code::Postgres(state) => state == MONTH_INVOICED,
        Code::None => false,
    })
}

/// The database's message, with the key of a foreign-key or unique violation. For other violations the detail is left
/// out: it would contain the whole row, secrets included.
pub(crate) fn detail(error: &sqlx::Error) -> String {
    let Some(error) = error.as_database_error() else { return error.to_string() };
    let is_about_a_key = error.is_foreign_key_violation() || error.is_unique_violation();
    let more = error.try_downcast_ref::<PgDatabaseError>().filter(|_| is_about_a_key);
    let more = more.and_then(PgDatabaseError::detail);
    more.map_or_else(|| error.message().to_owned(), |more| format!("{} ({more})", error.message()))
}

/// Whether the connection was lost, so that the outcome of the statement is unknown.
pub(crate) fn is_connection_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        // Class 08: connection errors; 57P01 to 57P03: the server is shutting down, crashed or is starting.
        sqlx::Error::Database(error) => matches!(code(error.as_ref()), Code::Postgres(state)
            if state.starts_with("08") || state.starts_with("57P0")),
        _ => false,
    }
}

/// Whether a failure to connect may pass by itself: the server is not up, starting, full or not found. A server that answers and
/// rejects us (password, database name, TLS) will do so again.
pub(crate) fn is_unreachable(error: &sqlx::Error) -> bool {
    let may_pass = |error: &io::Error| {
        !matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied
        )
    };
    match error {
        // A proxy without a server behind it closes the connection, which is an unexpected response.
        sqlx::Error::PoolTimedOut | sqlx::Error::Protocol(_) => true,
        sqlx::Error::Io(error) => may_pass(error),
        // A connection that breaks in the handshake. A certificate that is rejected is invalid data.
        sqlx::Error::Tls(error) => error.downcast_ref::<io::Error>().is_some_and(may_pass),
        sqlx::Error::Database(error) => matches!(code(error.as_ref()), Code::Postgres(state)
            if state.starts_with("08") || state.starts_with("57P0") || state == TOO_MANY_CONNECTIONS),
        _ => false,
    }
}

/// Whether a retry of the same statement may succeed.
pub(crate) fn is_retryable(error: &sqlx::Error) -> bool {
    is_transaction_rollback(error) || is_connection_lost(error)
}

/// Whether PostgreSQL rolled the transaction back because of a conflict (class 40).
pub(crate) fn is_transaction_rollback(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| matches!(code(error), Code::Postgres(state) if state.starts_with("40")))
}

pub(crate) fn is_unique_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_unique_violation)
}

/// Whether the table to be created exists.
pub(crate) fn is_duplicate_table(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| matches!(code(error), Code::Postgres(state) if state == DUPLICATE_TABLE))
}

/// Whether an existing row violates a new CHECK constraint.
pub(crate) fn is_check_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_check_violation)
}

/// Why a settlement rolled itself back: the reason passed to `undo_settlement`.
pub(crate) fn abort_reason(error: &sqlx::Error) -> Option<&str> {
    let error = error.as_database_error()?;
    matches!(code(error), Code::Postgres(SETTLEMENT_ABORTED)).then(|| error.message())
}

/// Whether another connection to the same SQLite file has the lock.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| matches!(code(error), Code::Sqlite(code) if code == sqlite_code::BUSY))
}

/// Maps a failure to open this file.
pub(crate) fn map_open_error(error: &sqlx::Error, file: &Path) -> OpenError {
    let cannot_open = |why: String| OpenError::CannotOpen { file: file.to_owned(), why };
    match error {
        sqlx::Error::Io(error) => cannot_open(error.to_string()),
        sqlx::Error::Database(database_error) => match code(database_error.as_ref()) {
            Code::Sqlite(sqlite_code::NOTADB) => OpenError::NotADatabase { file: file.to_owned() },
            Code::Sqlite(sqlite_code::CANTOPEN) => cannot_open(database_error.message().to_owned()),
            _ => map_db_error(error).into(),
        },
        _ => map_db_error(error).into(),
    }
}

pub(crate) fn store_closed() -> DbError {
    DbError::Unavailable("the store is closed".to_owned())
}

/// Maps the failure of an INSERT whose name must be unique.
pub(crate) fn map_unless_unique_violation<E: From<DbError>>(
    error: &sqlx::Error,
    taken: impl FnOnce() -> E,
) -> E {
    if is_unique_violation(error) { taken() } else { map_db_error(error).into() }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        map_db_error(&error)
    }
}

pub(crate) fn map_db_error(error: &sqlx::Error) -> DbError {
    match error {
        sqlx::Error::PoolClosed => store_closed(),
        sqlx::Error::PoolTimedOut => DbError::Unavailable(
            "no connection became available in time: the database is down, unreachable, or all connections are busy"
                .to_owned(),
        ),
        sqlx::Error::ColumnDecode { index, source } => {
            DbError::Corrupt { what: "a column", why: format!("{index}: {source}") }
        }
        sqlx::Error::Database(database_error) => {
            let message = database_error.message();
            match code(database_error.as_ref()) {
                Code::Sqlite(code) => map_sqlite_error(code, message),
                Code::Postgres(state) => map_postgres_error(state, message),
                Code::None => DbError::Unavailable(message.to_owned()),
            }
        }
        sqlx::Error::Decode(error) => match (error.downcast_ref::<Corrupt>(), error.downcast_ref::<SecretError>()) {
            (Some(Corrupt { what, why }), _) => DbError::Corrupt { what, why: why.clone() },
            (None, Some(secret)) => DbError::Secret(secret.clone()),
            (None, None) => DbError::Unavailable(error.to_string()),
        },
        sqlx::Error::Io(error) => DbError::Unavailable(match timeout_of(error) {
            Some(limit) if limit >= LONG_STATEMENT_TIMEOUT => {
                format!("it took longer than {} s; use a shorter period, or check the database's load", limit.as_secs())
            }
            Some(limit) => {
                format!("it took longer than {} s; check that it is running, and check its load", limit.as_secs())
            }
            None => format!(
                "the connection failed ({error}); check that it is running and that `database.url` is correct"
            ),
        }),
        other => DbError::Unavailable(other.to_string()),
    }
}

fn map_sqlite_error(code: i32, message: &str) -> DbError {
    match code {
        sqlite_code::BUSY => DbError::Unavailable(format!(
            "another process is blocking writes ({message}); stop it, or try again"
        )),
        sqlite_code::FULL => DbError::DiskFull(message.to_owned()),
        sqlite_code::READONLY => DbError::ReadOnly(message.to_owned()),
        sqlite_code::CORRUPT | sqlite_code::NOTADB => DbError::Corrupt {
            what: "the file",
            why: format!("{message}; restore a backup, or recover the data with `sqlite3 FILE .recover`"),
        },
        sqlite_code::IOERR => DbError::Unavailable(format!(
            "the disk reports an error ({message}); check the system log and the free disk space"
        )),
        sqlite_code::CANTOPEN => DbError::Unavailable(format!(
            "its file cannot be opened ({message}); check that the data directory exists and is writable"
        )),
        // SQLite has no result code for this error.
        _ if message == "integer overflow" => DbError::SumTooLarge,
        _ => DbError::Unavailable(message.to_owned()),
    }
}

fn map_postgres_error(state: &str, message: &str) -> DbError {
    let unavailable = |fix: &str| DbError::Unavailable(format!("{message}; {fix}"));
    match state {
        "22003" => DbError::SumTooLarge,
        "53100" => DbError::DiskFull(message.to_owned()),
        "25006" => DbError::ReadOnly(message.to_owned()),
        "28000" | "28P01" => unavailable("check the user and password in `database.url`"),
        "3D000" => unavailable("create it with `createdb`, or correct the name in `database.url`"),
        "42501" => {
            unavailable("let this user create and write tables, for example by making it the database owner")
        }
        TOO_MANY_CONNECTIONS => unavailable("raise PostgreSQL's `max_connections`, or run fewer nodes"),
        QUERY_CANCELED => DbError::Unavailable(format!(
            "a statement took more than {} s ({message}); check for locks, and check the server's load",
            STATEMENT_TIMEOUT.as_secs()
        )),
        "XX001" | "XX002" => DbError::Corrupt { what: "a page", why: message.to_owned() },
        _ => DbError::Unavailable(message.to_owned()),
    }
}

/// An error from rusqlite. It has what this file reads from sqlx's SQLite errors, so that both are treated alike.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct SqliteError {
    /// SQLite's extended result code.
    code: i32,
    message: String,
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::SqliteFailure(failure, message) => {
                Self { code: failure.extended_code, message: message.unwrap_or_else(|| failure.to_string()) }
            }
            other => Self { code: sqlite_code::ERROR, message: other.to_string() },
        }
    }
}

impl DatabaseError for SqliteError {
    fn message(&self) -> &str {
        &self.message
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        Some(self.code.to_string().into())
    }

    fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        match self.code {
            sqlite_code::CONSTRAINT_PRIMARY_KEY | sqlite_code::CONSTRAINT_UNIQUE => {
                ErrorKind::UniqueViolation
            }
            sqlite_code::CONSTRAINT_NOT_NULL => ErrorKind::NotNullViolation,
            sqlite_code::CONSTRAINT_FOREIGN_KEY => ErrorKind::ForeignKeyViolation,
            sqlite_code::CONSTRAINT_CHECK => ErrorKind::CheckViolation,
            _ => ErrorKind::Other,
        }
    }
}

enum Code<'a> {
    Sqlite(i32),
    Postgres(&'a str),
    None,
}

fn code<'a>(error: &'a (dyn DatabaseError + 'static)) -> Code<'a> {
    if let Some(error) = error.try_downcast_ref::<PgDatabaseError>() {
        return Code::Postgres(error.code());
    }
    match error.code().and_then(|code| code.parse::<i32>().ok()) {
        // The low byte is the primary code; the rest adds detail.
        Some(extended) => Code::Sqlite(extended & 0xff),
        None => Code::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn statement_timeout_is_not_reported_as_connection_failure() {
        let waiting = tokio::time::timeout(HOUR, with_timeout(pending::<Result<(), _>>()));
        let text = map_db_error(&waiting.await.unwrap().unwrap_err()).to_string();
        assert!(text.contains("took longer than 10 s") && text.contains("load"), "{text}");
        assert!(!text.contains("database.url") && !text.contains("connection"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn report_timeout_suggests_fewer_days() {
        let early =
            tokio::time::timeout(LONG_STATEMENT_TIMEOUT, with_long_timeout(pending::<Result<(), _>>()));
        assert!(early.await.is_err(), "it was given up early");
        let waiting = tokio::time::timeout(HOUR, with_long_timeout(pending::<Result<(), _>>()));
        let text = map_db_error(&waiting.await.unwrap().unwrap_err()).to_string();
        assert!(text.contains("took longer than 125 s; use a shorter period"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn timed_out_statement_counts_as_connection_lost() {
        let error = with_timeout(pending::<Result<(), _>>()).await.unwrap_err();
        assert!(is_connection_lost(&error), "{error:?}");
    }

    #[test]
    fn only_failures_that_may_pass_are_unreachable() {
        let plain = |kind: io::ErrorKind| sqlx::Error::Io(kind.into());
        let tls = |kind: io::ErrorKind| sqlx::Error::Tls(io::Error::from(kind).into());
        for error in [
            plain(io::ErrorKind::ConnectionRefused),
            plain(io::ErrorKind::TimedOut),
            plain(io::ErrorKind::UnexpectedEof),
            tls(io::ErrorKind::ConnectionReset),
            sqlx::Error::PoolTimedOut,
        ] {
            assert!(is_unreachable(&error), "{error:?}");
        }
        for error in [
            plain(io::ErrorKind::PermissionDenied),
            tls(io::ErrorKind::InvalidData),
            sqlx::Error::Tls("server does not support TLS".into()),
            sqlx::Error::Configuration("no such option".into()),
        ] {
            assert!(!is_unreachable(&error), "{error:?}");
        }
    }

    #[test]
    fn connection_failure_mentions_database_url() {
        for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut] {
            let text = map_db_error(&sqlx::Error::Io(kind.into())).to_string();
            assert!(text.contains("database.url"), "{text}");
        }
    }
}
