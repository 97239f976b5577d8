//! The ledger: settled requests, their hash chains, the sums by day, and what is read from them.

pub(crate) mod batch;
pub(crate) mod chains;
pub(crate) mod day_sums;
pub(crate) mod error;
pub(crate) mod months;
pub(crate) mod postgres;
pub(crate) mod reports;
pub(crate) mod sqlite;
pub(crate) mod types;
pub(crate) mod usage;
pub(crate) mod write_gaps;
pub(crate) mod writer;
