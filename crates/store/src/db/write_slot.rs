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
    Open(OpenConnection<T>),
    Closed,
}

/// A connection that its holder may find broken.
pub(crate) struct OpenConnection<T> {
    pub(crate) connection: T,
    is_broken: bool,
}

/// A connection that was taken out of its slot. Unless `finish` puts it back, it is closed.
pub(crate) struct TakenConnection<'a, C: Connector> {
    pub(crate) connection: C::Connection,
    slot: MutexGuard<'a, State<C::Connection>>,
}

impl<C: Connector> TakenConnection<'_, C> {
    /// Returns the outcome unchanged. Unless it says that the connection broke, the next caller gets it.
    pub(crate) fn finish<R>(mut self, outcome: Result<R, sqlx::Error>) -> Result<R, sqlx::Error> {
        if !outcome.as_ref().is_err_and(is_connection_lost) {
            *self.slot = State::Open(OpenConnection { connection: self.connection, is_broken: false });
        }
        outcome
    }
}

impl<T> OpenConnection<T> {
    /// Returns the outcome unchanged. If it says that the connection broke, the next caller gets a new one. The holder says so
    /// before it lets go: a writer that waits must not get a connection that still has an open transaction.
    pub(crate) fn checked<R>(&mut self, outcome: Result<R, sqlx::Error>) -> Result<R, sqlx::Error> {
        self.is_broken |= outcome.as_ref().is_err_and(is_connection_lost);
        outcome
    }
}

impl<C: Connector> WriteSlot<C> {
    /// A slot that connects when it is first used.
    pub(crate) fn empty(connector: C) -> Self {
        Self { connector, state: Mutex::new(State::Empty) }
    }

    /// Waits for earlier callers, and then returns the connection. The caller checks its outcomes with
    /// [`OpenConnection::checked`].
    pub(crate) async fn acquire(
        &self,
    ) -> Result<MappedMutexGuard<'_, OpenConnection<C::Connection>>, sqlx::Error> {
        let mut state = self.lock().await?;
        if let State::Empty = *state {
            let connection = self.connector.connect().await?;
            *state = State::Open(OpenConnection { connection, is_broken: false });
        }
        MutexGuard::try_map(state, |state| match state {
            State::Open(open) => Some(open),
            State::Empty | State::Closed => None,
        })
        .map_err(|_| sqlx::Error::PoolClosed)
    }

    /// Like `acquire`, for a transaction that nothing rolls back if its future is dropped. The connection is then closed, which
    /// does.
    pub(crate) async fn take(&self) -> Result<TakenConnection<'_, C>, sqlx::Error> {
        let mut slot = self.lock().await?;
        let connection = match std::mem::replace(&mut *slot, State::Empty) {
            State::Open(open) => open.connection,
            State::Empty => self.connector.connect().await?,
            State::Closed => {
                *slot = State::Closed;
                return Err(sqlx::Error::PoolClosed);
            }
        };
        Ok(TakenConnection { connection, slot })
    }

    /// Closes the connection that the last caller found broken.
    async fn lock(&self) -> Result<MutexGuard<'_, State<C::Connection>>, sqlx::Error> {
        let guard = tokio::time::timeout(STATEMENT_TIMEOUT, self.state.lock()).await;
        let mut state = guard.map_err(|_| sqlx::Error::PoolTimedOut)?;
        if let State::Open(OpenConnection { is_broken: true, .. }) = *state {
            *state = State::Empty;
        }
        Ok(state)
    }

    /// Waits for earlier callers. Until the guard is dropped, the connection writes nothing, so that another one can.
    pub(crate) async fn block_writes(&self) -> Result<impl Drop + use<'_, C>, sqlx::Error> {
        let state = self.lock().await?;
        match *state {
            State::Empty | State::Open(_) => Ok(state),
            State::Closed => Err(sqlx::Error::PoolClosed),
        }
    }

    pub(crate) async fn close(&self) {
        let mut state = self.state.lock().await;
        if let State::Open(open) = std::mem::replace(&mut *state, State::Closed) {
            C::disconnect(open.connection).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Numbers its connections.
    #[derive(Default)]
    struct Numbering(AtomicU32);

    impl Connector for Numbering {
        type Connection = u32;

        async fn connect(&self) -> Result<u32, sqlx::Error> {
            Ok(self.0.fetch_add(1, Ordering::Relaxed))
        }

        async fn disconnect(_connection: u32) {}
    }

    #[tokio::test]
    async fn waiting_writer_never_gets_a_broken_connection() {
        let slot = Arc::new(WriteSlot::empty(Numbering::default()));
        let mut first = slot.acquire().await.unwrap();
        assert_eq!(first.connection, 0);
        let waiting = tokio::spawn({
            let slot = Arc::clone(&slot);
            async move { slot.acquire().await.unwrap().connection }
        });
        tokio::task::yield_now().await;
        let lost = sqlx::Error::Io(io::ErrorKind::TimedOut.into());
        first.checked::<()>(Err(lost)).unwrap_err();
        drop(first);
        assert_eq!(waiting.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn transaction_that_was_dropped_leaves_no_connection() {
        let slot = WriteSlot::empty(Numbering::default());
        slot.take().await.unwrap().finish(Ok(())).unwrap();
        let second = slot.take().await.unwrap();
        assert_eq!(second.connection, 0);
        drop(second);
        assert_eq!(slot.acquire().await.unwrap().connection, 1);
        let third = slot.take().await.unwrap();
        third.finish::<()>(Err(sqlx::Error::WorkerCrashed)).unwrap_err();
        assert_eq!(slot.acquire().await.unwrap().connection, 2);
        slot.close().await;
        assert!(matches!(slot.take().await.err(), Some(sqlx::Error::PoolClosed)));
    }

    #[tokio::test]
    async fn errors_of_a_statement_keep_the_connection() {
        let slot = WriteSlot::empty(Numbering::default());
        slot.acquire().await.unwrap().checked::<()>(Err(sqlx::Error::RowNotFound)).unwrap_err();
        assert_eq!(slot.acquire().await.unwrap().connection, 0);
    }
}
