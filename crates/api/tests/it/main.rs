//! Integration tests over real TCP on a real database, with the real engine and model or a scripted engine, in one
//! process. They cover what cannot be triggered in the finished binary.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in what it shares with others too")]

mod account_limits;
mod body_errors;
mod engine_failure;
mod key_limits;
mod logprobs;
mod models;
mod openai_streams;
mod streaming;
mod test_server;
mod unknown_keys;
