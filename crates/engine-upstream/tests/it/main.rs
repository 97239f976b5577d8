//! The upstream engine against servers that violate the protocol: tests each guarantee of `run.rs` and `pool.rs`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in what it shares with others too")]

mod counting;
mod faults;
mod fixtures;
mod pools;
