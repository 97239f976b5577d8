//! Errors of the ledger and its reports. The texts are for logs; surfaces write their own.

use crate::DbError;
use crate::db::QueryError;
use chancery_domain::{AccountId, Month, RequestId};

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("request {0} is already in the ledger with other values")]
    RequestAlreadyBilled(RequestId),
    /// The row violates a rule of the ledger; a retry does not help.
    #[error("the ledger rejected request {request}: {why}")]
    RowRejected { request: RequestId, why: String },
    /// A retry does not help unless the month's invoice is voided.
    #[error("the ledger rejected request {request}: {month} is already invoiced for its account")]
    MonthInvoiced { request: RequestId, month: Month },
    #[error("the spending reservation of request {0} no longer exists")]
    ReservationLost(RequestId),
    #[error("request {0} no longer holds its idempotency key")]
    ClaimLost(RequestId),
    #[error("there is no account number {0}")]
    NoSuchAccountId(AccountId),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for LedgerError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}
