//! Why a statement failed: which `DbError` a failure is, and whether a retry can help. The only file that knows SQLite's
//! result codes and PostgreSQL's SQLSTATEs.

use crate::DbError;
use crate::OpenError;
use crate::SecretError;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Longest wait of a caller for the result of a step. It is above the limit of a statement, which reports the cause better. This
/// one catches a disk or a server that does not answer.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a statement may run or wait for a lock.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a caller waits for a query over the whole ledger, which grows for years, and how long one may run.
pub(crate) const LONG_RESPONSE_TIMEOUT: Duration = Duration::from_secs(125);
pub(crate) const LONG_STATEMENT_TIMEOUT: Duration = Duration::from_secs(120);

const _: () = assert!(STATEMENT_TIMEOUT.as_secs() < RESPONSE_TIMEOUT.as_secs());
const _: () = assert!(LONG_STATEMENT_TIMEOUT.as_secs() < LONG_RESPONSE_TIMEOUT.as_secs());

/// SQLite's primary result codes (the low byte of an extended one), and extended ones.
mod sqlite_code {
    pub(super) const ERROR: i32 = 1;
    pub(super) const BUSY: i32 = 5;
    pub(super) const READONLY: i32 = 8;
    pub(super) const INTERRUPT: i32 = 9;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const CONSTRAINT: i32 = 19;
    pub(super) const NOTADB: i32 = 26;
    pub(super) const CONSTRAINT_PRIMARY_KEY: i32 = 1555;
    pub(super) const CONSTRAINT_UNIQUE: i32 = 2067;
}

/// PostgreSQL's SQLSTATEs: a statement timeout, a server that has no connection left, creating a table that exists, and
/// violated constraints.
const QUERY_CANCELED: &str = "57014";
const COMPLETION_UNKNOWN: &str = "40003";
const TOO_MANY_CONNECTIONS: &str = "53300";
const DUPLICATE_TABLE: &str = "42P07";
const FOREIGN_KEY_VIOLATION: &str = "23503";
const UNIQUE_VIOLATION: &str = "23505";
const CHECK_VIOLATION: &str = "23514";

/// The SQLSTATE of our own function `undo_settlement`.
const SETTLEMENT_ABORTED: &str = "CH001";

/// The error of our trigger `invoiced_usage_is_closed`: an SQLSTATE of our own. SQLite triggers have no codes, so there
/// it is the whole text of its `RAISE`.
const MONTH_INVOICED: &str = "CH002";
const MONTH_INVOICED_SQLITE: &str = "the month is already invoiced for this account";

/// Why a statement or a transaction failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// The code is SQLite's extended one.
    #[error("{message}")]
    Sqlite { code: i32, message: String },
    #[error("{message}")]
    Postgres { state: String, message: String, detail: Option<String> },
    /// No connection could be made. It may pass by itself if the server is not up, starting, full or not found.
    #[error("{why}")]
    CannotConnect { why: String, may_pass: bool },
    /// The outcome of the statement is unknown.
    #[error("{0}")]
    ConnectionLost(String),
    #[error("no answer within {} s", .limit.as_secs())]
    TimedOut { limit: Duration },
    #[error("too many statements are waiting")]
    Overloaded,
    #[error("the store is closed")]
    Closed,
    #[error("the step panicked")]
    Panicked,
    #[error("a statement returned no row")]
    NotFound,
    /// A value cannot be stored.
    #[error("{0}")]
    BadValue(String),
    #[error("{column}: {why}")]
    BadColumn { column: String, why: String },
    #[error("{what}: {why}")]
    Corrupt { what: &'static str, why: String },
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::SqliteFailure(failure, message) => Self::Sqlite {
                code: failure.extended_code,
                message: message.unwrap_or_else(|| failure.to_string()),
            },
            rusqlite::Error::QueryReturnedNoRows => Self::NotFound,
            other => Self::Sqlite { code: sqlite_code::ERROR, message: other.to_string() },
        }
    }
}

impl From<tokio_postgres::Error> for QueryError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(database) = error.as_db_error() {
            return Self::Postgres {
                state: database.code().code().to_owned(),
                message: database.message().to_owned(),
                detail: database.detail().map(ToOwned::to_owned),
            };
        }
        let cause = std::error::Error::source(&error);
        let text = cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
        if error.is_closed() || cause.is_some_and(|cause| cause.is::<io::Error>()) {
            Self::ConnectionLost(text)
        } else {
            Self::BadValue(text)
        }
    }
}

