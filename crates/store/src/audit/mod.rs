//! The audit log: decisions in a hash chain, and the steps that write them.

pub(crate) mod chain;
pub(crate) mod changes;
pub(crate) mod log;
pub(crate) mod principal;
pub(crate) mod step;
pub(crate) mod types;
