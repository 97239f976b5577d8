//! Decides which errors end the attempts to settle. Treating a temporary error as permanent loses billable usage. So only
//! provably permanent errors end them; every other error is retried, including variants added later.

use crate::MeterError;
use chancery_store::{DbError, LedgerError};

/// Whether the same settlement can never be recorded.
pub(crate) fn is_permanent(error: &MeterError) -> bool {
    match error {
        // The row itself violates a rule of the ledger, and retrying does not change the row.
        MeterError::Ledger(
            LedgerError::RequestAlreadyBilled(_)
            | LedgerError::RowRejected { .. }
            | LedgerError::MonthInvoiced { .. },
        )
        | MeterError::Database(DbError::NulCharacter { .. } | DbError::SumTooLarge)
        | MeterError::Money(_) => true,
        // Other processes reclaimed the reservations of this one and have used them since, so the decision is final.
        MeterError::SpendingCapReached(_) | MeterError::IdempotencyInFlight => true,
        _ => false,
    }
}

/// What becomes of delivered text whose usage can never be recorded, for the log.
pub(crate) fn unbilled_reason(error: &MeterError) -> &'static str {
    match is_month_invoiced(error) {
        true => {
            "usage settled after its month was invoiced, not billed; \
             credit that invoice in full and reissue it to bill later usage"
        }
        false => "usage lost, could not be recorded",
    }
}

/// Whether the row's month was already invoiced.
pub(super) fn is_month_invoiced(error: &MeterError) -> bool {
    matches!(error, MeterError::Ledger(LedgerError::MonthInvoiced { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpendingCapDetails;
    use crate::rate_limits::LimiterUnavailable;
    use chancery_domain::{AccountId, LimitScope, MoneyError, Month, Nanos, RequestId, UnixMillis};
    use chancery_store::AccountError;

    fn request() -> RequestId {
        RequestId::from_stored("req_1".to_owned())
    }

    fn why() -> String {
        "why".to_owned()
    }

    #[test]
    fn only_permanent_errors_stop_settlement_retries() {
        let cap = SpendingCapDetails {
            scope: LimitScope::Account,
            cap: Nanos(1),
            spent: Nanos(1),
            reserved: Nanos(0),
            asked: Nanos(1),
            resets_at: UnixMillis(0),
        };
        let permanent = [
            LedgerError::RequestAlreadyBilled(request()).into(),
            LedgerError::RowRejected { request: request(), why: why() }.into(),
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
            LedgerError::ReservationLost(request()).into(),
            LedgerError::ClaimLost(request()).into(),
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
    fn invoiced_month_error_is_permanent_and_distinguishable() {
        let month = Month::containing(UnixMillis(0));
        let error = MeterError::Ledger(LedgerError::MonthInvoiced { request: request(), month });
        assert!(is_permanent(&error) && is_month_invoiced(&error));
    }
}
