//! Recomputes ledger, limits, invoices, audit log and Merkle logs from their own rows, and reports differences. A server may
//! keep writing meanwhile. Nothing here writes, and nothing here knows how findings are displayed.

mod audit;
mod chain;
mod findings;
mod invoices;
mod ledger;
mod limits;
mod logs;

pub use audit::{AuditVerification, verify_audit};
pub use findings::Findings;
pub use invoices::{InvoiceVerification, verify_invoices};
pub use ledger::{LedgerVerification, verify_ledger};
pub use limits::{LimitVerification, verify_limits};
pub use logs::{LogVerification, verify_log};

use chancery_domain::MoneyError;
use chancery_metering::LimiterUnavailable;
use chancery_store::DbError;

/// Why verification could not run. Differences are findings, not errors.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Database(#[from] DbError),
    #[error(transparent)]
    Limiter(#[from] LimiterUnavailable),
    #[error(transparent)]
    Money(#[from] MoneyError),
}
