//! Invoices as documents: the PDF that a firm sends, a CSV and JSON; and whether what was issued is what the ledger says.

mod csv;
mod json;
mod pdf;
mod verification;
mod words;

pub use csv::csv;
pub use json::{document_json, record_json};
pub use pdf::pdf;
pub use verification::{InvoiceVerification, verify_invoices};

#[cfg(test)]
mod samples;
