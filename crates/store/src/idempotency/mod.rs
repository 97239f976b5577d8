//! Idempotency keys and the replies that are stored under them.

pub(crate) mod records;
pub(crate) mod types;
