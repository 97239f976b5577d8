//! Invoices as JSON.

use chancery_domain::Invoice;
use chancery_store::InvoiceRecord;
use serde_json::{Value, json};

/// What is on the document.
pub fn document_json(invoice: &Invoice) -> Value {
    json!({ "number": invoice.number })
}

/// The document with what became of it.
pub fn record_json(record: &InvoiceRecord) -> Value {
    document_json(&record.invoice)
}
