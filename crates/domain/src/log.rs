//! Merkle logs: which there are, and the hashes of their trees. Trees and proofs are `tlog`'s.

use std::fmt;
use std::str::FromStr;

/// An append-only table that has a Merkle log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogName {
    Ledger,
    Audit,
}

impl LogName {
    pub const ALL: [Self; 2] = [Self::Ledger, Self::Audit];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Audit => "audit",
        }
    }
}

impl fmt::Display for LogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log must be `ledger` or `audit`")]
pub struct UnknownLog;

impl FromStr for LogName {
    type Err = UnknownLog;

    fn from_str(text: &str) -> Result<Self, UnknownLog> {
        Self::ALL.into_iter().find(|log| log.as_str() == text).ok_or(UnknownLog)
    }
}

/// SHA-256 of a leaf or of a subtree, as RFC 6962 defines both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeHash(pub [u8; 32]);
