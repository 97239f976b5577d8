//! The endpoints below `/v1`.

mod browsers;
mod generate;
mod idempotency;
mod keys;
mod models;
mod refusals;
mod spending_cap;
mod streaming;
mod tokens;
mod usage;
