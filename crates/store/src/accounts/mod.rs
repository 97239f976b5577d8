//! Billing accounts and their keys: limits, spending, changes and their history.

pub(crate) mod activity;
pub(crate) mod changes;
pub(crate) mod error;
pub(crate) mod history;
pub(crate) mod key_changes;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod lookup;
pub(crate) mod overview;
pub(crate) mod spending;
pub(crate) mod spending_queue;
pub(crate) mod types;
