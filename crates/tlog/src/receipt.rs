//! Receipts: a usage row with the proof that a checkpoint's tree has it. The API writes them; anyone can verify one offline, with
//! a copy of the checkpoint and its public key.

use crate::{Checkpoint, CheckpointError, VerifierKeys, is_included};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chancery_domain::{
    AccountId, KeyId, LogName, Nanos, Prices, RequestId, StopReason, TokenPrice, TreeHash, UnixMillis,
    UsageRow, leaf_hash,
};

/// A receipt, as the API sends it.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Receipt {
    row: ReceiptRow,
    leaf_index: u64,
    tree_size: u64,
    proof: Vec<String>,
    checkpoint: String,
}

#[derive(Clone, Debug, serde::Deserialize)]
struct ReceiptRow {
    request_id: String,
    account_id: AccountId,
    key_id: KeyId,
    model: String,
    input_tokens: u32,
    cached_input_tokens: u32,
    output_tokens: u32,
    input_price_nanos: i64,
    cached_input_price_nanos: i64,
    output_price_nanos: i64,
    cost_nanos: i64,
    at_ms: i64,
    stop_reason: String,
}

/// What a receipt has proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvedRow {
    pub row: UsageRow,
    pub index: u64,
    pub checkpoint: Checkpoint,
}

#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    #[error("not a receipt: {0}")]
    Malformed(String),
    #[error("the checkpoint in the receipt: {0}")]
    Checkpoint(CheckpointError),
    #[error(
        "the receipt is for a checkpoint of {size} rows, which is not among the given ones; use the file of that day"
    )]
    OtherCheckpoint { size: u64 },
    #[error(
        "the receipt's `tree_size` is not that of its checkpoint: {stated} rows, and the checkpoint is signed for {signed}; get the receipt again"
    )]
    OtherSize { stated: u64, signed: u64 },
    #[error("the row is not in the checkpoint: the row or the proof was changed")]
    NotIncluded,
    #[error("the cost of the row is not its tokens times its prices")]
    WrongCost,
}

impl Receipt {
    pub fn parse(text: &str) -> Result<Self, ReceiptError> {
        serde_json::from_str(text).map_err(|error| ReceiptError::Malformed(error.to_string()))
    }

    /// `trusted` are checkpoints that the caller has kept: one of them must be the receipt's own.
    pub fn verify(&self, trusted: &[Checkpoint], keys: &VerifierKeys) -> Result<ProvedRow, ReceiptError> {
        let checkpoint = keys.open(&self.checkpoint).map_err(ReceiptError::Checkpoint)?;
        if checkpoint.log != LogName::Ledger || !trusted.contains(&checkpoint) {
            return Err(ReceiptError::OtherCheckpoint { size: checkpoint.size });
        }
        if self.tree_size != checkpoint.size {
            return Err(ReceiptError::OtherSize { stated: self.tree_size, signed: checkpoint.size });
        }
        let row = self.row.to_usage_row()?;
        let proof = self.proof.iter().map(|hash| hash_from_base64(hash)).collect::<Result<Vec<_>, _>>()?;
        let leaf = (self.leaf_index, leaf_hash(&row));
        if !is_included(&proof, (checkpoint.size, checkpoint.root), leaf) {
            return Err(ReceiptError::NotIncluded);
        }
        match row.recomputed_cost() {
            Ok(cost) if cost == row.cost => Ok(ProvedRow { row, index: self.leaf_index, checkpoint }),
            _ => Err(ReceiptError::WrongCost),
        }
    }
}

impl ReceiptRow {
    fn to_usage_row(&self) -> Result<UsageRow, ReceiptError> {
        let unknown = || ReceiptError::Malformed(format!("unknown stop reason {:?}", self.stop_reason));
        Ok(UsageRow {
            request_id: RequestId::from_stored(self.request_id.clone()),
            account: self.account_id,
            key: self.key_id,
            model: self.model.clone(),
            input_tokens: self.input_tokens,
            cached_input_tokens: self.cached_input_tokens,
            output_tokens: self.output_tokens,
            prices: Prices {
                input: TokenPrice::from_nanos_per_token(self.input_price_nanos),
                cached_input: TokenPrice::from_nanos_per_token(self.cached_input_price_nanos),
                output: TokenPrice::from_nanos_per_token(self.output_price_nanos),
            },
            cost: Nanos(self.cost_nanos),
            at: UnixMillis(self.at_ms),
            stop_reason: StopReason::from_stored(&self.stop_reason).ok_or_else(unknown)?,
        })
    }
}

/// As receipts have hashes.
pub fn hash_to_base64(hash: TreeHash) -> String {
    STANDARD.encode(hash.0)
}

