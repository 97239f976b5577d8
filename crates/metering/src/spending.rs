//! The hard spending caps of accounts and keys per calendar month. The maximum cost of a request is reserved in the store in one atomic
//! step, so that spent plus reserved never exceeds a cap, even under races. Requests without a cap write nothing. The protocol
//! (`admitted_request`) decides when a reservation begins and ends.

use crate::error::{MeterError, SpendingCapDetails};
use chancery_domain::{AccountId, Clock, KeyId, Month, Nanos, RequestId, UnixMillis};
use chancery_store::{CapStatus, MeteringStore, ReserveOutcome, SpendingReservation};
use std::sync::Arc;

pub(crate) struct SpendingCaps {
    store: Arc<MeteringStore>,
    clock: Arc<dyn Clock>,
}

/// A request and its maximum cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge<'a> {
    pub(crate) request_id: &'a RequestId,
    pub(crate) account: AccountId,
    pub(crate) key: KeyId,
    pub(crate) amount: Nanos,
    /// When the request was admitted.
    pub(crate) at: UnixMillis,
}

impl SpendingCaps {
    pub(crate) fn new(store: Arc<MeteringStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Returns whether something was reserved. Nothing is if there is no cap any more.
    pub(crate) async fn reserve(&self, charge: Charge<'_>) -> Result<bool, MeterError> {
        let reservation = SpendingReservation {
            request_id: charge.request_id.clone(),
            account: charge.account,
            key: charge.key,
            amount: charge.amount,
            at: charge.at,
            now: self.clock.now(),
        };
        match self.store.spending.reserve_spending(reservation).await? {
            ReserveOutcome::Reserved => Ok(true),
            ReserveOutcome::NoCap => Ok(false),
            ReserveOutcome::Rejected(CapStatus { scope, cap, spent, reserved }) => {
                Err(MeterError::SpendingCapReached(SpendingCapDetails {
                    scope,
                    cap,
                    spent,
                    reserved,
                    asked: charge.amount,
                    resets_at: Month::containing(charge.at).next().first_day().start(),
                }))
            }
        }
    }
}
