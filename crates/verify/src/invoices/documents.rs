//! Reads one invoice or credit note again, and names it in findings.

use chancery_domain::{Invoice, InvoiceKind, InvoiceNumber};
use chancery_store::{DbError, InvoiceRecord, VerifyStore};

/// Reads the current state of one document.
pub(super) async fn read(
    store: &VerifyStore,
    number: InvoiceNumber,
) -> Result<Option<InvoiceRecord>, DbError> {
    let before = InvoiceNumber { serial: number.serial.saturating_sub(1), ..number };
    let page = store.issued_invoices.issued_invoices(Some(before), 1).await?;
    Ok(page.into_iter().next().filter(|record| record.invoice.number == number))
}

pub(super) fn missing_finding(number: InvoiceNumber) -> Vec<String> {
    vec![format!("invoice {number}: disappeared during verification")]
}

pub(super) fn name(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("invoice {}", invoice.number),
        InvoiceKind::CreditNote { .. } => format!("credit note {}", invoice.number),
    }
}
