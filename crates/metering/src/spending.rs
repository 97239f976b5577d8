//! The hard cap on what an account spends in a calendar month.
//!
//! 1. **Set aside.** At admission the most that the request can cost (its exact input, and as many output tokens as it may
//!    have) is set aside in the store, in one step that many can race to: what is spent and set aside never passes the
//!    cap. Where it does not fit, the request is refused before any work. Accounts without a cap write nothing.
//! 2. **Stay alive.** While the request runs, this process says every few seconds that it lives (`lease`). What a dead
//!    process had set aside no longer counts.
//! 3. **Settle or give back.** The ledger's row and the end of the reservation are one transaction. A request that bills
//!    nothing gives back what it had set aside.
//!
//! A process that was cut off for so long that others took it for dead finds its reservation gone when it settles. It then
//! sets aside the true cost anew; if that no longer fits, the request is refused like any other and nothing is billed.

use crate::MeterError;
use crate::limits::RESERVATION_MEMORY;
use chancery_domain::{AccountId, Clock, Month, Nanos, RequestId, UnixMillis};
use chancery_store::{Reserved, SpendingReservation, Store};
use std::sync::Arc;

/// Why a request was refused by its account's cap, and until when the same may happen again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapReached {
    pub cap: Nanos,
    pub spent: Nanos,
    /// For requests that are under way.
    pub set_aside: Nanos,
    /// The most that this request may cost.
    pub asked: Nanos,
    /// When the next month begins.
    pub resets_at: UnixMillis,
}

pub(crate) struct SpendingCaps {
    store: Arc<dyn Store>,
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
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Whether something was set aside: where the account has no cap any more, nothing is.
    pub(crate) async fn set_aside(&self, expense: Expense<'_>) -> Result<bool, MeterError> {
        let now = self.clock.now();
        let reservation = SpendingReservation {
            request_id: expense.request_id.clone(),
            account: expense.account,
            amount: expense.amount,
            at: expense.at,
            now,
            expires_at: UnixMillis(now.0 + RESERVATION_MEMORY.as_millis() as i64),
        };
        match self.store.reserve_spending(reservation).await? {
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

    /// Where the store cannot be reached, the reservation runs out by itself.
    pub(crate) async fn give_back(&self, request_id: &RequestId) {
        if let Err(error) = self.store.release_spending(request_id).await {
            tracing::warn!(%request_id, %error, "what a request had set aside of a spending cap is given back only when it runs out");
        }
    }
}
