//! Which errors end the attempts to settle. Tokens that were used are lost where an error is taken for permanent that
//! is not, so only those are that are proved to be; every other error, one that is added later included, is retried.

use crate::MeterError;
use chancery_store::StoreError;

/// Whether the same settlement can never be recorded.
pub(super) fn is_permanent(error: &MeterError) -> bool {
    match error {
        // The row itself breaks a rule of the ledger, whose rows never change.
        MeterError::Store(
            StoreError::RequestAlreadyBilled(_)
            | StoreError::LedgerRefused { .. }
            | StoreError::NulCharacter { .. }
            | StoreError::SumTooLarge
            | StoreError::MonthInvoiced { .. },
        )
        | MeterError::Money(_) => true,
        // Others took this process for dead, and what they took is used up by now: this is decided against it.
        MeterError::SpendingCapReached(_) | MeterError::IdempotencyInFlight => true,
        _ => false,
    }
}

/// Whether the row came too late for its month.
pub(super) fn is_month_invoiced(error: &MeterError) -> bool {
    matches!(error, MeterError::Store(StoreError::MonthInvoiced { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CapReached;
    use crate::rate_limits::LimiterUnavailable;
    use chancery_domain::{AccountId, MoneyError, Month, Nanos, RequestId, UnixMillis};
    use std::path::PathBuf;

    fn request() -> RequestId {
        RequestId::from_stored("req_1".to_owned())
    }

    fn why() -> String {
        "why".to_owned()
    }

    #[test]
    fn only_errors_that_are_proved_permanent_end_the_attempts() {
        let cap = CapReached {
            cap: Nanos(1),
            spent: Nanos(1),
            set_aside: Nanos(0),
            asked: Nanos(1),
            resets_at: UnixMillis(0),
        };
        let permanent = [
            StoreError::RequestAlreadyBilled(request()).into(),
            StoreError::LedgerRefused { request: request(), why: why() }.into(),
            StoreError::NulCharacter { what: "the model's name" }.into(),
            StoreError::SumTooLarge.into(),
            MeterError::Money(MoneyError::Overflow),
            MeterError::SpendingCapReached(cap),
            MeterError::IdempotencyInFlight,
        ];
        let retried = [
            StoreError::Unavailable(why()).into(),
            StoreError::DiskFull(why()).into(),
            StoreError::ReadOnly(why()).into(),
            StoreError::Corrupt { what: "a page", why: why() }.into(),
            StoreError::ReservationGone(request()).into(),
            StoreError::ClaimGone(request()).into(),
            StoreError::NoSuchAccountId(AccountId(1)).into(),
            StoreError::SchemaMismatch { why: why() }.into(),
            StoreError::CannotOpen { file: PathBuf::new(), why: why() }.into(),
            StoreError::ServedByAnother.into(),
            MeterError::Limiter(LimiterUnavailable(why())),
            MeterError::Internal(why()),
            MeterError::ShuttingDown,
        ];
        for error in permanent {
            assert!(is_permanent(&error), "{error}");
            assert!(!is_month_invoiced(&error), "{error}");
        }
        for error in retried {
            assert!(!is_permanent(&error), "{error}");
            assert!(!is_month_invoiced(&error), "{error}");
        }
    }

    #[test]
    fn a_row_of_an_invoiced_month_is_permanent_and_told_apart() {
        let month = Month::of(UnixMillis(0));
        let error = MeterError::Store(StoreError::MonthInvoiced { request: request(), month });
        assert!(is_permanent(&error) && is_month_invoiced(&error));
    }
}
