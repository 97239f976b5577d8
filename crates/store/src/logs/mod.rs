//! Merkle logs over the ledger and the audit log: which row is which leaf, the nodes of the trees, and signed checkpoints.

pub(crate) mod append;
pub(crate) mod reads;
pub(crate) mod types;
