//! Invoices and credit notes, for partners: the list, each document as the sheet that was sent, months that can be issued, and
//! what is done with an invoice. How the figures come about is in `domain::Invoice`; nothing is reckoned here.

mod addressed;
pub(crate) mod credit;
mod credit_form;
pub(crate) mod document;
mod done;
pub(crate) mod draft;
mod history;
pub(crate) mod issue;
pub(crate) mod list;
pub(crate) mod list_csv;
mod list_query;
mod list_rows;
pub(crate) mod payment;
mod sheet;
mod standing;