impl QueryError {
    /// SQLite's primary result code. The rest of an extended code adds detail.
    fn sqlite_code(&self) -> Option<i32> {
        match self {
            Self::Sqlite { code, .. } => Some(code & 0xff),
            _ => None,
        }
    }

    fn state(&self) -> Option<&str> {
        match self {
            Self::Postgres { state, .. } => Some(state),
            _ => None,
        }
    }
}

/// Whether this row caused the failure, so that a retry fails again and other rows may succeed.
pub(crate) fn is_row_error(error: &QueryError) -> bool {
    match error {
        QueryError::BadValue(_) => true,
        QueryError::Sqlite { .. } => error.sqlite_code() == Some(sqlite_code::CONSTRAINT),
        // Class 22: a value out of range; class 23: a violated constraint.
        QueryError::Postgres { state, .. } => {
            state.starts_with("22") || state.starts_with("23") || state == MONTH_INVOICED
        }
        _ => false,
    }
}

/// Whether the row was rejected because its account's month is invoiced.
pub(crate) fn is_month_invoiced(error: &QueryError) -> bool {
    match error {
        QueryError::Sqlite { message, .. } => {
            error.sqlite_code() == Some(sqlite_code::CONSTRAINT) && message == MONTH_INVOICED_SQLITE
        }
        _ => error.state() == Some(MONTH_INVOICED),
    }
}

/// The database's message, with the key of a foreign-key or unique violation. For other violations the detail is left
/// out: it would contain the whole row, secrets included.
pub(crate) fn detail(error: &QueryError) -> String {
    match error {
        QueryError::Postgres { state, message, detail: Some(detail) }
            if state == FOREIGN_KEY_VIOLATION || state == UNIQUE_VIOLATION =>
        {
            format!("{message} ({detail})")
        }
        _ => error.to_string(),
    }
}

/// Whether the connection was lost, so that the outcome of the statement is unknown.
pub(crate) fn is_connection_lost(error: &QueryError) -> bool {
    match error {
        QueryError::ConnectionLost(_) | QueryError::TimedOut { .. } => true,
        _ => error.state().is_some_and(is_server_going),
    }
}

/// Class 08: connection errors; 57P01 to 57P03: the server is shutting down, crashed or is starting.
fn is_server_going(state: &str) -> bool {
    state.starts_with("08") || state.starts_with("57P0")
}

/// Whether a failure to connect may pass by itself: the server is not up, starting, full or not found. A server that answers and
/// rejects us (password, database name, TLS) will do so again.
pub(crate) fn is_unreachable(error: &QueryError) -> bool {
    match error {
        QueryError::CannotConnect { may_pass, .. } => *may_pass,
        // A proxy without a server behind it closes the connection.
        QueryError::ConnectionLost(_) | QueryError::TimedOut { .. } | QueryError::Overloaded => true,
        _ => error.state().is_some_and(|state| is_server_going(state) || state == TOO_MANY_CONNECTIONS),
    }
}

/// Whether a retry of the same statement may succeed.
pub(crate) fn is_retryable(error: &QueryError) -> bool {
    is_transaction_rollback(error) || is_connection_lost(error)
}

/// Whether PostgreSQL rolled the transaction back because of a conflict (class 40, without "completion unknown").
pub(crate) fn is_transaction_rollback(error: &QueryError) -> bool {
    error.state().is_some_and(|state| state.starts_with("40") && state != COMPLETION_UNKNOWN)
}

pub(crate) fn is_unique_violation(error: &QueryError) -> bool {
    match error {
        QueryError::Sqlite { code, .. } => {
            matches!(*code, sqlite_code::CONSTRAINT_PRIMARY_KEY | sqlite_code::CONSTRAINT_UNIQUE)
        }
        _ => error.state() == Some(UNIQUE_VIOLATION),
    }
}

/// Whether the table to be created exists.
pub(crate) fn is_duplicate_table(error: &QueryError) -> bool {
    error.state() == Some(DUPLICATE_TABLE)
}

/// Whether an existing row violates a new CHECK constraint on PostgreSQL.
pub(crate) fn is_check_violation(error: &QueryError) -> bool {
    error.state() == Some(CHECK_VIOLATION)
}

