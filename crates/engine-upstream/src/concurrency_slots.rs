//! Limits a model's concurrent jobs, in total and per account. The servers' capacity is unknown here, so there are many
//! slots. What matters is that one account's burst leaves some to the others. Pure except for the lock.

use chancery_domain::AccountId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An account may hold as many slots as are free. One account alone gets at most half of them, and each of n accounts
/// 1/(n + 1). A new account therefore always finds a slot, without counting accounts.
pub(super) struct ConcurrencyLimit {
    max_slots: usize,
    in_use: Mutex<InUse>,
}

#[derive(Default)]
struct InUse {
    total: usize,
    /// Only accounts that hold slots.
    by_account: HashMap<AccountId, usize>,
}

impl ConcurrencyLimit {
    pub(super) fn new(max_slots: usize) -> Arc<Self> {
        Arc::new(Self { max_slots, in_use: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, InUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if there is no slot for this account now.
    pub(super) fn take(self: &Arc<Self>, account: AccountId) -> Option<ConcurrencySlot> {
        let mut in_use = self.lock();
        let account_slots = in_use.by_account.get(&account).copied().unwrap_or(0);
        if account_slots >= self.max_slots.saturating_sub(in_use.total) {
            return None;
        }
        in_use.total += 1;
        in_use.by_account.insert(account, account_slots + 1);
        Some(ConcurrencySlot { limit: Arc::clone(self), account })
    }
}

/// Released on drop.
pub(super) struct ConcurrencySlot {
    limit: Arc<ConcurrencyLimit>,
    account: AccountId,
}

impl Drop for ConcurrencySlot {
    fn drop(&mut self) {
        let mut in_use = self.limit.lock();
        in_use.total = in_use.total.saturating_sub(1);
        if let Some(account_slots) = in_use.by_account.get_mut(&self.account) {
            *account_slots = account_slots.saturating_sub(1);
            if *account_slots == 0 {
                in_use.by_account.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(limit: &Arc<ConcurrencyLimit>, account: i64) -> Vec<ConcurrencySlot> {
        std::iter::from_fn(|| limit.take(AccountId(account))).collect()
    }

    #[test]
    fn each_account_takes_at_most_half_of_the_free_slots() {
        let limit = ConcurrencyLimit::new(100);
        let first = take_all(&limit, 1);
        assert_eq!(first.len(), 50);
        let second = take_all(&limit, 2);
        assert_eq!(second.len(), 25);
        assert!(limit.take(AccountId(3)).is_some());
        drop(first);
        assert!(limit.take(AccountId(1)).is_some());
    }

    #[test]
    fn released_slots_leave_no_account_entries() {
        let limit = ConcurrencyLimit::new(3);
        for account in 0..1_000 {
            assert!(limit.take(AccountId(account)).is_some());
        }
        let in_use = limit.lock();
        assert_eq!((in_use.total, in_use.by_account.len()), (0, 0));
        assert!(ConcurrencyLimit::new(1).take(AccountId(1)).is_some());
    }
}
