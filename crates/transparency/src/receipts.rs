//! Receipts of requests: the usage row, and the proof that the first checkpoint that covers it has it. So the receipt of a request
//! is always the same.

use crate::error::LogError;
use crate::hashes::prove_inclusion;
use chancery_domain::{AccountId, LogName, RequestId, TreeHash, UsageRow, leaf_hash};
use chancery_store::LogReader;
use chancery_tlog::{Checkpoint, is_included};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiptOutcome {
    /// The account has no such request.
    NotFound,
    /// No checkpoint covers the row yet.
    NotYetLogged,
    Found(Box<FoundReceipt>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundReceipt {
    pub row: UsageRow,
    pub index: u64,
    /// Rows of the checkpoint.
    pub size: u64,
    pub proof: Vec<TreeHash>,
    /// The signed checkpoint.
    pub checkpoint: String,
}

pub async fn find_receipt(
    reader: &LogReader,
    account: AccountId,
    request: &RequestId,
) -> Result<ReceiptOutcome, LogError> {
    const LOG: LogName = LogName::Ledger;
    let usage = reader.logged_usage(request).await?.filter(|usage| usage.row.account == account);
    let Some(usage) = usage else { return Ok(ReceiptOutcome::NotFound) };
    let Some(index) = usage.index else { return Ok(ReceiptOutcome::NotYetLogged) };
    let stored = reader.checkpoints_after(LOG, index, 1).await?;
    let Some(stored) = stored.into_iter().next() else { return Ok(ReceiptOutcome::NotYetLogged) };
    let size = stored.size;
    let checkpoint = Checkpoint::parse_unverified(&stored.note);
    let Checkpoint { root, .. } =
        checkpoint.map_err(|error| LogError::Checkpoint { log: LOG, size, error })?;
    let proof = prove_inclusion(reader, LOG, size, index).await?;
    // A row that was changed since does not get a receipt that nobody could verify.
    if !is_included(&proof, (size, root), (index, leaf_hash(&usage.row))) {
        return Err(LogError::Inconsistent { log: LOG, size });
    }
    let found = FoundReceipt { row: usage.row, index, size, proof, checkpoint: stored.note };
    Ok(ReceiptOutcome::Found(Box::new(found)))
}
