//! Reads the databases' error codes: which `DbError` a failure is, and whether trying again can help. The only file
//! that knows the codes of SQLite and the SQLSTATEs of PostgreSQL.

use crate::DbError;
use crate::OpenError;
use crate::db::Corrupt;
use sqlx::error::{DatabaseError, ErrorKind};
use sqlx::postgres::PgDatabaseError;
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Longest wait for the answer to one statement. It is above SQLite's busy timeout and PostgreSQL's statement timeout,
/// which name the cause better; this one is left for a connection that has gone silent.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a statement may run or wait for another's lock.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The same two for what an operator asks of the whole ledger, which grows for years.
pub(crate) const LONG_ANSWER_TIMEOUT: Duration = Duration::from_secs(125);
pub(crate) const LONG_STATEMENT_TIMEOUT: Duration = Duration::from_secs(120);

const _: () = assert!(STATEMENT_TIMEOUT.as_secs() < ANSWER_TIMEOUT.as_secs());
const _: () = assert!(LONG_STATEMENT_TIMEOUT.as_secs() < LONG_ANSWER_TIMEOUT.as_secs());

/// The cause of the `sqlx::Error::Io` that stands for a statement which was given up.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", .limit.as_secs())]
struct NoAnswer {
    limit: Duration,
}

/// SQLite's primary result codes (the low byte of an extended one).
mod sqlite_code {
    pub(super) const BUSY: i32 = 5;
    pub(super) const READONLY: i32 = 8;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const CONSTRAINT: i32 = 19;
    pub(super) const NOTADB: i32 = 26;
}

/// PostgreSQL's SQLSTATE of a statement that took longer than its session allows.
const STATEMENT_TIMED_OUT: &str = "57014";

/// PostgreSQL's SQLSTATE of making a table that is there.
const TABLE_IS_THERE: &str = "42P07";

/// The SQLSTATE of our own function `undo_settlement`.
const UNDONE: &str = "CH001";

/// What our trigger `invoiced_usage_is_closed` fails with: a SQLSTATE of our own, and in SQLite, where a trigger has no code of
/// its own, the whole text of its `RAISE`.
const MONTH_INVOICED: &str = "CH002";
const MONTH_INVOICED_SQLITE: &str = "this account's month is invoiced: nothing is added to it any more";

/// Waits for a statement's answer, but not for ever.
pub(crate) async fn with_timeout<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    within(ANSWER_TIMEOUT, statement).await
}

pub(crate) async fn with_timeout_of<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    within(limit, statement).await
}

/// Like `with_timeout`, for a query over the whole ledger.
pub(crate) async fn with_long_timeout<T>(
    query: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let timed_out = |error: &sqlx::Error| {
        let error = error.as_database_error();
        error.is_some_and(|error| matches!(code(error), Code::Postgres(STATEMENT_TIMED_OUT)))
    };
    within(LONG_ANSWER_TIMEOUT, query).await.map_err(|error| match timed_out(&error) {
        true => no_answer(LONG_STATEMENT_TIMEOUT),
        false => error,
    })
}

fn no_answer(limit: Duration) -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, NoAnswer { limit }))
}

async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(limit, statement).await.unwrap_or_else(|_| Err(no_answer(limit)))
}

fn gave_up_after(error: &io::Error) -> Option<Duration> {
    Some(error.get_ref()?.downcast_ref::<NoAnswer>()?.limit)
}

/// Whether the failure is the row's own: another row, or the same row later, tells nothing about it.
pub(crate) fn is_the_rows_fault(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(error) => match code(error.as_ref()) {
            Code::Sqlite(code) => code == sqlite_code::CONSTRAINT,
            // 22: a value out of range; 23: a broken constraint.
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

/// The database's own words, with the key that it says is missing or there twice. What it says of a row that breaks another
/// rule is left out: that would be all of the row, secrets included.
pub(crate) fn detail(error: &sqlx::Error) -> String {
    let Some(error) = error.as_database_error() else { return error.to_string() };
    let is_about_a_key = error.is_foreign_key_violation() || error.is_unique_violation();
    let more = error.try_downcast_ref::<PgDatabaseError>().filter(|_| is_about_a_key);
    let more = more.and_then(PgDatabaseError::detail);
    more.map_or_else(|| error.message().to_owned(), |more| format!("{} ({more})", error.message()))
}

/// Whether the connection broke, so that nobody knows if the statement took effect.
pub(crate) fn is_connection_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        // 08: connection trouble; 57P01 to 57P03: the server is shutting down, crashed or is starting.
        sqlx::Error::Database(error) => matches!(code(error.as_ref()), Code::Postgres(state)
            if state.starts_with("08") || state.starts_with("57P0")),
        _ => false,
    }
}

