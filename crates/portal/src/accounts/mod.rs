//! `/accounts`, for partners: billing accounts, their limits, and their keys. Each change is one store step with its decision and
//! its history event; the page after a redirect shows that event's text.

pub(crate) mod account;
pub(crate) mod account_changes;
mod changed;
mod forms;
mod json;
pub(crate) mod key_changes;
mod key_created;
mod key_forms;
pub(crate) mod list;
mod list_query;
mod view;
