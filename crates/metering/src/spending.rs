//! The hard cap on what an account spends in a calendar month: the most that a request can cost is reserved of it in the
//! store, in one step that many can race to, so that what is spent and reserved never passes the cap. Accounts without a
//! cap write nothing. When a reservation begins and ends is the protocol's (`admitted_request`).

use crate::error::{CapReached, MeterError};
use crate::lease::expiry;
use crate::limits::RESERVATION_MEMORY;
use chancery_domain::{AccountId, Clock, Month, Nanos, RequestId, UnixMillis};
use chancery_store::{MeteringStore, Reserved, SpendingReservation};
use std::sync::Arc;

pub(crate) struct SpendingCaps {
    store: Arc<MeteringStore>,
    clock: Arc<dyn Clock>,
}

/// A request and the most that it may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expense<'a> {
    pub(crate) request_id: &'a RequestId,
    pub(crate) account: AccountId,
    pub(crate) amount: Nanos,
    /// When it was admitted.
    pub(crate) at: UnixMillis,
}

impl SpendingCaps {
    pub(crate) fn new(store: Arc<MeteringStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Whether something was reserved: where the account has no cap any more, nothing is.
    pub(crate) async fn reserve(&self, expense: Expense<'_>) -> Result<bool, MeterError> {
        let now = self.clock.now();
        let reservation = SpendingReservation {
            request_id: expense.request_id.clone(),
            account: expense.account,
            amount: expense.amount,
            at: expense.at,
            now,
            expires_at: expiry(now, RESERVATION_MEMORY),
        };
        match self.store.spending.reserve_spending(reservation).await? {
            Reserved::Yes => Ok(true),
            Reserved::NotNeeded => Ok(false),
            Reserved::Refused { cap, spent, set_aside } => Err(MeterError::SpendingCapReached(CapReached {
                cap,
                spent,
                set_aside,
                asked: expense.amount,
                resets_at: Month::of(expense.at).next().first_day().start(),
            })),
        }
    }
}
