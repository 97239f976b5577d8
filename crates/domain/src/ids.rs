//! Typed identifiers, so that an account's number can never be passed where a key's is meant.

use crate::{Randomness, UnixMillis};
use std::fmt;

macro_rules! numeric_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

numeric_id!(
    /// A billing account.
    AccountId
);
numeric_id!(
    /// An API key, as the store numbers it; the public name of a key is its prefix.
    KeyId
);

/// Names one request everywhere: reply, header, log line and ledger row. It starts with the time, so that rows
/// written together lie together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// 48 bits of time and 80 bits of chance, in Crockford's base 32 (the layout of a ULID).
    pub fn new(now: UnixMillis, randomness: &dyn Randomness) -> Self {
        let mut chance = [0_u8; 10];
        randomness.fill(&mut chance);
        Self::of_bits(now, chance.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte)))
    }

    fn of_bits(now: UnixMillis, chance_bits: u128) -> Self {
        const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let time_bits = u128::from(now.0.unsigned_abs() & 0xffff_ffff_ffff) << 80;
        let bits = time_bits | chance_bits;
        let text = (0..26).rev().map(|place| char::from(DIGITS[(bits >> (place * 5) & 31) as usize]));
        Self(format!("req_{}", text.collect::<String>()))
    }

    /// Sorts before every id made at that time or later.
    pub fn first_at(at: UnixMillis) -> Self {
        Self::of_bits(at, 0)
    }

    /// Takes an id back from the store, where only ids made here are kept.
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRandomness;

    #[test]
    fn request_ids_sort_by_time_and_differ_by_chance() {
        let randomness = SeededRandomness::new(7);
        let first = RequestId::new(UnixMillis(1_700_000_000_000), &randomness);
        let twin = RequestId::new(UnixMillis(1_700_000_000_000), &randomness);
        let later = RequestId::new(UnixMillis(1_700_000_000_001), &randomness);
        assert_eq!(first.as_str().len(), 30);
        assert_ne!(first, twin);
        assert!(first < later && twin < later);
        let earliest = RequestId::first_at(UnixMillis(1_700_000_000_001));
        assert!(first < earliest && earliest < later);
    }
}
