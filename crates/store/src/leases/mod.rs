//! Which processes are alive.

pub(crate) mod lease;
pub(crate) mod orphans;
