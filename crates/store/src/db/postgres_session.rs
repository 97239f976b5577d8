//! A connection to PostgreSQL for one thread, which waits for each answer. It keeps its prepared statements.

use super::error_codes::{LONG_STATEMENT_TIMEOUT, QueryError, is_statement_timeout};
use super::postgres::{PostgresOptions, begin_session, bounded, connect, with_location};
use super::value::Value;
use crate::OpenError;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

/// How long a statement of a migration or a transfer may run: as good as for ever.
const UNLIMITED: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Prepared statements of a session. Beyond that, all are dropped: most texts come again.
const MAX_PREPARED: usize = 512;

/// How much longer than the server's own limit a statement may take, which catches a server that does not answer.
const RESPONSE_MARGIN: Duration = Duration::from_secs(5);

type Posted = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send>>;

pub(crate) struct PostgresSession {
    client: Arc<Client>,
    prepared: HashMap<String, Statement>,
    /// What was sent without waiting for the answer, in this order.
    posted: Vec<Posted>,
    /// How long one answer may take.
    limit: Duration,
    /// Dropped last, because it runs the connection.
    runtime: SessionRuntime,
}

struct SessionRuntime(Runtime);

impl Drop for SessionRuntime {
    fn drop(&mut self) {
        // The connection notices that the client is gone, and says goodbye. Otherwise the server logs a broken connection.
        self.0.block_on(tokio::task::yield_now());
    }
}

impl PostgresSession {
    pub(crate) fn connect(
        options: &PostgresOptions,
        statement_timeout: Duration,
    ) -> Result<Self, QueryError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| QueryError::CannotConnect { why: error.to_string(), may_pass: true })?;
        let connected = runtime.block_on(async {
            let client = connect(options).await?;
            bounded(begin_session(&client, statement_timeout)).await?;
            Ok::<_, QueryError>(client)
        });
        let client = match connected {
            Ok(client) => client,
            Err(error) => {
                // It must not wait for a lookup of the host name, which may take long.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let limit = statement_timeout + RESPONSE_MARGIN;
        let (client, runtime) = (Arc::new(client), SessionRuntime(runtime));
        Ok(Self { client, prepared: HashMap::new(), posted: Vec::new(), limit, runtime })
    }

    /// Queues a command in front of the next statement, which sends both and checks both answers.
    pub(super) fn post(&mut self, command: &'static str) {
        let client = Arc::clone(&self.client);
        let mut sent: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(async move { client.batch_execute(command).await });
        let _inside = self.runtime.0.enter();
        // The first poll queues it. It is ready at once only if the connection is closed, and then the next statement fails too.
        let poll = sent.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if poll.is_pending() {
            self.posted.push(sent);
        }
    }

    /// Runs a command without parameters, or several.
    pub(crate) fn batch(&mut self, commands: &str) -> Result<(), QueryError> {
        let client = Arc::clone(&self.client);
        self.wait(async move { client.batch_execute(commands).await })
    }

    pub(super) fn execute(
        &mut self,
        sql: &str,
        values: &[Value],
        is_persistent: bool,
    ) -> Result<u64, QueryError> {
        let (statement, client) = (self.statement(sql, values, is_persistent)?, Arc::clone(&self.client));
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        self.wait(async move { client.execute(&statement, &values).await })
    }

    pub(super) fn query(
        &mut self,
        sql: &str,
        values: &[Value],
        is_persistent: bool,
    ) -> Result<Vec<Row>, QueryError> {
        let (statement, client) = (self.statement(sql, values, is_persistent)?, Arc::clone(&self.client));
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        self.wait(async move { client.query(&statement, &values).await })
    }

    /// Runs a statement whose parameters are of other types than `Value` has, such as arrays. It stays prepared.
    pub(crate) fn execute_raw(
        &mut self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, QueryError> {
        let (statement, client) = (self.prepare(sql, &[], true)?, Arc::clone(&self.client));
        self.wait(async move { client.execute(&statement, values).await })
    }

    fn statement(
        &mut self,
        sql: &str,
        values: &[Value],
        is_persistent: bool,
    ) -> Result<Statement, QueryError> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let types: Vec<Type> = values.iter().map(Value::postgres_type).collect();
        self.prepare(sql, &types, is_persistent)
    }

    fn prepare(&mut self, sql: &str, types: &[Type], is_persistent: bool) -> Result<Statement, QueryError> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let client = Arc::clone(&self.client);
        let statement = self.wait(async move { client.prepare_typed(sql, types).await })?;
        if is_persistent {
            if self.prepared.len() >= MAX_PREPARED {
                self.prepared.clear();
            }
            self.prepared.insert(sql.to_owned(), statement.clone());
        }
        Ok(statement)
    }

    /// Waits for the answer of what is sent, and first for those of what was posted.
    fn wait<T>(
        &mut self,
        sent: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, QueryError> {
        let (limit, posted) = (self.limit, std::mem::take(&mut self.posted));
        let answered = self.runtime.0.block_on(async move {
            let in_order = async {
                // Polled together, so that all are on their way before the first answer is awaited.
                let posted = futures_util::future::try_join_all(posted);
                let (posted, sent) = tokio::join!(posted, sent);
                posted?;
                sent
            };
            tokio::time::timeout(limit, in_order).await
        });
        match answered {
            Ok(outcome) => outcome.map_err(|error| {
                let (error, limit) = (QueryError::from(error), limit - RESPONSE_MARGIN);
                // The message of a report's time-out suggests a shorter period.
                if is_statement_timeout(&error) && limit >= LONG_STATEMENT_TIMEOUT {
                    QueryError::TimedOut { limit }
                } else {
                    error
                }
            }),
            Err(_) => Err(QueryError::TimedOut { limit }),
        }
    }
}

/// A session for migrations and transfers, whose statements may run for hours. Its errors name the server.
pub(crate) fn open_session(options: &PostgresOptions) -> Result<PostgresSession, OpenError> {
    PostgresSession::connect(options, UNLIMITED).map_err(|error| with_location(options, &error).into())
}
