//! Idempotency keys and the replies that are stored under them.

pub(crate) mod keys;
pub(crate) mod types;
