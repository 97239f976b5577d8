//! The upstream engine against servers that violate the protocol: tests each guarantee of `run.rs` and `pool.rs`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in what it shares with others too")]

mod blame;
mod cache_salt;
mod counting;
mod endings;
mod faults;
mod fixtures;
mod logprobs;
mod pools;
mod reasoning;
mod repetition;
mod sampling_params;
mod server_counts;
mod stale_connections;
mod whole_replies;
