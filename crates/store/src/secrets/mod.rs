//! Secrets that all nodes share.

pub(crate) mod shared;
