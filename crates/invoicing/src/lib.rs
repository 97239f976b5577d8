//! Invoices as documents: PDF, CSV and JSON; letters as PDF, which share the invoices' letterhead. Checking them against the ledger is up to `verify`.

mod csv;
mod json;
mod pdf;
pub mod text;

pub use csv::csv;
pub use json::{document_json, record_json};
pub use pdf::{
    LetterDocument, PdfFonts, UnprintableText, letter_pdf, pdf, printable_pdf, unprintable_letter_text,
    unprintable_text,
};

#[cfg(test)]
mod samples;
