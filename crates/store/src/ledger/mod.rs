//! The ledger: settled requests, their hash chains, the sums by day, and reports.

pub(crate) mod batch;
pub(crate) mod chains;
pub(crate) mod daily_usage;
pub(crate) mod error;
pub(crate) mod partitions;
pub(crate) mod postgres;
pub(crate) mod reports;
pub(crate) mod sqlite;
pub(crate) mod types;
pub(crate) mod usage;
pub(crate) mod writer;
