//! The upstream engine against servers that keep to nothing: each promise of `run.rs` and `pool.rs`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in what it shares with others too")]

mod counting;
mod faults;
mod pools;
mod set_up;
