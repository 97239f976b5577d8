//! What can go wrong with the ledger and what is read from it. The texts are for logs; surfaces choose their own words.

use crate::DbError;
use crate::db::Rejection;
use chancery_domain::{AccountId, Month, RequestId};

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("request {0} is already in the ledger with other values")]
    RequestAlreadyBilled(RequestId),
    /// The row breaks one of the ledger's own rules; sending it again will not help.
    #[error("the ledger refused request {request}: {why}")]
    LedgerRefused { request: RequestId, why: String },
    /// Sending it again will not help, unless the month's invoice is voided.
    #[error(
        "the ledger rejected request {request}: {month} is invoiced for its account, and nothing is added to it any more"
    )]
    MonthInvoiced { request: RequestId, month: Month },
    #[error("what request {0} had set aside of its account's spending cap is gone")]
    ReservationGone(RequestId),
    #[error("the idempotency key that request {0} had claimed is no longer its own")]
    ClaimGone(RequestId),
    #[error("there is no account number {0}")]
    NoSuchAccountId(AccountId),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<sqlx::Error> for LedgerError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl Rejection for LedgerError {}
