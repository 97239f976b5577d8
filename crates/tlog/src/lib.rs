//! Transparency logs: Merkle trees (RFC 6962), inclusion and consistency proofs, checkpoints signed with Ed25519 (C2SP
//! tlog-checkpoint), and receipts. Nothing here does I/O: callers read and write the hashes.

mod checkpoint;
mod keys;
mod notes;
mod proof;
mod receipt;
mod tree;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use keys::{KeyError, SigningKey, VerifierKeys};
pub use notes::{Notes, split_notes};
pub use proof::{HashRange, ProofError, ProofPlan, is_consistent, is_included, subtree_hash};
pub use receipt::{ProvedRow, Receipt, ReceiptError, hash_to_base64};
pub use tree::{CompactTree, TILE_WIDTH, TileNode};
