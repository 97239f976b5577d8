//! The queue of spending reservations. A reservation waits in the database for the account's row (PostgreSQL) or the
//! write lock (SQLite), and occupies a connection meanwhile. So requests of this process wait here instead:
//!
//! 1. One request per account at a time, in order of arrival. More would only wait for the same row.
//! 2. Only a few over all accounts, which leaves connections for key lookups and the ledger.
//! 3. Queues are bounded in length and in time. Beyond either, the result is `Unavailable`.

use crate::AccountError;
use crate::DbError;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use chancery_domain::AccountId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

/// Most requests of one account, and of all accounts, that reserve or wait.
const MAX_PER_ACCOUNT: usize = 256;
const MAX_TOTAL: usize = 4096;

pub(crate) struct SpendingQueue {
    queues: Mutex<Queues>,
    slots: Semaphore,
}

#[derive(Default)]
struct Queues {
    by_account: HashMap<AccountId, AccountQueue>,
    /// The total length of all queues.
    length: usize,
}

#[derive(Default)]
struct AccountQueue {
    lock: Arc<tokio::sync::Mutex<()>>,
    length: usize,
}

/// Held while one request reserves. Fields drop in this order: the account's queue must still exist when its next
/// request runs.
pub(crate) struct Slot<'a> {
    _slot: SemaphorePermit<'a>,
    _account_guard: OwnedMutexGuard<()>,
    _entry: QueueEntry<'a>,
}

impl SpendingQueue {
    pub(crate) fn new(slots: u32) -> Self {
        Self { queues: Mutex::default(), slots: Semaphore::new(slots as usize) }
    }

    pub(crate) async fn enter(&self, account: AccountId) -> Result<Slot<'_>, AccountError> {
        let (entry, lock) = self.enqueue(account)?;
        let both = async { (lock.lock_owned().await, self.slots.acquire().await) };
        match tokio::time::timeout(STATEMENT_TIMEOUT, both).await {
            Ok((account_guard, Ok(slot))) => {
                Ok(Slot { _slot: slot, _account_guard: account_guard, _entry: entry })
            }
            _ => Err(queue_full()),
        }
    }

    fn enqueue(
        &self,
        account: AccountId,
    ) -> Result<(QueueEntry<'_>, Arc<tokio::sync::Mutex<()>>), AccountError> {
        let mut queues = self.queues();
        let is_full = queues.length >= MAX_TOTAL
            || queues.by_account.get(&account).is_some_and(|queue| queue.length >= MAX_PER_ACCOUNT);
        if is_full {
            return Err(queue_full());
        }
        queues.length += 1;
        let queue = queues.by_account.entry(account).or_default();
        queue.length += 1;
        Ok((QueueEntry { queue: self, account }, Arc::clone(&queue.lock)))
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn queue_full() -> AccountError {
    DbError::Unavailable("too many requests are waiting to reserve spending".to_owned()).into()
}

/// A request in an account's queue. The last to leave removes the queue.
struct QueueEntry<'a> {
    queue: &'a SpendingQueue,
    account: AccountId,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let mut queues = self.queue.queues();
        queues.length -= 1;
        if let Some(queue) = queues.by_account.get_mut(&self.account) {
            queue.length -= 1;
            if queue.length == 0 {
                queues.by_account.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: AccountId = AccountId(1);
    const QUIET: AccountId = AccountId(2);

    fn has_no_waiters(queue: &SpendingQueue) -> bool {
        let queues = queue.queues();
        queues.length == 0 && queues.by_account.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn queue_serializes_per_account_without_blocking_others() {
        let queue = SpendingQueue::new(2);
        let first = queue.enter(BUSY).await.unwrap();
        let quiet = queue.enter(QUIET).await.unwrap();
        drop(quiet);
        let mut second = Box::pin(queue.enter(BUSY));
        tokio::select! {
            biased;
            _ = &mut second => panic!("two turns of one account at once"),
            () = tokio::task::yield_now() => drop(first),
        }
        drop(second.await.unwrap());
        assert!(has_no_waiters(&queue));
    }

    #[tokio::test(start_paused = true)]
    async fn queue_is_bounded_in_length_and_time() {
        let queue = SpendingQueue::new(8);
        let first = queue.enter(BUSY).await.unwrap();
        let waiting = (1..MAX_PER_ACCOUNT).map(|_| queue.enter(BUSY));
        let mut waiting = Box::pin(async {
            let mut outcomes = Vec::new();
            let mut line: Vec<_> = waiting.map(Box::pin).collect();
            // All of them are queued before the first one times out.
            std::future::poll_fn(|context| {
                line.iter_mut().for_each(|turn| assert!(turn.as_mut().poll(context).is_pending()));
                std::task::Poll::Ready(())
            })
            .await;
            assert!(
                queue.enter(BUSY).await.is_err(),
                "there is no room in the line, and the answer comes at once"
            );
            drop(queue.enter(QUIET).await.unwrap());
            for turn in line {
                outcomes.push(turn.await.is_err());
            }
            outcomes
        });
        let outcomes = tokio::time::timeout(STATEMENT_TIMEOUT * 2, &mut waiting).await.unwrap();
        assert!(outcomes.into_iter().all(|is_rejected| is_rejected), "each has waited long enough");
        drop((waiting, first));
        assert!(has_no_waiters(&queue));
    }
}
