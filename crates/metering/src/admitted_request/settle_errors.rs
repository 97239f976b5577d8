//! Which errors end the attempts to settle. Tokens that were used are lost where an error is taken for permanent that
//! is not, so only those are that are proved to be; every other error, one that is added later included, is retried.

use crate::MeterError;
use chancery_store::{DbError, LedgerError};

/// Whether the same settlement can never be recorded.
pub(super) fn is_permanent(error: &MeterError) -> bool {
    match error {
        // The row itself breaks a rule of the ledger, whose rows never change.
        MeterError::Ledger(
            LedgerError::RequestAlreadyBilled(_)
            | LedgerError::LedgerRefused { .. }
            | LedgerError::MonthInvoiced { .. },
        )
        | MeterError::Database(DbError::NulCharacter { .. } | DbError::SumTooLarge)
        | MeterError::Money(_) => true,
        // Others took this process for dead, and what they took is used up by now: this is decided against it.
        MeterError::SpendingCapReached(_) | MeterError::IdempotencyInFlight => true,
        _ => false,
    }
}

/// Whether the row came too late for its month.
pub(super) fn is_month_invoiced(error: &MeterError) -> bool {
    matches!(error, MeterError::Ledger(LedgerError::MonthInvoiced { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CapReached;
    use crate::rate_limits::LimiterUnavailable;
    use chancery_domain::{AccountId, MoneyError, Month, Nanos, RequestId, UnixMillis};
    use chancery_store::AccountError;

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
            LedgerError::RequestAlreadyBilled(request()).into(),
            LedgerError::LedgerRefused { request: request(), why: why() }.into(),
            DbError::NulCharacter { what: "the model's name" }.into(),
            DbError::SumTooLarge.into(),
            MeterError::Money(MoneyError::Overflow),
            MeterError::SpendingCapReached(cap),
            MeterError::IdempotencyInFlight,
        ];
        let retried = [
            DbError::Unavailable(why()).into(),
            DbError::DiskFull(why()).into(),
            DbError::ReadOnly(why()).into(),
            DbError::Corrupt { what: "a page", why: why() }.into(),
            LedgerError::ReservationGone(request()).into(),
            LedgerError::ClaimGone(request()).into(),
            AccountError::NoSuchAccountId(AccountId(1)).into(),
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
        let error = MeterError::Ledger(LedgerError::MonthInvoiced { request: request(), month });
        assert!(is_permanent(&error) && is_month_invoiced(&error));
    }
}
