//! Makes changes to the ledger and the audit log evident, even those of someone who can write to the database:
//!
//! 1. The checkpointer appends the rows that were committed since its last run to the table's Merkle log. Each minute, one node
//!    does it; at shutdown, each does.
//! 2. It signs the size and the root of the tree with a key that is not in the database, and writes this checkpoint to the
//!    database, for receipts and for the other nodes, and to `DATA/checkpoints/`.
//!    Optionally the node that signed it also sends it to syslog and to a webhook.
//! 3. Every node copies checkpoints that others have signed to its own folder.
//! 4. Before it signs or copies, it checks that the tree still begins with the rows of the last checkpoint in its folder. If it
//!    does not, nothing more is signed: rows were changed or removed.
//!
//! `verify` recomputes the trees from all rows and compares them with the checkpoints.

mod checkpointer;
mod destinations;
mod error;
mod folder;
mod hashes;
mod key_file;
mod receipts;
mod syslog;

pub use checkpointer::{CHECKPOINT_INTERVAL, Checkpointer};
pub use destinations::Destinations;
pub use error::LogError;
pub use folder::{
    CHECKPOINT_FOLDER, CheckpointFolder, FiledCheckpoint, FiledCheckpoints, checkpoints_know_rows,
};
pub use hashes::{first_missing, prove_inclusion, read_tree};
pub use key_file::{KEY_FILE, KeyFileError, PUBLIC_KEY_FILE, load_or_create_key, load_verifier_keys};
pub use receipts::{FoundReceipt, ReceiptOutcome, find_receipt};
pub use syslog::{SyslogAddress, SyslogAddressError};
