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

numeric_id!(
    /// One process's run as a writer of the ledger: it has a chain of its own, so that nodes never wait for each other.
    WriterId
);

impl WriterId {
    /// Drawn and not counted, so that a process can name itself without asking anybody.
    pub fn draw(randomness: &dyn Randomness) -> Self {
        let positive = i64::try_from(randomness.next_u64() >> 1).unwrap_or(i64::MAX);
        Self(positive.max(1))
    }
}

/// Names one request everywhere: reply, header, log line and ledger row. It starts with the time, so that rows
/// written together lie together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// 48 bits of time and 80 bits of chance, in Crockford's base 32 (the layout of a ULID).
    pub fn new(now: UnixMillis, randomness: &dyn Randomness) -> Self {
        let mut chance = [0_u8; 10];
        randomness.fill(&mut chance);
        let chance_bits = chance.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        Self(base_32(time_bits(now) | chance_bits, 26))
    }

    /// The beginning that every id made at this moment has. It comes before all of them and after all earlier ones.
    pub fn beginning_at(moment: UnixMillis) -> String {
        base_32(time_bits(moment) >> 80, 10)
    }

    /// Sorts before every id made at that time or later.
    pub fn first_at(at: UnixMillis) -> Self {
        Self(base_32(time_bits(at), 26))
    }

    /// Takes an id back from the store, where only ids made here are kept.
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn time_bits(moment: UnixMillis) -> u128 {
    u128::from(moment.0.unsigned_abs() & 0xffff_ffff_ffff) << 80
}

fn base_32(bits: u128, digits: u32) -> String {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let text = (0..digits).rev().map(|place| char::from(DIGITS[(bits >> (place * 5) & 31) as usize]));
    format!("req_{}", text.collect::<String>())
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

    #[test]
    fn the_beginning_of_a_moment_parts_its_ids_from_the_earlier_ones() {
        let randomness = SeededRandomness::new(7);
        let moment = UnixMillis(1_793_491_200_000);
        let beginning = RequestId::beginning_at(moment);
        for _ in 0..100 {
            let (before, at) =
                (RequestId::new(UnixMillis(moment.0 - 1), &randomness), RequestId::new(moment, &randomness));
            assert!(before.as_str() < beginning.as_str() && at.as_str().starts_with(&beginning));
        }
    }

    #[test]
    fn a_drawn_writer_is_positive() {
        let randomness = SeededRandomness::new(7);
        assert!((0..1000).all(|_| WriterId::draw(&randomness) > WriterId(0)));
    }
}
