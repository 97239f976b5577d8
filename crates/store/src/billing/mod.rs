//! Invoices and credit notes.

pub(crate) mod error;
pub(crate) mod invoices;
pub(crate) mod issue;
pub(crate) mod list;
pub(crate) mod months;
pub(crate) mod rows;
pub(crate) mod types;
