//! The endpoints below `/v1`.

mod browsers;
mod chat_completions;
mod generate;
mod idempotency;
mod keys;
mod models;
mod refusals;
mod responses;
mod spending_cap;
mod streaming;
mod tokens;
mod usage;
