//! The end of a chain for those who do not read it as a `ChainHead` yet: `audit/`. Goes with its last user.

use crate::StoreError;
use crate::db::both::stored_row;
use chancery_domain::{ChainHash, ChainHead};

stored_row! {
    struct StoredHead {
        row_count: i64,
        head: Vec<u8>,
    }
}

impl StoredHead {
    pub(crate) fn into_chain_head(self) -> Result<ChainHead, StoreError> {
        let corrupt = |what, why: String| StoreError::Corrupt { what, why };
        let rows = u64::try_from(self.row_count)
            .map_err(|_| corrupt("a count", format!("{} is negative", self.row_count)))?;
        let hash = self.head.try_into().map(ChainHash).map_err(|bytes: Vec<u8>| {
            corrupt("a hash of the ledger's chain", format!("it has {} bytes instead of 32", bytes.len()))
        })?;
        Ok(ChainHead { rows, hash })
    }
}
