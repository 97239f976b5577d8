//! The checkpointer on real databases.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in what it shares with others too")]

mod checkpointer;
mod databases;
