//! A transaction of several statements on SQLite as one command, from `BEGIN` to `COMMIT`. A connection is a thread, and
//! every command to it wakes that thread and then this one. For a few small statements that takes longer than to run
//! them.

use futures_util::{StreamExt, TryStreamExt};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteQueryResult, SqliteRow};
use sqlx::{Either, Executor, Sqlite, SqliteConnection};

/// Runs the transaction, which has this many statements with `BEGIN` and `COMMIT`. After an error, nothing of it is left.
/// If the caller is dropped, the connection may have an open transaction and must not be used again.
pub(crate) async fn execute_whole(
    connection: &mut SqliteConnection,
    transaction: Query<'_, Sqlite, SqliteArguments>,
    statements: usize,
) -> Result<Vec<SqliteQueryResult>, sqlx::Error> {
    // After the last result there is only the end of the command, which would be one more wake-up.
    let results = Executor::execute_many(&mut *connection, transaction).take(statements);
    match results.try_collect::<Vec<_>>().await {
        Ok(results) if results.len() == statements => Ok(results),
        // The thread is gone, and with it what it did not commit.
        Ok(_) => Err(sqlx::Error::WorkerCrashed),
        Err(error) => {
            // Ends what `BEGIN` began. If that failed, or the disk is full, there is no transaction.
            let _ = sqlx::query("ROLLBACK").execute(&mut *connection).await;
            Err(error)
        }
    }
}

/// Reads the rows of each of `N` statements, which are between `BEGIN` and `COMMIT`, from one snapshot. The same holds after an
/// error or if the caller is dropped.
pub(crate) async fn fetch_whole<const N: usize>(
    connection: &mut SqliteConnection,
    transaction: Query<'_, Sqlite, SqliteArguments>,
) -> Result<[Vec<SqliteRow>; N], sqlx::Error> {
    let rows = collect_rows(connection, transaction).await;
    if rows.is_err() {
        let _ = sqlx::query("ROLLBACK").execute(&mut *connection).await;
    }
    rows
}

async fn collect_rows<const N: usize>(
    connection: &mut SqliteConnection,
    transaction: Query<'_, Sqlite, SqliteArguments>,
) -> Result<[Vec<SqliteRow>; N], sqlx::Error> {
    let mut results = Executor::fetch_many(&mut *connection, transaction);
    let mut rows = [const { Vec::new() }; N];
    // `BEGIN` is the first statement to end, and `COMMIT` the last.
    let mut ended = 0;
    while ended < N + 2 {
        match results.try_next().await? {
            Some(Either::Left(_)) => ended += 1,
            Some(Either::Right(row)) => rows[ended - 1].push(row),
            None => return Err(sqlx::Error::WorkerCrashed),
        }
    }
    Ok(rows)
}
