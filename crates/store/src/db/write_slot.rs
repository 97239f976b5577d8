//! One long-lived connection for writing, held in turn. A pool would test the connection after every use, which is a
//! round trip per commit; here whoever writes waits in line, and a broken connection is replaced on the next turn.

use crate::db::error_codes::{STATEMENT_TIMEOUT, is_connection_lost};
use std::future::Future;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

/// How a database's write connection is made and ended.
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

    /// The connection, once everyone before has finished with it.
    pub(crate) async fn hold(&self) -> Result<MappedMutexGuard<'_, C::Connection>, sqlx::Error> {
        let turn = tokio::time::timeout(STATEMENT_TIMEOUT, self.state.lock()).await;
        let mut state = turn.map_err(|_| sqlx::Error::PoolTimedOut)?;
        if let State::Empty = *state {
            *state = State::Open(self.connector.connect().await?);
        }
        MutexGuard::try_map(state, |state| match state {
            State::Open(connection) => Some(connection),
            State::Empty | State::Closed => None,
        })
        .map_err(|_| sqlx::Error::PoolClosed)
    }

    /// Hands on what a statement gave. Where the connection broke, lets go of it: the next holder gets a fresh one.
    pub(crate) async fn unless_broken<T>(&self, outcome: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
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
