//! Hash chains of append-only rows, one per process. Each row carries a hash over its content, its position and the hash of the
//! previous row. A row that is changed, removed, inserted or moved later no longer matches. Also the names and tree hashes of the
//! Merkle logs over them; trees and proofs are `tlog`'s.

use crate::{UsageRow, WriterId};
use sha2::{Digest, Sha256};
use std::fmt;

closed_enum! {
    /// An append-only table that has a Merkle log.
    pub enum LogName {
        Ledger = "ledger",
        Audit = "audit",
    }
    error UnknownLog = "the log must be `ledger` or `audit`";
}

/// SHA-256 of a leaf or of a subtree, as RFC 6962 defines both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeHash(pub [u8; 32]);

/// SHA-256 of a row and everything before it in its chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHash(pub [u8; 32]);

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The end of a chain: its number of rows and the hash of the last one. The default is an empty chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHead {
    pub rows: u64,
    pub hash: ChainHash,
}

/// A row that can be part of a hash chain.
pub trait ChainRow {
    /// Domain separation: distinguishes these hashes from those of other data and of later layouts.
    const DOMAIN_TAG: &'static [u8];

    /// Feeds the whole row, so that two different rows never produce the same bytes: fixed-width numbers, length-prefixed text.
    fn update_hash(&self, hasher: &mut ChainHasher);
}

/// Hashes the fields of one row.
pub struct ChainHasher(Sha256);

impl ChainHasher {
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn text(&mut self, text: &str) {
        self.bytes(&(text.len() as u64).to_be_bytes());
        self.bytes(text.as_bytes());
    }
}

impl ChainHead {
    /// The chain head after appending the row.
    pub fn with_row(&self, writer: WriterId, row: &impl ChainRow) -> Self {
        Self { rows: self.rows + 1, hash: self.next_hash(writer, row) }
    }

    /// The hash of the row if it is appended next.
    pub fn next_hash<R: ChainRow>(&self, writer: WriterId, row: &R) -> ChainHash {
        let mut hasher = ChainHasher(Sha256::new());
        hasher.bytes(R::DOMAIN_TAG);
        hasher.bytes(&writer.0.to_be_bytes());
        hasher.bytes(&self.rows.to_be_bytes());
        hasher.bytes(&self.hash.0);
        row.update_hash(&mut hasher);
        ChainHash(hasher.0.finalize().into())
    }
}

/// The hash of the row as a leaf of its Merkle log: RFC 6962's, over the domain tag and the row. It has neither the row's writer
/// nor its position, so that anyone with the row alone can compute it.
pub fn leaf_hash<R: ChainRow>(row: &R) -> TreeHash {
    let mut hasher = ChainHasher(Sha256::new());
    hasher.bytes(&[0]);
    hasher.bytes(R::DOMAIN_TAG);
    row.update_hash(&mut hasher);
    TreeHash(hasher.0.finalize().into())
}

impl ChainRow for UsageRow {
    const DOMAIN_TAG: &'static [u8] = b"chancery ledger row 2";

    fn update_hash(&self, hasher: &mut ChainHasher) {
        let Self {
            request_id,
            account,
            key,
            model,
            input_tokens,
            cached_input_tokens,
            output_tokens,
            prices,
            cost,
            at,
            stop_reason,
        } = self;
        hasher.text(request_id.as_str());
        hasher.bytes(&account.0.to_be_bytes());
        hasher.bytes(&key.0.to_be_bytes());
        hasher.text(model);
        hasher.bytes(&input_tokens.to_be_bytes());
        hasher.bytes(&cached_input_tokens.to_be_bytes());
        hasher.bytes(&output_tokens.to_be_bytes());
        hasher.bytes(&prices.input.nanos_per_token().to_be_bytes());
        hasher.bytes(&prices.cached_input.nanos_per_token().to_be_bytes());
        hasher.bytes(&prices.output.nanos_per_token().to_be_bytes());
        hasher.bytes(&cost.0.to_be_bytes());
        hasher.bytes(&at.0.to_be_bytes());
        hasher.text(stop_reason.as_str());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccountId, KeyId, Nanos, Prices, RequestId, StopReason, TokenPrice, UnixMillis};
    use proptest::prelude::*;

