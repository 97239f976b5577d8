//! `/accounts`, for partners: who pays, how much they may use, and the keys that bill them. Each change is one step of the store
//! with its decision and its line in the history; the page that it leads to says what was changed in that line's words.

pub(crate) mod account;
pub(crate) mod account_changes;
mod changed;
mod forms;
mod json;
pub(crate) mod key_changes;
mod key_created;
pub(crate) mod list;
mod view;