/// Why a settlement rolled itself back: the reason passed to `undo_settlement`.
pub(crate) fn abort_reason(error: &QueryError) -> Option<&str> {
    match error {
        QueryError::Postgres { state, message, .. } if state == SETTLEMENT_ABORTED => Some(message),
        _ => None,
    }
}

/// Whether another connection to the same SQLite file has the lock.
pub(crate) fn is_busy(error: &QueryError) -> bool {
    error.sqlite_code() == Some(sqlite_code::BUSY)
}

/// Whether SQLite stopped the statement because its time was up.
pub(crate) fn is_interrupted(error: &QueryError) -> bool {
    error.sqlite_code() == Some(sqlite_code::INTERRUPT)
}

/// Whether PostgreSQL stopped the statement because its time was up.
pub(crate) fn is_statement_timeout(error: &QueryError) -> bool {
    error.state() == Some(QUERY_CANCELED)
}

/// Maps a failure to open this file.
pub(crate) fn map_open_error(error: &QueryError, file: &Path) -> OpenError {
    match (error.sqlite_code(), error) {
        (Some(sqlite_code::NOTADB), _) => OpenError::NotADatabase { file: file.to_owned() },
        (Some(sqlite_code::CANTOPEN), QueryError::Sqlite { message, .. }) => {
            OpenError::CannotOpen { file: file.to_owned(), why: message.clone() }
        }
        _ => map_db_error(error).into(),
    }
}

pub(crate) fn store_closed() -> DbError {
    DbError::Unavailable("the store is closed".to_owned())
}

/// Maps the failure of an INSERT whose name must be unique.
pub(crate) fn map_unless_unique_violation<E: From<DbError>>(
    error: &QueryError,
    taken: impl FnOnce() -> E,
) -> E {
    if is_unique_violation(error) { taken() } else { map_db_error(error).into() }
}

impl From<QueryError> for OpenError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}

impl From<QueryError> for DbError {
    fn from(error: QueryError) -> Self {
        map_db_error(&error)
    }
}

pub(crate) fn map_db_error(error: &QueryError) -> DbError {
    match error {
        QueryError::Sqlite { code, message } => map_sqlite_error(code & 0xff, message),
        QueryError::Postgres { state, message, .. } => map_postgres_error(state, message),
        QueryError::CannotConnect { why, may_pass: false } => DbError::Unavailable(why.clone()),
        QueryError::CannotConnect { why, .. } | QueryError::ConnectionLost(why) => {
            DbError::Unavailable(format!(
                "the connection failed ({why}); check that it is running and that `database.url` is correct"
            ))
        }
        QueryError::TimedOut { limit } => {
            let fix = if *limit >= LONG_STATEMENT_TIMEOUT {
                "use a shorter period, or check the database's load"
            } else {
                "check that it is running, and check its load"
            };
            DbError::Unavailable(format!("it took longer than {} s; {fix}", limit.as_secs()))
        }
        QueryError::Overloaded => DbError::Unavailable(
            "no connection became available in time: the database is down, unreachable, or all connections are busy"
                .to_owned(),
        ),
        QueryError::Closed => store_closed(),
        QueryError::BadColumn { .. } => DbError::Corrupt { what: "a column", why: error.to_string() },
        QueryError::Corrupt { what, why } => DbError::Corrupt { what, why: why.clone() },
        QueryError::Secret(error) => DbError::Secret(error.clone()),
        QueryError::Panicked | QueryError::NotFound | QueryError::BadValue(_) => {
            DbError::Unavailable(error.to_string())
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_timeout_is_not_reported_as_connection_failure() {
        let text = map_db_error(&QueryError::TimedOut { limit: RESPONSE_TIMEOUT }).to_string();
        assert!(text.contains("took longer than 10 s") && text.contains("load"), "{text}");
        assert!(!text.contains("database.url") && !text.contains("connection"), "{text}");
    }

    #[test]
    fn report_timeout_suggests_a_shorter_period() {
        let text = map_db_error(&QueryError::TimedOut { limit: LONG_RESPONSE_TIMEOUT }).to_string();
        assert!(text.contains("took longer than 125 s; use a shorter period"), "{text}");
    }

    #[test]
    fn connection_failure_mentions_database_url() {
        let text = map_db_error(&QueryError::ConnectionLost("reset".to_owned())).to_string();
        assert!(text.contains("database.url"), "{text}");
    }
}