    fn row() -> UsageRow {
        UsageRow {
            request_id: RequestId::from_stored("req_1".to_owned()),
            account: AccountId(2),
            key: KeyId(3),
            model: "m".to_owned(),
            input_tokens: 5,
            cached_input_tokens: 2,
            output_tokens: 6,
            prices: Prices {
                input: TokenPrice::from_nanos_per_token(100),
                cached_input: TokenPrice::from_nanos_per_token(25),
                output: TokenPrice::from_nanos_per_token(400),
            },
            cost: Nanos(2750),
            at: UnixMillis(1_794_744_000_000),
            stop_reason: StopReason::Complete,
        }
    }

    /// Hashes are stored for years: if this one changes, existing ledgers can no longer be verified.
    #[test]
    fn usage_row_hash_is_stable() {
        let head = ChainHead::default().with_row(WriterId(7), &row());
        assert_eq!(head.rows, 1);
        assert_eq!(head.hash.to_string(), "b44d006defa9e5b8aff3a419d163bf6a24a8058fbf78af567acf4b8c0fad260b");
    }

    /// Receipts are verified years later, by other programs too.
    #[test]
    fn leaf_hash_covers_the_documented_bytes_of_the_row() {
        let mut bytes = b"\0chancery ledger row 2".to_vec();
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        };
        text(&mut bytes, "req_1");
        [2_i64, 3].iter().for_each(|id| bytes.extend(id.to_be_bytes()));
        text(&mut bytes, "m");
        [5_u32, 2, 6].iter().for_each(|tokens| bytes.extend(tokens.to_be_bytes()));
        [100_i64, 25, 400, 2750, 1_794_744_000_000]
            .iter()
            .for_each(|number| bytes.extend(number.to_be_bytes()));
        text(&mut bytes, "complete");
        let expected: [u8; 32] = Sha256::digest(&bytes).into();
        assert_eq!(leaf_hash(&row()), TreeHash(expected));
    }

    #[test]
    fn row_hash_covers_fields_position_writer_and_previous_row() {
        let row = row();
        let text = |text: &str| RequestId::from_stored(text.to_owned());
        let prices = |input, cached_input, output| Prices {
            input: TokenPrice::from_nanos_per_token(input),
            cached_input: TokenPrice::from_nanos_per_token(cached_input),
            output: TokenPrice::from_nanos_per_token(output),
        };
        let start = ChainHead::default();
        let others = [
            UsageRow { request_id: text("req_2"), ..row.clone() },
            UsageRow { account: AccountId(3), ..row.clone() },
            UsageRow { key: KeyId(2), ..row.clone() },
            UsageRow { model: "n".to_owned(), ..row.clone() },
            UsageRow { input_tokens: 6, ..row.clone() },
            UsageRow { cached_input_tokens: 1, ..row.clone() },
            UsageRow { output_tokens: 5, ..row.clone() },
            UsageRow { prices: prices(101, 25, 400), ..row.clone() },
            UsageRow { prices: prices(100, 24, 400), ..row.clone() },
            UsageRow { prices: prices(100, 25, 401), ..row.clone() },
            UsageRow { cost: Nanos(2751), ..row.clone() },
            UsageRow { at: UnixMillis(row.at.0 + 1), ..row.clone() },
            UsageRow { stop_reason: StopReason::Cancelled, ..row.clone() },
        ];
        let mut hashes: Vec<ChainHash> =
            others.iter().map(|other| start.next_hash(WriterId(7), other)).collect();
        hashes.push(start.next_hash(WriterId(7), &row));
        hashes.push(start.next_hash(WriterId(8), &row));
        hashes.push(ChainHead { rows: 1, ..start }.next_hash(WriterId(7), &row));
        hashes.push(ChainHead { hash: ChainHash([1; 32]), ..start }.next_hash(WriterId(7), &row));
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "hash {index} is that of another row");
        }
    }

    proptest! {
        #[test]
        fn hash_separates_adjacent_text_fields(id in "[a-z]{1,8}", model in "[a-z]{0,8}", moved in "[a-z]{1,4}") {
            let with = |id: String, model: String| {
                let row = UsageRow { request_id: RequestId::from_stored(id), model, ..row() };
                ChainHead::default().next_hash(WriterId(7), &row)
            };
            prop_assert_ne!(with(format!("{id}{moved}"), model.clone()), with(id, format!("{moved}{model}")));
        }
    }
}
