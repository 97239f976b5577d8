//! One long-lived write connection. A pool would test the connection after every use, which is a round trip per commit.
//! Here writers queue, and the next one replaces a broken connection.

use crate::db::error_codes::{STATEMENT_TIMEOUT, is_connection_lost};
use std::future::Future;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

/// Opens and closes a database's write connection.
pub(crate) trait Connector: Send + Sync + 'static {
    type Connection: Send + 'static;

    fn connect(&self) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;

    fn disconnect(connection: Self::Connection) -> impl Future<Output = ()> + Send;
}

pub(crate) struct WriteSlot<C: Connector> {
    connector: C,
    state: Mutex<State<C::Connection>>,
}

enum State<T> {
    Empty,
    Open(T),
    Closed,
}

impl<C: Connector> WriteSlot<C> {
    /// A slot that connects when it is first used.
    pub(crate) fn empty(connector: C) -> Self {
        Self { connector, state: Mutex::new(State::Empty) }
    }

    /// Waits for earlier callers, and then returns the connection.
    pub(crate) async fn acquire(&self) -> Result<MappedMutexGuard<'_, C::Connection>, sqlx::Error> {
        let guard = tokio::time::timeout(STATEMENT_TIMEOUT, self.state.lock()).await;
        let mut state = guard.map_err(|_| sqlx::Error::PoolTimedOut)?;
        if let State::Empty = *state {
            *state = State::Open(self.connector.connect().await?);
        }
        MutexGuard::try_map(state, |state| match state {
            State::Open(connection) => Some(connection),
            State::Empty | State::Closed => None,
        })
        .map_err(|_| sqlx::Error::PoolClosed)
    }

    /// Returns the outcome unchanged. If the connection broke, it is dropped, and the next caller gets a new one.
    pub(crate) async fn reset_if_broken<T>(&self, outcome: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        if outcome.as_ref().is_err_and(is_connection_lost) {
            let mut state = self.state.lock().await;
            if let State::Open(_) = *state {
                *state = State::Empty;
            }
        }
        outcome
    }

    pub(crate) async fn close(&self) {
        let mut state = self.state.lock().await;
        if let State::Open(connection) = std::mem::replace(&mut *state, State::Closed) {
            C::disconnect(connection).await;
        }
    }
}
