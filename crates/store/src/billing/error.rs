//! Errors of invoices. The texts are for logs; surfaces write their own.

use crate::DbError;
use crate::db::QueryError;
use chancery_domain::{AccountId, AccountName, CreditError, InvoiceNumber, Month};

#[derive(Debug, thiserror::Error)]
pub enum InvoiceError {
    #[error("there is no account number {0}")]
    NoSuchAccountId(AccountId),
    #[error("{month} can be invoiced from {from}; the month or some of its requests are still running", from = .month.invoiceable_from().to_iso())]
    MonthStillOpen { month: Month },
    #[error("account {account} has no usage in {month}; nothing to invoice")]
    NothingToBill { account: AccountName, month: Month },
    #[error("there is no invoice {0}")]
    NoSuchInvoice(InvoiceNumber),
    #[error("invoice {0} is void: it was credited in full")]
    InvoiceIsVoid(InvoiceNumber),
    #[error("invoice {number} was not credited: {why}")]
    CreditRejected { number: InvoiceNumber, why: CreditError },
    #[error("invoice {0} was credited concurrently; nothing was issued")]
    ConcurrentCredit(InvoiceNumber),
    #[error("invoice {number} could not be rendered: {why}; nothing was issued")]
    DocumentFailed { number: InvoiceNumber, why: String },
    #[error("the usage of {month} is too large to be exact; nothing was issued")]
    MonthTooLarge { month: Month },
    #[error("the total of these invoices is too large to be exact; filter by account or year")]
    InvoicesTooLarge,
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for InvoiceError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}
