//! Read connections to a SQLite file. sqlx's pool tests a connection after every use, in a task of its own, which wakes as
//! many threads as the read itself. These connections are threads of this process and cannot be lost, so they need no test.

use crate::db::error_codes::{STATEMENT_TIMEOUT, is_connection_lost};
use crate::db::write_slot::Connector;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};

pub(crate) struct ReadPool<C: Connector> {
    connector: C,
    max_connections: u32,
    /// A permit for each connection that may be in use.
    slots: Semaphore,
    idle: Mutex<Idle<C::Connection>>,
}

struct Idle<T> {
    connections: Vec<T>,
    is_closed: bool,
}

/// A borrowed connection. `finish` gives it back. One that is dropped instead may still run a statement, and is closed when
/// that ends.
pub(crate) struct ReadLease<'a, C: Connector> {
    pub(crate) connection: C::Connection,
    pool: &'a ReadPool<C>,
    _slot: SemaphorePermit<'a>,
}

impl<C: Connector> ReadPool<C> {
    /// A pool that connects when its connections are needed.
    pub(crate) fn new(connector: C, max_connections: u32) -> Self {
        Self {
            connector,
            max_connections,
            slots: Semaphore::new(max_connections as usize),
            idle: Mutex::new(Idle { connections: Vec::new(), is_closed: false }),
        }
    }

    /// Opens the first connection.
    pub(crate) async fn connect(connector: C, max_connections: u32) -> Result<Self, sqlx::Error> {
        let connection = connector.connect().await?;
        let pool = Self::new(connector, max_connections);
        pool.lock().connections.push(connection);
        Ok(pool)
    }

    pub(crate) async fn acquire(&self) -> Result<ReadLease<'_, C>, sqlx::Error> {
        let slot = match self.slots.try_acquire() {
            Ok(slot) => slot,
            Err(_) => self.wait_for_slot().await?,
        };
        let idle = {
            let mut idle = self.lock();
            if idle.is_closed {
                return Err(sqlx::Error::PoolClosed);
            }
            idle.connections.pop()
        };
        let connection = match idle {
            Some(connection) => connection,
            // Boxed, because this future is large and seldom needed.
            None => Box::pin(self.connector.connect()).await?,
        };
        Ok(ReadLease { connection, pool: self, _slot: slot })
    }

    async fn wait_for_slot(&self) -> Result<SemaphorePermit<'_>, sqlx::Error> {
        if self.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        match tokio::time::timeout(STATEMENT_TIMEOUT, self.slots.acquire()).await {
            Ok(slot) => slot.map_err(|_| sqlx::Error::PoolClosed),
            Err(_) => Err(sqlx::Error::PoolTimedOut),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Rejects later calls, waits for the connections that are in use, and closes all.
    pub(crate) async fn close(&self) {
        self.lock().is_closed = true;
        let _all = self.slots.acquire_many(self.max_connections).await;
        self.slots.close();
        let connections = std::mem::take(&mut self.lock().connections);
        for connection in connections {
            C::disconnect(connection).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle<C::Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Connector> ReadLease<'_, C> {
    /// Returns the outcome unchanged. Unless it says that the connection broke, the connection can be used again.
    pub(crate) fn finish<R>(self, outcome: Result<R, sqlx::Error>) -> Result<R, sqlx::Error> {
        if !outcome.as_ref().is_err_and(is_connection_lost) {
            self.pool.lock().connections.push(self.connection);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    async fn finished_connections_are_used_again() {
        let pool = ReadPool::connect(Numbering::default(), 2).await.unwrap();
        let (first, second) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
        assert_eq!((first.connection, second.connection), (0, 1));
        first.finish(Ok(())).unwrap();
        assert_eq!(pool.acquire().await.unwrap().connection, 0);
    }

    #[tokio::test]
    async fn connection_of_a_dropped_or_failed_read_is_not_used_again() {
        let pool = ReadPool::new(Numbering::default(), 1);
        drop(pool.acquire().await.unwrap());
        let second = pool.acquire().await.unwrap();
        assert_eq!(second.connection, 1);
        second.finish::<()>(Err(sqlx::Error::WorkerCrashed)).unwrap_err();
        let third = pool.acquire().await.unwrap();
        assert_eq!(third.connection, 2);
        third.finish::<()>(Err(sqlx::Error::RowNotFound)).unwrap_err();
        assert_eq!(pool.acquire().await.unwrap().connection, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn full_pool_times_out() {
        let pool = ReadPool::new(Numbering::default(), 1);
        let _only = pool.acquire().await.unwrap();
        assert!(matches!(pool.acquire().await.err(), Some(sqlx::Error::PoolTimedOut)));
    }

    #[tokio::test]
    async fn closing_waits_for_reads_and_rejects_new_ones() {
        let pool = ReadPool::new(Numbering::default(), 2);
        let lease = pool.acquire().await.unwrap();
        let closing = async {
            pool.close().await;
            assert!(pool.lock().connections.is_empty());
        };
        let reading = async {
            tokio::task::yield_now().await;
            assert!(pool.is_closed());
            assert!(matches!(pool.acquire().await.err(), Some(sqlx::Error::PoolClosed)));
            lease.finish(Ok(())).unwrap();
        };
        tokio::join!(closing, reading);
        assert!(matches!(pool.acquire().await.err(), Some(sqlx::Error::PoolClosed)));
    }
}
