//! The API over real TCP on a real database, with the real engine and the real model or one that plays a script, in one
//! process: for what cannot be made to happen in the finished binary.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in what it shares with others too")]

mod body_errors;
mod engine_failure;
mod openai_streams;
mod served;
mod streaming;
