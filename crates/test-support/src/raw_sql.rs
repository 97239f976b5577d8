//! SQL on a connection of its own, without the store: for tests that read tables, damage them, or hold locks. On both databases.

use rusqlite::types::ValueRef;
use tokio::task::JoinHandle;
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// Closing or dropping it rolls back an open transaction.
pub struct RawConnection(Driver);

enum Driver {
    Sqlite(rusqlite::Connection),
    Postgres { client: tokio_postgres::Client, session: JoinHandle<()> },
}

impl RawConnection {
    /// Opens the database at this URL: `sqlite:PATH`, where a missing file is created, or `postgres://…`.
    pub async fn open(url: &str) -> Self {
        Self(match url.strip_prefix("sqlite:") {
            Some(path) => Driver::Sqlite(rusqlite::Connection::open(path).unwrap()),
            None => {
                let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
                let session = tokio::spawn(async move {
                    // The server may end it; the next statement then says so.
                    let _ = connection.await;
                });
                Driver::Postgres { client, session }
            }
        })
    }

    /// Runs statements that are separated by semicolons. Returns the database's error message.
    pub async fn run(&mut self, sql: &str) -> Result<(), String> {
        match &self.0 {
            Driver::Sqlite(connection) => connection.execute_batch(sql).map_err(|error| error.to_string()),
            Driver::Postgres { client, .. } => client.batch_execute(sql).await.map_err(postgres_message),
        }
    }

    /// Returns the result of one query. Every value is an integer or a text; select others as text.
    pub async fn rows<const COLUMNS: usize>(&mut self, query: &str) -> Vec<[String; COLUMNS]> {
        let rows = match &self.0 {
            Driver::Sqlite(connection) => sqlite_rows(connection, query).map_err(|error| error.to_string()),
            Driver::Postgres { client, .. } => client
                .simple_query(query)
                .await
                .map(|messages| postgres_rows(&messages))
                .map_err(postgres_message),
        };
        let rows = rows.unwrap_or_else(|error| panic!("{query}: {error}"));
        rows.into_iter().map(|row| row.try_into().unwrap()).collect()
    }

    /// Returns the result of a query with one column.
    pub async fn texts(&mut self, query: &str) -> Vec<String> {
        self.rows(query).await.into_iter().map(|[text]| text).collect()
    }

    /// Returns the only value of a query.
    pub async fn number(&mut self, query: &str) -> i64 {
        let [number] = self.texts(query).await.try_into().unwrap();
        number.parse().unwrap()
    }

    /// Returns when the connection is closed.
    pub async fn close(self) {
        match self.0 {
            Driver::Sqlite(connection) => connection.close().unwrap(),
            Driver::Postgres { client, session } => {
                drop(client);
                session.await.unwrap();
            }
        }
    }
}

/// Runs statements on a connection that is closed afterwards. Returns the database's error message.
pub async fn raw_sql(url: &str, sql: &str) -> Result<(), String> {
    let mut connection = RawConnection::open(url).await;
    let outcome = connection.run(sql).await;
    connection.close().await;
    outcome
}

fn sqlite_rows(connection: &rusqlite::Connection, query: &str) -> rusqlite::Result<Vec<Vec<String>>> {
    let mut statement = connection.prepare(query)?;
    let columns = 0..statement.column_count();
    let text = |value: ValueRef<'_>| match value {
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("{query}: {other:?} is neither an integer nor a text"),
    };
    let rows = statement
        .query_map((), |row| columns.clone().map(|column| row.get_ref(column).map(text)).collect())?;
    rows.collect()
}

fn postgres_rows(messages: &[SimpleQueryMessage]) -> Vec<Vec<String>> {
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    rows.map(|row| (0..row.len()).map(|column| row.get(column).unwrap().to_owned()).collect()).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn postgres_message(error: tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}