/// Whether sending the same again may succeed where nothing else has changed.
pub(crate) fn is_worth_repeating(error: &sqlx::Error) -> bool {
    is_undone(error) || is_connection_lost(error)
}

/// Whether PostgreSQL undid the transaction because of what others did at the same time (40).
pub(crate) fn is_undone(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| matches!(code(error), Code::Postgres(state) if state.starts_with("40")))
}

/// Whether a row is in the way that has the same key.
pub(crate) fn is_unique_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_unique_violation)
}

/// Whether a table that was to be made is there.
pub(crate) fn is_there_already(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| matches!(code(error), Code::Postgres(state) if state == TABLE_IS_THERE))
}

/// Whether a row is in the way of a rule that is to hold from now on.
pub(crate) fn is_check_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_check_violation)
}

/// Why a settlement undid itself, in the words of the statement that did it.
pub(crate) fn undone_because(error: &sqlx::Error) -> Option<&str> {
    let error = error.as_database_error()?;
    matches!(code(error), Code::Postgres(UNDONE)).then(|| error.message())
}

/// Whether another connection to the same SQLite file is in the way.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| matches!(code(error), Code::Sqlite(code) if code == sqlite_code::BUSY))
}

/// What a failure to open this file means.
pub(crate) fn explain_opening(error: &sqlx::Error, file: &Path) -> OpenError {
    let cannot_open = |why: String| OpenError::CannotOpen { file: file.to_owned(), why };
    match error {
        sqlx::Error::Io(error) => cannot_open(error.to_string()),
        sqlx::Error::Database(database_error) => match code(database_error.as_ref()) {
            Code::Sqlite(sqlite_code::NOTADB) => OpenError::NotADatabase { file: file.to_owned() },
            Code::Sqlite(sqlite_code::CANTOPEN) => cannot_open(database_error.message().to_owned()),
            _ => explain(error).into(),
        },
        _ => explain(error).into(),
    }
}

pub(crate) fn closed() -> DbError {
    DbError::Unavailable("the store is closed".to_owned())
}

/// What a failure means of a statement that adds a row under a name that must be free.
pub(crate) fn explain_unless_taken<E: From<DbError>>(error: &sqlx::Error, taken: impl FnOnce() -> E) -> E {
    if is_unique_violation(error) { taken() } else { explain(error).into() }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        explain(&error)
    }
}

pub(crate) fn explain(error: &sqlx::Error) -> DbError {
    match error {
        sqlx::Error::PoolClosed => closed(),
        sqlx::Error::PoolTimedOut => DbError::Unavailable(
            "no connection became free in time: it is down, unreachable, or every connection is busy"
                .to_owned(),
        ),
        sqlx::Error::ColumnDecode { index, source } => {
            DbError::Corrupt { what: "a column", why: format!("{index}: {source}") }
        }
        sqlx::Error::Database(database_error) => {
            let message = database_error.message();
            match code(database_error.as_ref()) {
                Code::Sqlite(code) => explain_sqlite(code, message),
                Code::Postgres(state) => explain_postgres(state, message),
                Code::None => DbError::Unavailable(message.to_owned()),
            }
        }
        sqlx::Error::Decode(error) if error.is::<Corrupt>() => match error.downcast_ref::<Corrupt>() {
            Some(Corrupt { what, why }) => DbError::Corrupt { what, why: why.clone() },
            None => DbError::Unavailable(error.to_string()),
        },
        sqlx::Error::Io(error) => DbError::Unavailable(match gave_up_after(error) {
            Some(limit) if limit >= LONG_STATEMENT_TIMEOUT => {
                format!("it took longer than {} s; ask for fewer days, or look at its load", limit.as_secs())
            }
            Some(limit) => {
                format!("it took longer than {} s; look whether it runs, and at its load", limit.as_secs())
            }
            None => format!(
                "the connection failed ({error}); look whether it runs and whether `database.url` is right"
            ),
        }),
        other => DbError::Unavailable(other.to_string()),
    }
}

