//! What can go wrong with invoices. The texts are for logs; surfaces choose their own words.

use crate::DbError;
use crate::db::Rejection;
use chancery_domain::{AccountId, AccountName, CreditError, InvoiceNumber, Month};

#[derive(Debug, thiserror::Error)]
pub enum InvoiceError {
    #[error("there is no account number {0}")]
    NoSuchAccountId(AccountId),
    #[error("{month} can be invoiced from {from} on: it is still running, or requests of it are still under way", from = .month.can_be_issued_from().to_iso())]
    MonthStillOpen { month: Month },
    #[error("the account {account} has used nothing in {month}, so there is nothing to invoice")]
    NothingToBill { account: AccountName, month: Month },
    #[error("there is no invoice {0}")]
    NoSuchInvoice(InvoiceNumber),
    #[error("invoice {0} is void: it was credited as a whole")]
    InvoiceIsVoid(InvoiceNumber),
    #[error("invoice {number} was not credited: {why}")]
    CreditRefused { number: InvoiceNumber, why: CreditError },
    #[error("another credit note was made for invoice {0} meanwhile, and nothing was issued")]
    CreditedMeanwhile(InvoiceNumber),
    #[error("the document of invoice {number} could not be made, and nothing was issued: {why}")]
    DocumentFailed { number: InvoiceNumber, why: String },
    #[error(
        "what was used in {month} comes to more than can be counted exactly, so no invoice can bill it; nothing was issued"
    )]
    MonthTooLarge { month: Month },
    #[error("these invoices come to more than can be counted exactly; ask for one account, or for one year")]
    InvoicesTooLarge,
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<sqlx::Error> for InvoiceError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl Rejection for InvoiceError {}
