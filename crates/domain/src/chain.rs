//! The chains that each process makes of what it writes down for good: every row carries a hash over its content, its place
//! and the hash of the row before it. A row that is changed, removed, added or moved later no longer fits.

use crate::{UsageRow, WriterId};
use sha2::{Digest, Sha256};
use std::fmt;

/// SHA-256 of a row and everything before it in its chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHash(pub [u8; 32]);

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Where a chain ends: how many rows it has and the hash of the last one. The default is a chain without rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHead {
    pub rows: u64,
    pub hash: ChainHash,
}

/// What is kept in chains.
pub trait Chained {
    /// What tells these hashes from hashes of other things, and from those of a later layout.
    const LAYOUT: &'static [u8];

    /// All of the row, so that two different rows never give the same bytes: numbers with a fixed width, texts with
    /// their length before them.
    fn feed(&self, hasher: &mut ChainHasher);
}

/// Takes a row in.
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
    /// The chain's end once the row is added.
    pub fn followed_by(&self, writer: WriterId, row: &impl Chained) -> Self {
        Self { rows: self.rows + 1, hash: self.hash_of_next(writer, row) }
    }

    /// The hash of the row if it comes next.
    pub fn hash_of_next<R: Chained>(&self, writer: WriterId, row: &R) -> ChainHash {
        let mut hasher = ChainHasher(Sha256::new());
        hasher.bytes(R::LAYOUT);
        hasher.bytes(&writer.0.to_be_bytes());
        hasher.bytes(&self.rows.to_be_bytes());
        hasher.bytes(&self.hash.0);
        row.feed(&mut hasher);
        ChainHash(hasher.0.finalize().into())
    }
}

impl Chained for UsageRow {
    const LAYOUT: &'static [u8] = b"chancery ledger row 1";

    fn feed(&self, hasher: &mut ChainHasher) {
        let Self { request_id, account, key, model, input_tokens, output_tokens, prices, cost, at, ended } =
            self;
        hasher.text(request_id.as_str());
        hasher.bytes(&account.0.to_be_bytes());
        hasher.bytes(&key.0.to_be_bytes());
        hasher.text(model);
        hasher.bytes(&input_tokens.to_be_bytes());
        hasher.bytes(&output_tokens.to_be_bytes());
        hasher.bytes(&prices.input.nanos_per_token().to_be_bytes());
        hasher.bytes(&prices.output.nanos_per_token().to_be_bytes());
        hasher.bytes(&cost.0.to_be_bytes());
        hasher.bytes(&at.0.to_be_bytes());
        hasher.text(ended.as_str());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccountId, HowEnded, KeyId, Nanos, Prices, RequestId, TokenPrice, UnixMillis};
    use proptest::prelude::*;

    fn row() -> UsageRow {
        UsageRow {
            request_id: RequestId::from_stored("req_1".to_owned()),
            account: AccountId(2),
            key: KeyId(3),
            model: "m".to_owned(),
            input_tokens: 5,
            output_tokens: 6,
            prices: Prices {
                input: TokenPrice::from_nanos_per_token(100),
                output: TokenPrice::from_nanos_per_token(400),
            },
            cost: Nanos(2900),
            at: UnixMillis(1_794_744_000_000),
            ended: HowEnded::Complete,
        }
    }

    /// Hashes are kept for years: if this one changes, no ledger written before can be verified any more.
    #[test]
    fn the_hash_of_a_row_is_what_it_has_always_been() {
        let head = ChainHead::default().followed_by(WriterId(7), &row());
        assert_eq!(head.rows, 1);
        assert_eq!(head.hash.to_string(), "27ae8712a0a14c3dba92e8d53c96b11a58a62356c19a08e6ed824f7bceeec6c0");
    }

    #[test]
    fn every_field_the_place_the_writer_and_the_row_before_are_in_the_hash() {
        let row = row();
        let text = |text: &str| RequestId::from_stored(text.to_owned());
        let prices = |input, output| Prices {
            input: TokenPrice::from_nanos_per_token(input),
            output: TokenPrice::from_nanos_per_token(output),
        };
        let start = ChainHead::default();
        let others = [
            UsageRow { request_id: text("req_2"), ..row.clone() },
            UsageRow { account: AccountId(3), ..row.clone() },
            UsageRow { key: KeyId(2), ..row.clone() },
            UsageRow { model: "n".to_owned(), ..row.clone() },
            UsageRow { input_tokens: 6, ..row.clone() },
            UsageRow { output_tokens: 5, ..row.clone() },
            UsageRow { prices: prices(101, 400), ..row.clone() },
            UsageRow { prices: prices(100, 401), ..row.clone() },
            UsageRow { cost: Nanos(2901), ..row.clone() },
            UsageRow { at: UnixMillis(row.at.0 + 1), ..row.clone() },
            UsageRow { ended: HowEnded::Cancelled, ..row.clone() },
        ];
        let mut hashes: Vec<ChainHash> =
            others.iter().map(|other| start.hash_of_next(WriterId(7), other)).collect();
        hashes.push(start.hash_of_next(WriterId(7), &row));
        hashes.push(start.hash_of_next(WriterId(8), &row));
        hashes.push(ChainHead { rows: 1, ..start }.hash_of_next(WriterId(7), &row));
        hashes.push(ChainHead { hash: ChainHash([1; 32]), ..start }.hash_of_next(WriterId(7), &row));
        for (place, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..place].contains(hash), "hash {place} is that of another row");
        }
    }

    proptest! {
        #[test]
        fn text_that_moves_from_one_field_to_the_next_is_another_row(id in "[a-z]{1,8}", model in "[a-z]{0,8}", moved in "[a-z]{1,4}") {
            let with = |id: String, model: String| {
                let row = UsageRow { request_id: RequestId::from_stored(id), model, ..row() };
                ChainHead::default().hash_of_next(WriterId(7), &row)
            };
            prop_assert_ne!(with(format!("{id}{moved}"), model.clone()), with(id, format!("{moved}{model}")));
        }
    }
}