fn explain_sqlite(code: i32, message: &str) -> DbError {
    match code {
        sqlite_code::BUSY => DbError::Unavailable(format!(
            "another process has been writing all the time ({message}); end it, or try again"
        )),
        sqlite_code::FULL => DbError::DiskFull(message.to_owned()),
        sqlite_code::READONLY => DbError::ReadOnly(message.to_owned()),
        sqlite_code::CORRUPT | sqlite_code::NOTADB => DbError::Corrupt {
            what: "the file",
            why: format!("{message}; restore a backup, or look at it with `sqlite3 FILE .recover`"),
        },
        sqlite_code::IOERR => DbError::Unavailable(format!(
            "the disk reports an error ({message}); look at the system's log and whether the disk is full"
        )),
        sqlite_code::CANTOPEN => DbError::Unavailable(format!(
            "its file cannot be opened ({message}); look whether the data folder is still there and writable"
        )),
        // SQLite has no code of its own for this one.
        _ if message == "integer overflow" => DbError::SumTooLarge,
        _ => DbError::Unavailable(message.to_owned()),
    }
}

fn explain_postgres(state: &str, message: &str) -> DbError {
    let unavailable = |fix: &str| DbError::Unavailable(format!("{message}; {fix}"));
    match state {
        "22003" => DbError::SumTooLarge,
        "53100" => DbError::DiskFull(message.to_owned()),
        "25006" => DbError::ReadOnly(message.to_owned()),
        "28000" | "28P01" => unavailable("check the user and password in `database.url`"),
        "3D000" => unavailable("create it with `createdb`, or correct the name in `database.url`"),
        "42501" => {
            unavailable("let this user create and write tables there, for example by making it the owner")
        }
        "53300" => unavailable("raise PostgreSQL's `max_connections`, or run fewer nodes"),
        STATEMENT_TIMED_OUT => DbError::Unavailable(format!(
            "a statement took more than {} s ({message}); look for a lock or a very busy server",
            STATEMENT_TIMEOUT.as_secs()
        )),
        "XX001" | "XX002" => DbError::Corrupt { what: "a page", why: message.to_owned() },
        _ => DbError::Unavailable(message.to_owned()),
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
        // The low byte is the primary code; the rest only says more of the circumstances.
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
    async fn a_statement_that_takes_too_long_is_not_blamed_on_the_connection() {
        let waiting = tokio::time::timeout(HOUR, with_timeout(pending::<Result<(), _>>()));
        let text = explain(&waiting.await.unwrap().unwrap_err()).to_string();
        assert!(text.contains("took longer than 10 s") && text.contains("load"), "{text}");
        assert!(!text.contains("database.url") && !text.contains("connection"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_over_the_whole_ledger_has_minutes_and_then_names_the_way_out() {
        let early =
            tokio::time::timeout(LONG_STATEMENT_TIMEOUT, with_long_timeout(pending::<Result<(), _>>()));
        assert!(early.await.is_err(), "it was given up early");
        let waiting = tokio::time::timeout(HOUR, with_long_timeout(pending::<Result<(), _>>()));
        let text = explain(&waiting.await.unwrap().unwrap_err()).to_string();
        assert!(text.contains("took longer than 125 s; ask for fewer days"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_statement_that_was_given_up_has_lost_its_connection() {
        let error = with_timeout(pending::<Result<(), _>>()).await.unwrap_err();
        assert!(is_connection_lost(&error), "{error:?}");
    }

    #[test]
    fn a_connection_that_failed_is_blamed_on_the_connection() {
        for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut] {
            let text = explain(&sqlx::Error::Io(kind.into())).to_string();
            assert!(text.contains("database.url"), "{text}");
        }
    }
}
