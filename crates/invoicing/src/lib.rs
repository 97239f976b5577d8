//! Invoices as documents: PDF, CSV and JSON. Checking them against the ledger is up to `verify`.

mod csv;
mod json;
mod pdf;
pub mod text;

pub use csv::csv;
pub use json::{document_json, record_json};
pub use pdf::pdf;

#[cfg(test)]
mod samples;
