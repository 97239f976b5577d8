//! Verification of real databases that were tampered with.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in what it shares with others too")]

mod databases;
mod ledger;
mod logs;
