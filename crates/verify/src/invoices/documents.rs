//! One invoice or credit note: reading it again, and what it is called in findings.

use chancery_domain::{Invoice, InvoiceKind, InvoiceNumber};
use chancery_store::{DbError, InvoiceRecord, VerifyStore};

/// One document as it is now.
pub(super) async fn read(
    store: &VerifyStore,
    number: InvoiceNumber,
) -> Result<Option<InvoiceRecord>, DbError> {
    let before = InvoiceNumber { serial: number.serial.saturating_sub(1), ..number };
    let page = store.issued_invoices.issued_invoices(Some(before), 1).await?;
    Ok(page.into_iter().next().filter(|record| record.invoice.number == number))
}

pub(super) fn gone(number: InvoiceNumber) -> Vec<String> {
    vec![format!("invoice {number}: it was there, and is gone")]
}

pub(super) fn name(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("invoice {}", invoice.number),
        InvoiceKind::CreditNote { .. } => format!("credit note {}", invoice.number),
    }
}
