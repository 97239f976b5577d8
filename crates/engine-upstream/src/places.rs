//! How many jobs of a model may be under way at once, and how many of them one account's. Nothing here knows how much the
//! servers can do at once, so places are many; what matters is that one account's burst leaves some to the others. Pure but
//! for the lock.

use chancery_domain::AccountId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An account may hold as many places as are free. So one alone has half of all at most, and each of n a share of one in
/// n + 1: whoever comes new always finds room, and nobody needs to know how many there are.
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    total: usize,
    /// Only of accounts that hold some.
    by_account: HashMap<AccountId, usize>,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None where there is no place for this account now.
    pub(super) fn take(self: &Arc<Self>, account: AccountId) -> Option<Place> {
        let mut taken = self.lock();
        let held = taken.by_account.get(&account).copied().unwrap_or(0);
        if held >= self.most.saturating_sub(taken.total) {
            return None;
        }
        taken.total += 1;
        taken.by_account.insert(account, held + 1);
        Some(Place { places: Arc::clone(self), account })
    }
}

/// Given back when it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    account: AccountId,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.total = taken.total.saturating_sub(1);
        if let Some(held) = taken.by_account.get_mut(&self.account) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                taken.by_account.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_many_as_it_gets(places: &Arc<Places>, account: i64) -> Vec<Place> {
        std::iter::from_fn(|| places.take(AccountId(account))).collect()
    }

    #[test]
    fn one_accounts_burst_leaves_half_of_the_places_and_the_next_ones_leaves_half_of_these() {
        let places = Places::new(100);
        let first = as_many_as_it_gets(&places, 1);
        assert_eq!(first.len(), 50);
        let second = as_many_as_it_gets(&places, 2);
        assert_eq!(second.len(), 25);
        assert!(places.take(AccountId(3)).is_some());
        drop(first);
        assert!(places.take(AccountId(1)).is_some());
    }

    #[test]
    fn places_that_were_given_back_leave_no_trace() {
        let places = Places::new(3);
        for account in 0..1_000 {
            assert!(places.take(AccountId(account)).is_some());
        }
        let taken = places.lock();
        assert_eq!((taken.total, taken.by_account.len()), (0, 0));
        assert!(Places::new(1).take(AccountId(1)).is_some());
    }
}
