//! Invoices and credit notes, for partners: the list, each document, the months that can be issued, and changes to invoices. The
//! calculation is in `domain::Invoice`; nothing is calculated here.

pub(crate) mod credit;
mod credit_form;
pub(crate) mod document;
mod done;
pub(crate) mod draft;
mod history;
pub(crate) mod issue;
mod issue_check;
pub(crate) mod list;
pub(crate) mod list_csv;
mod list_query;
mod list_rows;
mod path_params;
pub(crate) mod payment;
mod payment_status;
mod sheet;
