//! Alerts on a real database, and messages to real receivers.

#![expect(clippy::unwrap_used, reason = "the whole binary is tests: what fails to unwrap fails the test")]

mod checker;
mod firm;
mod worker;
