//! Who may set something aside next. Setting aside waits in the database for the account's row (PostgreSQL) or for the
//! file's write lock (SQLite), and whoever waits there holds a connection. So this process waits here instead:
//!
//! 1. One request of an account at a time, in the order they came. The others would only wait for the same row.
//! 2. Of all accounts together only a few, which leaves connections to those who look up keys, and to the ledger.
//! 3. Lines are bounded, in length and in time. Past either the answer is `Unavailable`, soon.

use crate::StoreError;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use chancery_domain::AccountId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

/// Most requests of one account, and of all, that have their turn or wait for it.
const MAX_OF_ACCOUNT: usize = 256;
const MAX_OF_ALL: usize = 4096;

pub(crate) struct SpendingTurns {
    lines: Mutex<Lines>,
    at_once: Semaphore,
}

#[derive(Default)]
struct Lines {
    of_account: HashMap<AccountId, Line>,
    /// The length of all of them.
    length: usize,
}

#[derive(Default)]
struct Line {
    turn: Arc<tokio::sync::Mutex<()>>,
    length: usize,
}

/// Somebody's turn, until it is dropped. The fields are dropped in this order, so that the next one of the account
/// finds a line that is still there.
pub(crate) struct Turn<'a> {
    _of_all: SemaphorePermit<'a>,
    _of_account: OwnedMutexGuard<()>,
    _place: Place<'a>,
}

impl SpendingTurns {
    /// So many have their turn at the same time.
    pub(crate) fn of(at_once: u32) -> Self {
        Self { lines: Mutex::default(), at_once: Semaphore::new(at_once as usize) }
    }

    pub(crate) async fn take(&self, account: AccountId) -> Result<Turn<'_>, StoreError> {
        let (place, turn) = self.stand_in_line(account)?;
        let both = async { (turn.lock_owned().await, self.at_once.acquire().await) };
        match tokio::time::timeout(STATEMENT_TIMEOUT, both).await {
            Ok((of_account, Ok(of_all))) => {
                Ok(Turn { _of_all: of_all, _of_account: of_account, _place: place })
            }
            _ => Err(busy()),
        }
    }

    fn stand_in_line(
        &self,
        account: AccountId,
    ) -> Result<(Place<'_>, Arc<tokio::sync::Mutex<()>>), StoreError> {
        let mut lines = self.lines();
        let is_full = lines.length >= MAX_OF_ALL
            || lines.of_account.get(&account).is_some_and(|line| line.length >= MAX_OF_ACCOUNT);
        if is_full {
            return Err(busy());
        }
        lines.length += 1;
        let line = lines.of_account.entry(account).or_default();
        line.length += 1;
        Ok((Place { turns: self, account }, Arc::clone(&line.turn)))
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy() -> StoreError {
    StoreError::Unavailable("too many requests wait to set something aside of a spending cap".to_owned())
}

/// A place in an account's line; the last to leave takes the line along.
struct Place<'a> {
    turns: &'a SpendingTurns,
    account: AccountId,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.turns.lines();
        lines.length -= 1;
        if let Some(line) = lines.of_account.get_mut(&self.account) {
            line.length -= 1;
            if line.length == 0 {
                lines.of_account.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: AccountId = AccountId(1);
    const QUIET: AccountId = AccountId(2);

    fn is_deserted(turns: &SpendingTurns) -> bool {
        let lines = turns.lines();
        lines.length == 0 && lines.of_account.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_has_one_turn_at_a_time_and_takes_none_from_the_others() {
        let turns = SpendingTurns::of(2);
        let first = turns.take(BUSY).await.unwrap();
        let quiet = turns.take(QUIET).await.unwrap();
        drop(quiet);
        let mut second = Box::pin(turns.take(BUSY));
        tokio::select! {
            biased;
            _ = &mut second => panic!("two turns of one account at once"),
            () = tokio::task::yield_now() => drop(first),
        }
        drop(second.await.unwrap());
        assert!(is_deserted(&turns));
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_is_bounded_in_length_and_in_time() {
        let turns = SpendingTurns::of(8);
        let first = turns.take(BUSY).await.unwrap();
        let waiting = (1..MAX_OF_ACCOUNT).map(|_| turns.take(BUSY));
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
                turns.take(BUSY).await.is_err(),
                "there is no room in the line, and the answer comes at once"
            );
            drop(turns.take(QUIET).await.unwrap());
            for turn in line {
                outcomes.push(turn.await.is_err());
            }
            outcomes
        });
        let outcomes = tokio::time::timeout(STATEMENT_TIMEOUT * 2, &mut waiting).await.unwrap();
        assert!(outcomes.into_iter().all(|is_refused| is_refused), "each has waited long enough");
        drop((waiting, first));
        assert!(is_deserted(&turns));
    }
}
