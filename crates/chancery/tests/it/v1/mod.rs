//! The endpoints under `/v1`.

mod browsers;
mod chat_completions;
mod errors;
mod generate;
mod idempotency;
mod keys;
mod models;
mod receipts;
mod responses;
mod spending_cap;
mod streaming;
mod tokens;
mod usage;
