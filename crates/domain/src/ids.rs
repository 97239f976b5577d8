//! Typed identifiers, so that an account id cannot be passed where a key id is expected.

use crate::{Randomness, UnixMillis};
use std::fmt;
use std::sync::Arc;

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
    /// The internal id of an API key; its public name is its prefix.
    KeyId
);

numeric_id!(
    /// One run of a process as a ledger writer. Each has its own chain, so that nodes never wait for each other.
    WriterId
);

impl WriterId {
    /// Random instead of sequential, so that a process can choose its id without coordination.
    pub fn random(randomness: &dyn Randomness) -> Self {
        let positive = i64::try_from(randomness.next_u64() >> 1).unwrap_or(i64::MAX);
        Self(positive.max(1))
    }
}

/// Identifies one request everywhere: in the reply, header, log line and ledger row. It starts with the time, so that rows
/// written together are stored together. Every part of a request has a copy, so copies share the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// 48 bits of time and 80 random bits, in Crockford's base 32 (the layout of a ULID).
    pub fn new(now: UnixMillis, randomness: &dyn Randomness) -> Self {
        let mut random = [0_u8; 10];
        randomness.fill(&mut random);
        let random_bits = random.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        Self(crockford_base32(time_bits(now) | random_bits, 26).into())
    }

    /// The common prefix of all ids created at this moment. It sorts before all of them and after all earlier ones.
    pub fn prefix_at(moment: UnixMillis) -> String {
        crockford_base32(time_bits(moment) >> 80, 10)
    }

    /// Sorts before every id created at that time or later.
    pub fn min_at(at: UnixMillis) -> Self {
        Self(crockford_base32(time_bits(at), 26).into())
    }

    /// Skips validation, because only generated ids are stored.
    pub fn from_stored(text: String) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text itself, for an owner that would otherwise copy it.
    pub fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

fn time_bits(moment: UnixMillis) -> u128 {
    u128::from(moment.0.unsigned_abs() & 0xffff_ffff_ffff) << 80
}

fn crockford_base32(bits: u128, digits: u32) -> String {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut text = String::with_capacity("req_".len() + digits as usize);
    text.push_str("req_");
    text.extend((0..digits).rev().map(|index| char::from(DIGITS[(bits >> (index * 5) & 31) as usize])));
    text
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
    fn request_ids_sort_by_time_and_are_unique() {
        let randomness = SeededRandomness::new(7);
        let first = RequestId::new(UnixMillis(1_700_000_000_000), &randomness);
        let twin = RequestId::new(UnixMillis(1_700_000_000_000), &randomness);
        let later = RequestId::new(UnixMillis(1_700_000_000_001), &randomness);
        assert_eq!(first.as_str().len(), 30);
        assert_ne!(first, twin);
        assert!(first < later && twin < later);
        let earliest = RequestId::min_at(UnixMillis(1_700_000_000_001));
        assert!(first < earliest && earliest < later);
    }

    #[test]
    fn prefix_sorts_after_all_earlier_request_ids() {
        let randomness = SeededRandomness::new(7);
        let moment = UnixMillis(1_793_491_200_000);
        let beginning = RequestId::prefix_at(moment);
        for _ in 0..100 {
            let (before, at) =
                (RequestId::new(UnixMillis(moment.0 - 1), &randomness), RequestId::new(moment, &randomness));
            assert!(before.as_str() < beginning.as_str() && at.as_str().starts_with(&beginning));
        }
    }

    #[test]
    fn random_writer_id_is_positive() {
        let randomness = SeededRandomness::new(7);
        assert!((0..1000).all(|_| WriterId::random(&randomness) > WriterId(0)));
    }
}
