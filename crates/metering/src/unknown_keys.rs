//! Keeps guesses at keys off the database. A prefix that is not there is remembered for as long as a key's state is cached. Each
//! peer may have `FAILED_KEY_BURST` unknown prefixes looked up, and gets another lookup every `FAILED_KEY_INTERVAL`; the rest of
//! its unknown prefixes are rejected unseen. Keys that were found before are not affected: they still work, whoever else shares
//! the address. A key that is used for the first time from such an address works as soon as one of these lookups is free.

use crate::limits::{
    FAILED_KEY_BURST, FAILED_KEY_INTERVAL, FAILED_KEY_PEERS, KEY_CACHE_TTL, UNKNOWN_PREFIX_CAPACITY,
};
use chancery_domain::{KeyPrefix, rate_limit_subnet};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Default)]
pub(crate) struct UnknownKeys(Mutex<State>);

#[derive(Default)]
struct State {
    /// Prefixes that were not in the database, by when the query was sent.
    absent: HashMap<KeyPrefix, Instant>,
    /// The same in order, for removal; a prefix may be here more than once.
    absent_in_order: VecDeque<(Instant, KeyPrefix)>,
    /// When each peer will have its whole burst again. Peers that have it are not listed.
    recovered_at: HashMap<IpAddr, Instant>,
    /// The same in order, for removal.
    recovery_order: BTreeSet<(Instant, IpAddr)>,
}

impl UnknownKeys {
    /// Whether to query the database for a prefix that no recent query has found.
    pub(crate) fn may_look_up(&self, prefix: &KeyPrefix, peer: Option<IpAddr>, now: Instant) -> bool {
        let state = self.lock();
        let is_absent = state
            .absent
            .get(prefix)
            .is_some_and(|read_at| now.saturating_duration_since(*read_at) < KEY_CACHE_TTL);
        let recovered_at = peer.and_then(|peer| state.recovered_at.get(&rate_limit_subnet(peer)));
        let missing = recovered_at.map(|at| at.saturating_duration_since(now)).unwrap_or_default();
        !is_absent && missing + FAILED_KEY_INTERVAL <= FAILED_KEY_INTERVAL * FAILED_KEY_BURST
    }

    /// `read_at` is when the query was sent.
    pub(crate) fn record_absent(&self, prefix: KeyPrefix, peer: Option<IpAddr>, read_at: Instant) {
        let mut state = self.lock();
        state.add_absent(prefix, read_at);
        if let Some(peer) = peer {
            state.count_failure(rate_limit_subnet(peer), read_at);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add_absent(&mut self, prefix: KeyPrefix, read_at: Instant) {
        let is_over =
            |entry: &(Instant, KeyPrefix)| read_at.saturating_duration_since(entry.0) >= KEY_CACHE_TTL;
        while self.absent_in_order.len() >= UNKNOWN_PREFIX_CAPACITY
            || self.absent_in_order.front().is_some_and(is_over)
        {
            let Some((at, oldest)) = self.absent_in_order.pop_front() else { break };
            if self.absent.get(&oldest) == Some(&at) {
                self.absent.remove(&oldest);
            }
        }
        self.absent.insert(prefix.clone(), read_at);
        self.absent_in_order.push_back((read_at, prefix));
    }

    /// Lookups that run at the same time can overdraw the burst. A peer pays that back for at most as long as a burst takes.
    fn count_failure(&mut self, peer: IpAddr, now: Instant) {
        let previous = self.recovered_at.remove(&peer);
        if let Some(previous) = previous {
            self.recovery_order.remove(&(previous, peer));
        }
        // The first in order is nearest to a whole burst, so it is the least loss.
        while let Some((at, first)) = self.recovery_order.first().copied()
            && (at <= now || self.recovery_order.len() >= FAILED_KEY_PEERS)
        {
            self.recovery_order.remove(&(at, first));
            self.recovered_at.remove(&first);
        }
        let longest = FAILED_KEY_INTERVAL * FAILED_KEY_BURST * 2;
        let recovered_at = (previous.unwrap_or(now).max(now) + FAILED_KEY_INTERVAL).min(now + longest);
        self.recovered_at.insert(peer, recovered_at);
        self.recovery_order.insert((recovered_at, peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Clock, SystemClock};
    use std::time::Duration;

    fn prefix(number: usize) -> KeyPrefix {
        KeyPrefix::from_stored(format!("ck_{number:08}"))
    }

    fn peer(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    #[test]
    fn peer_that_fails_gets_a_burst_and_then_a_few_lookups_per_second() {
        let (unknown, start) = (UnknownKeys::default(), SystemClock.monotonic());
        let mut lookups = 0;
        // One guess per millisecond for ten seconds, all from one /56.
        for number in 0..10_000_u32 {
            let now = start + Duration::from_millis(number.into());
            let peer = format!("2001:db8::{:x}", number % 50).parse().ok();
            if unknown.may_look_up(&prefix(number as usize), peer, now) {
                lookups += 1;
                unknown.record_absent(prefix(number as usize), peer, now);
            }
        }
        let per_second = 1_000 / u32::try_from(FAILED_KEY_INTERVAL.as_millis()).unwrap();
        let expected = FAILED_KEY_BURST + 10 * per_second;
        assert!((expected - 1..=expected + 1).contains(&lookups), "{lookups}");
        let other = "2001:db8:0:100::1".parse().ok();
        assert!(unknown.may_look_up(&prefix(20_000), other, start + Duration::from_secs(10)));
        let later = start + Duration::from_secs(60);
        assert!(unknown.may_look_up(&prefix(20_000), "2001:db8::1".parse().ok(), later));
    }

    #[test]
    fn concurrent_failures_are_paid_back_within_two_bursts() {
        let (unknown, start) = (UnknownKeys::default(), SystemClock.monotonic());
        for number in 0..5_000 {
            unknown.record_absent(prefix(number), Some(peer(1)), start);
        }
        let burst = FAILED_KEY_INTERVAL * FAILED_KEY_BURST;
        assert!(!unknown.may_look_up(&prefix(9_999), Some(peer(1)), start + burst));
        assert!(unknown.may_look_up(&prefix(9_999), Some(peer(1)), start + burst + FAILED_KEY_INTERVAL));
    }

    #[test]
    fn memory_of_unknown_keys_and_peers_is_bounded() {
        let (unknown, start) = (UnknownKeys::default(), SystemClock.monotonic());
        let newest = UNKNOWN_PREFIX_CAPACITY.max(FAILED_KEY_PEERS) + 100;
        for number in 0..=newest {
            unknown.record_absent(prefix(number), Some(peer(u32::try_from(number).unwrap())), start);
        }
        assert!(unknown.may_look_up(&prefix(0), None, start), "the oldest made way");
        assert!(!unknown.may_look_up(&prefix(newest), None, start));
        let state = unknown.lock();
        assert_eq!(state.absent.len(), UNKNOWN_PREFIX_CAPACITY);
        assert_eq!(state.absent_in_order.len(), UNKNOWN_PREFIX_CAPACITY);
        assert_eq!(
            (state.recovered_at.len(), state.recovery_order.len()),
            (FAILED_KEY_PEERS, FAILED_KEY_PEERS)
        );
        drop(state);
        // What is over is removed with the next entry.
        unknown.record_absent(prefix(0), Some(peer(0)), start + Duration::from_secs(60));
        let state = unknown.lock();
        assert_eq!((state.absent.len(), state.recovered_at.len()), (1, 1));
        assert_eq!((state.absent_in_order.len(), state.recovery_order.len()), (1, 1));
    }
}