fn hash_from_base64(text: &str) -> Result<TreeHash, ReceiptError> {
    let bytes = STANDARD.decode(text).map_err(|error| ReceiptError::Malformed(error.to_string()))?;
    let hash = bytes.try_into().map_err(|_| ReceiptError::Malformed("a hash has 32 bytes".to_owned()))?;
    Ok(TreeHash(hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompactTree, SigningKey};
    use chancery_domain::SeededRandomness;

    fn row() -> serde_json::Value {
        serde_json::json!({
            "request_id": "req_1", "account_id": 2, "key_id": 3, "model": "m", "input_tokens": 5,
            "cached_input_tokens": 2, "output_tokens": 6, "input_price_nanos": 100, "cached_input_price_nanos": 25,
            "output_price_nanos": 400, "cost_nanos": 2750, "at_ms": 1_794_744_000_000_i64, "stop_reason": "complete",
        })
    }

    /// A receipt for the second of two rows, with the checkpoint and the keys that verify it.
    fn receipt() -> (serde_json::Value, Checkpoint, VerifierKeys) {
        let key = SigningKey::generate("api.example.com", &SeededRandomness::new(1)).unwrap();
        let keys = VerifierKeys::parse(&key.verifier_key_lines().join("\n")).unwrap();
        let usage: ReceiptRow = serde_json::from_value(row()).unwrap();
        let (first, second) = (TreeHash([9; 32]), leaf_hash(&usage.to_usage_row().unwrap()));
        let mut tree = CompactTree::default();
        [first, second].iter().for_each(|leaf| tree.push(*leaf, &mut Vec::new()));
        let note = key.sign(LogName::Ledger, 2, tree.root()).unwrap();
        let receipt = serde_json::json!({
            "row": row(), "leaf_index": 1, "tree_size": 2, "proof": [hash_to_base64(first)], "checkpoint": note,
        });
        (receipt, Checkpoint { log: LogName::Ledger, size: 2, root: tree.root() }, keys)
    }

    fn verify(
        receipt: &serde_json::Value,
        trusted: &[Checkpoint],
        keys: &VerifierKeys,
    ) -> Result<ProvedRow, ReceiptError> {
        Receipt::parse(&receipt.to_string()).unwrap().verify(trusted, keys)
    }

    #[test]
    fn receipt_verifies_with_its_checkpoint_and_key() {
        let (receipt, checkpoint, keys) = receipt();
        let proved = verify(&receipt, &[checkpoint], &keys).unwrap();
        assert_eq!((proved.index, proved.checkpoint, proved.row.cost), (1, checkpoint, Nanos(2750)));
    }

    #[test]
    fn changed_field_of_the_row_is_not_included() {
        let (receipt, checkpoint, keys) = receipt();
        for (field, value) in row().as_object().unwrap() {
            let mut changed = receipt.clone();
            changed["row"][field] = match value {
                serde_json::Value::String(_) if field == "stop_reason" => "cancelled".into(),
                serde_json::Value::String(text) => format!("{text}x").into(),
                number => (number.as_i64().unwrap() + 1).into(),
            };
            let outcome = verify(&changed, &[checkpoint], &keys);
            assert!(matches!(outcome, Err(ReceiptError::NotIncluded)), "{field}: {outcome:?}");
        }
        let mut moved = receipt;
        moved["leaf_index"] = 0.into();
        assert!(matches!(verify(&moved, &[checkpoint], &keys), Err(ReceiptError::NotIncluded)));
    }

    #[test]
    fn stated_size_must_be_the_signed_one() {
        let (mut receipt, checkpoint, keys) = receipt();
        for size in [0, 1, 3, u64::MAX] {
            receipt["tree_size"] = size.into();
            let outcome = verify(&receipt, &[checkpoint], &keys);
            let Err(ReceiptError::OtherSize { stated, signed }) = outcome else { panic!("{outcome:?}") };
            assert_eq!((stated, signed), (size, 2));
        }
        receipt.as_object_mut().unwrap().remove("tree_size");
        assert!(matches!(Receipt::parse(&receipt.to_string()), Err(ReceiptError::Malformed(_))));
    }

    #[test]
    fn receipt_needs_a_trusted_checkpoint_and_a_known_key() {
        let (receipt, checkpoint, keys) = receipt();
        let other = Checkpoint { root: TreeHash([1; 32]), ..checkpoint };
        for trusted in [&[][..], &[other][..]] {
            let outcome = verify(&receipt, trusted, &keys);
            assert!(matches!(outcome, Err(ReceiptError::OtherCheckpoint { size: 2 })), "{outcome:?}");
        }
        let outcome = verify(&receipt, &[checkpoint], &VerifierKeys::default());
        assert!(matches!(outcome, Err(ReceiptError::Checkpoint(CheckpointError::UnknownKey))), "{outcome:?}");
        assert!(matches!(Receipt::parse("{}"), Err(ReceiptError::Malformed(_))));
    }
}
