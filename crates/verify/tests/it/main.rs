//! Verification on real databases that somebody has changed behind Chancery's back.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in what it shares with others too")]

mod databases;
mod ledger;
