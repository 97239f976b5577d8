//! Who may reserve next. A reservation waits in the database for the account's row (PostgreSQL) or for the file's write lock
//! (SQLite), and whoever waits there holds a connection. So this process waits here instead:
//!
//! 1. One request of an account at a time, in the order they came. The others would only wait for the same row.
//! 2. Of all accounts together only a few, which leaves connections to those who look up keys, and to the ledger.
//! 3. Queues are bounded, in length and in time. Past either the answer is `Unavailable`, soon.

use crate::AccountError;
use crate::DbError;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use chancery_domain::AccountId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

/// Most requests of one account, and of all, that are being reserved for or wait.
const MAX_OF_ACCOUNT: usize = 256;
const MAX_OF_ALL: usize = 4096;

pub(crate) struct SpendingQueue {
    queues: Mutex<Queues>,
    slots: Semaphore,
}

#[derive(Default)]
struct Queues {
    of_account: HashMap<AccountId, AccountQueue>,
    /// The length of all of them.
    length: usize,
}

#[derive(Default)]
struct AccountQueue {
    lock: Arc<tokio::sync::Mutex<()>>,
    length: usize,
}

/// Held while one request reserves. The fields are dropped in this order, so that the next one of the account finds a queue
/// that is still there.
pub(crate) struct Slot<'a> {
    _slot: SemaphorePermit<'a>,
    _of_account: OwnedMutexGuard<()>,
    _entry: QueueEntry<'a>,
}

impl SpendingQueue {
    /// With so many slots.
    pub(crate) fn new(slots: u32) -> Self {
        Self { queues: Mutex::default(), slots: Semaphore::new(slots as usize) }
    }

    pub(crate) async fn enter(&self, account: AccountId) -> Result<Slot<'_>, AccountError> {
        let (entry, lock) = self.queue_up(account)?;
        let both = async { (lock.lock_owned().await, self.slots.acquire().await) };
        match tokio::time::timeout(STATEMENT_TIMEOUT, both).await {
            Ok((of_account, Ok(slot))) => Ok(Slot { _slot: slot, _of_account: of_account, _entry: entry }),
            _ => Err(busy()),
        }
    }

    fn queue_up(
        &self,
        account: AccountId,
    ) -> Result<(QueueEntry<'_>, Arc<tokio::sync::Mutex<()>>), AccountError> {
        let mut queues = self.queues();
        let is_full = queues.length >= MAX_OF_ALL
            || queues.of_account.get(&account).is_some_and(|queue| queue.length >= MAX_OF_ACCOUNT);
        if is_full {
            return Err(busy());
        }
        queues.length += 1;
        let queue = queues.of_account.entry(account).or_default();
        queue.length += 1;
        Ok((QueueEntry { queue: self, account }, Arc::clone(&queue.lock)))
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy() -> AccountError {
    DbError::Unavailable("too many requests wait to set something aside of a spending cap".to_owned()).into()
}

/// An entry of an account's queue; the last to leave removes the queue.
struct QueueEntry<'a> {
    queue: &'a SpendingQueue,
    account: AccountId,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let mut queues = self.queue.queues();
        queues.length -= 1;
        if let Some(queue) = queues.of_account.get_mut(&self.account) {
            queue.length -= 1;
            if queue.length == 0 {
                queues.of_account.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: AccountId = AccountId(1);
    const QUIET: AccountId = AccountId(2);

    fn is_deserted(queue: &SpendingQueue) -> bool {
        let queues = queue.queues();
        queues.length == 0 && queues.of_account.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_has_one_turn_at_a_time_and_takes_none_from_the_others() {
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
        assert!(is_deserted(&queue));
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_is_bounded_in_length_and_in_time() {
        let queue = SpendingQueue::new(8);
        let first = queue.enter(BUSY).await.unwrap();
        let waiting = (1..MAX_OF_ACCOUNT).map(|_| queue.enter(BUSY));
        let mut waiting = Box::pin(async {
            let mut outcomes = Vec::new();
            let mut line: Vec<_> = waiting.map(Box::pin).collect();
            // All of them stand in line before the first of them has waited long enough.
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
        assert!(outcomes.into_iter().all(|is_refused| is_refused), "each has waited long enough");
        drop((waiting, first));
        assert!(is_deserted(&queue));
    }
}
