//! Counted attempts.

pub(crate) mod attempts;
pub(crate) mod types;
