//! Recomputes what is recorded, from its own rows: ledger, limits, invoices and audit; and names what differs. A server
//! may go on writing meanwhile. Nothing here writes, and nothing here knows how findings are shown.

mod audit;
mod chain;
mod findings;
mod invoices;
mod ledger;
mod limits;

pub use audit::{AuditVerification, verify_audit};
pub use findings::Findings;
pub use invoices::{InvoiceVerification, verify_invoices};
pub use ledger::{LedgerVerification, verify_ledger};
pub use limits::{LimitVerification, verify_limits};

use chancery_domain::MoneyError;
use chancery_metering::LimiterUnavailable;
use chancery_store::DbError;

/// Why something could not be verified; what differs is no error.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Database(#[from] DbError),
    #[error(transparent)]
    Limiter(#[from] LimiterUnavailable),
    #[error(transparent)]
    Money(#[from] MoneyError),
}
