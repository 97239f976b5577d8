//! Invoices as documents: the PDF that a firm sends, a CSV and JSON. Whether they are what the ledger says is `verify`'s.

mod csv;
mod json;
mod pdf;
pub mod words;

pub use csv::csv;
pub use json::{document_json, record_json};
pub use pdf::pdf;

#[cfg(test)]
mod samples;
