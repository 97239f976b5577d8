//! Sliding-window rate limits per account: what fits now, and when more will. The invariant, exactly:
//!
//! **In any 60 seconds an account is admitted at most `requests_per_min` requests, which together count at most
//! `tokens_per_min` tokens.** A request counts at the time of its admission: with the maximum it may use until it is
//! settled, and with what it used from then on. A released request does not count at all.
//!
//! Admissions are stored as entries of (time, requests, tokens). Up to `MAX_EXACT_ENTRIES` of them, each request has its own
//! entry, so its time is exact. Beyond that, requests within `COALESCE_SPAN` of each other share an entry, which expires
//! with the last of them. This bounds memory. It can only overcount, for less than `COALESCE_SPAN`, never undercount.
//!
//! Time is a duration since any fixed moment. Request ids are not known here; the stores track them.

use crate::RateLimits;
use std::collections::VecDeque;
use std::time::Duration;

/// How long an admission counts.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Up to this many entries, each request has its own.
pub const MAX_EXACT_ENTRIES: usize = 64;

/// Maximum distance between requests that share an entry.
pub const COALESCE_SPAN: Duration = Duration::from_millis(500);

/// Requests and tokens that an account has used, or has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitUsage {
    pub requests: u64,
    pub tokens: u64,
}

/// An account's limits and usage at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitStatus {
    pub limits: RateLimits,
    pub used: LimitUsage,
    /// Time until the oldest entry expires; zero if there is none.
    pub next_expiry: Duration,
    /// Time until the newest entry expires, and usage is zero.
    pub full_reset: Duration,
}

impl RateLimitStatus {
    pub fn remaining(&self) -> LimitUsage {
        LimitUsage {
            requests: u64::from(self.limits.requests_per_min).saturating_sub(self.used.requests),
            tokens: u64::from(self.limits.tokens_per_min).saturating_sub(self.used.tokens),
        }
    }
}

/// The request exceeds a limit now. Each wait assumes that nothing else is admitted meanwhile; it is zero for a limit that is
/// not exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitExceeded {
    pub status: RateLimitStatus,
    pub requests_retry_after: Duration,
    pub tokens_retry_after: Duration,
}

impl RateLimitExceeded {
    pub fn retry_after(&self) -> Duration {
        self.requests_retry_after.max(self.tokens_retry_after)
    }

    /// Waiting this long is enough; one second less is not.
    pub fn retry_after_s(&self) -> u32 {
        ceil_seconds(self.retry_after()).max(1)
    }
}

/// Rounds up, so that a caller who waits this long has waited long enough.
pub fn ceil_seconds(duration: Duration) -> u32 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// Identifies an entry while it is in its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowEntryId(u64);

/// What an admitted request has reserved: its entry, and its tokens in that entry.
#[derive(Clone, Copy, Debug)]
pub struct ReservedEntry {
    pub entry: WindowEntryId,
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    from: Duration,
    to: Duration,
    amount: LimitUsage,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.amount.requests == 0
    }
}

/// One account's admissions within the last 60 seconds.
#[derive(Clone, Debug, Default)]
pub struct SlidingWindow {
    /// Oldest first.
    entries: VecDeque<Entry>,
    /// Number of the oldest entry; the others are consecutive.
    first: u64,
    used: LimitUsage,
}

impl SlidingWindow {
    /// Whether a request fits with all the tokens it may use, or when it would. Changes nothing that counts. `replaced` is what
    /// the request itself has reserved so far, which makes room for the new reservation.
    pub fn check(
        &mut self,
        now: Duration,
        limits: RateLimits,
        tokens: u64,
        replaced: Option<ReservedEntry>,
    ) -> Result<(), RateLimitExceeded> {
        let now = self.advance(now);
        self.ensure_fits(now, limits, tokens, replaced)
    }

    /// Admits a request that `check` has just found to fit. One that replaces its own reservation counts from now on, not from
    /// its first admission: otherwise the tokens would count in a minute for which they were not checked.
    pub fn admit(&mut self, now: Duration, tokens: u64, replaced: Option<ReservedEntry>) -> WindowEntryId {
        let now = self.advance(now);
        if let Some(reserved) = replaced {
            self.settle(now, reserved.entry, reserved.tokens, None);
        }
        self.add(now, tokens)
    }

    fn ensure_fits(
        &self,
        now: Duration,
        limits: RateLimits,
        tokens: u64,
        replaced: Option<ReservedEntry>,
    ) -> Result<(), RateLimitExceeded> {
        let (requests_limit, tokens_limit) =
            (u64::from(limits.requests_per_min), u64::from(limits.tokens_per_min));
        let replaced = replaced.and_then(|reserved| {
            let index = usize::try_from(reserved.entry.0.checked_sub(self.first)?).ok()?;
            (index < self.entries.len())
                .then_some((index, LimitUsage { requests: 1, tokens: reserved.tokens }))
        });
        let own = replaced.map_or(LimitUsage::default(), |(_, amount)| amount);
        if self.used.requests - own.requests < requests_limit
            && self.used.tokens - own.tokens + tokens <= tokens_limit
        {
            return Ok(());
        }
        Err(RateLimitExceeded {
            status: self.status_at(now, limits),
            requests_retry_after: self.wait(now, requests_limit, 1, replaced, |amount| amount.requests),
            tokens_retry_after: self.wait(now, tokens_limit, tokens, replaced, |amount| amount.tokens),
        })
    }

    fn add(&mut self, now: Duration, tokens: u64) -> WindowEntryId {
        let shares_entry = self.entries.back().is_some_and(|newest| {
            self.entries.len() >= MAX_EXACT_ENTRIES && now - newest.from < COALESCE_SPAN
        });
        if !shares_entry {
            self.entries.push_back(Entry { from: now, to: now, amount: LimitUsage::default() });
        }
        if let Some(newest) = self.entries.back_mut() {
            newest.to = now;
            newest.amount.requests += 1;
            newest.amount.tokens += tokens;
        }
        self.used.requests += 1;
        self.used.tokens += tokens;
        WindowEntryId(self.first + self.entries.len() as u64 - 1)
    }

    /// Replaces reserved tokens with used ones; `None` removes the request as if it had never been admitted. Does nothing once
    /// the entry has expired.
    pub fn settle(
        &mut self,
        now: Duration,
        number: WindowEntryId,
        reserved_tokens: u64,
        used_tokens: Option<u64>,
    ) {
        self.advance(now);
        let Some(entry) = number
            .0
            .checked_sub(self.first)
            .and_then(|index| self.entries.get_mut(usize::try_from(index).ok()?))
        else {
            return;
        };
        let released = u64::from(used_tokens.is_none());
        for amount in [&mut entry.amount, &mut self.used] {
            amount.requests = amount.requests.saturating_sub(released);
            amount.tokens = amount.tokens.saturating_sub(reserved_tokens) + used_tokens.unwrap_or(0);
        }
        self.trim_empty_entries();
    }

    pub fn status(&mut self, now: Duration, limits: RateLimits) -> RateLimitStatus {
        let now = self.advance(now);
        self.status_at(now, limits)
    }

    pub fn is_empty(&mut self, now: Duration) -> bool {
        self.advance(now);
        self.entries.is_empty()
    }

    /// Entries before this one have expired.
    pub fn oldest(&self) -> WindowEntryId {
        WindowEntryId(self.first)
    }

    /// Evicts entries that are 60 seconds old. Methods that take `now` call this first. Time never runs backwards: a `now` before
    /// the newest entry counts as that entry's time.
    pub fn advance(&mut self, now: Duration) -> Duration {
        let now = self.entries.back().map_or(now, |newest| now.max(newest.to));
        while let Some(oldest) = self.entries.front()
            && oldest.to + WINDOW <= now
        {
            self.used.requests -= oldest.amount.requests;
            self.used.tokens -= oldest.amount.tokens;
            self.evict_oldest();
        }
        self.trim_empty_entries();
        now
    }

    /// Releasing can leave empty entries. Dropping them at the ends keeps `next_expiry` and `full_reset` exact.
    fn trim_empty_entries(&mut self) {
        while self.entries.front().is_some_and(Entry::is_empty) {
            self.evict_oldest();
        }
        while self.entries.back().is_some_and(Entry::is_empty) {
            self.entries.pop_back();
        }
    }

    fn evict_oldest(&mut self) {
        self.entries.pop_front();
        self.first += 1;
    }

    fn status_at(&self, now: Duration, limits: RateLimits) -> RateLimitStatus {
        let leaves = |entry: Option<&Entry>| entry.map_or(Duration::ZERO, |entry| entry.to + WINDOW - now);
        RateLimitStatus {
            limits,
            used: self.used,
            next_expiry: leaves(self.entries.front()),
            full_reset: leaves(self.entries.back()),
        }
    }

    /// Time until enough entries have expired for `requested` to fit. `replaced` does not count: an entry's index, and the part
    /// of that entry.
    fn wait(
        &self,
        now: Duration,
        limit: u64,
        requested: u64,
        replaced: Option<(usize, LimitUsage)>,
        of: impl Fn(&LimitUsage) -> u64,
    ) -> Duration {
        let replaced = replaced.map(|(index, amount)| (index, of(&amount)));
        let mut used = of(&self.used).saturating_sub(replaced.map_or(0, |(_, amount)| amount));
        let mut wait = Duration::ZERO;
        for (index, entry) in self.entries.iter().enumerate() {
            if used + requested <= limit {
                break;
            }
            let own = replaced.filter(|(replaced, _)| *replaced == index).map_or(0, |(_, amount)| amount);
            used = used.saturating_sub(of(&entry.amount).saturating_sub(own));
            wait = entry.to + WINDOW - now;
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: RateLimits = RateLimits { requests_per_min: 5, tokens_per_min: 100 };

    /// Check and admission in one step.
    impl SlidingWindow {
        fn reserve(
            &mut self,
            now: Duration,
            limits: RateLimits,
            tokens: u64,
        ) -> Result<WindowEntryId, RateLimitExceeded> {
            self.check(now, limits, tokens, None)?;
            Ok(self.admit(now, tokens, None))
        }

        fn raise(
            &mut self,
            now: Duration,
            limits: RateLimits,
            reserved: ReservedEntry,
            tokens: u64,
        ) -> Result<WindowEntryId, RateLimitExceeded> {
            self.check(now, limits, tokens, Some(reserved))?;
            Ok(self.admit(now, tokens, Some(reserved)))
        }
    }

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_request_counts_for_exactly_sixty_seconds() {
        let mut window = SlidingWindow::default();
        window.reserve(at(10.25), LIMITS, 100).unwrap();
        let exceeded = window.reserve(at(10.25), LIMITS, 1).unwrap_err();
        assert_eq!((exceeded.requests_retry_after, exceeded.tokens_retry_after), (Duration::ZERO, WINDOW));
        assert_eq!(exceeded.retry_after_s(), 60);
        let exceeded = window.reserve(at(70.249), LIMITS, 1).unwrap_err();
        assert_eq!((exceeded.tokens_retry_after, exceeded.retry_after_s()), (at(0.001), 1));
        assert!(window.reserve(at(70.25), LIMITS, 100).is_ok());
    }

    #[test]
    fn settling_frees_unused_tokens_and_releasing_frees_all() {
        let mut window = SlidingWindow::default();
        let one = window.reserve(at(0.0), LIMITS, 90).unwrap();
        assert!(window.reserve(at(1.0), LIMITS, 90).is_err());
        window.settle(at(1.0), one, 90, Some(10));
        let two = window.reserve(at(1.0), LIMITS, 90).unwrap();
        assert_eq!(window.status(at(1.0), LIMITS).remaining(), LimitUsage { requests: 3, tokens: 0 });
        window.settle(at(2.0), two, 90, None);
        assert_eq!(window.status(at(2.0), LIMITS).used, LimitUsage { requests: 1, tokens: 10 });
        window.settle(at(61.0), one, 90, Some(10));
        assert_eq!(window.status(at(61.0), LIMITS).used, LimitUsage::default());
    }

    #[test]
    fn raised_reservation_counts_from_the_time_of_the_raise() {
        let mut window = SlidingWindow::default();
        window.reserve(at(0.0), LIMITS, 60).unwrap();
        let entry = window.reserve(at(59.0), LIMITS, 0).unwrap();
        let exceeded = window.raise(at(59.5), LIMITS, ReservedEntry { entry, tokens: 0 }, 50).unwrap_err();
        assert_eq!((exceeded.requests_retry_after, exceeded.tokens_retry_after), (Duration::ZERO, at(0.5)));
        assert_eq!(window.status(at(59.5), LIMITS).used, LimitUsage { requests: 2, tokens: 60 });
        window.raise(at(60.0), LIMITS, ReservedEntry { entry, tokens: 0 }, 50).unwrap();
        assert_eq!(window.status(at(60.0), LIMITS).used, LimitUsage { requests: 1, tokens: 50 });
        assert_eq!(window.status(at(119.9), LIMITS).used.tokens, 50);
        assert_eq!(window.status(at(120.0), LIMITS).used.tokens, 0);
    }

    #[test]
    fn lowered_limit_rejects_until_excess_expires() {
        let mut window = SlidingWindow::default();
        for second in 0..5 {
            window.reserve(Duration::from_secs(second), LIMITS, 20).unwrap();
        }
        let lower = RateLimits { requests_per_min: 2, tokens_per_min: 100 };
        let exceeded = window.reserve(at(10.0), lower, 1).unwrap_err();
        assert_eq!(exceeded.status.remaining().requests, 0);
        // The limit is two, so only one of the five may remain: the fourth expires at 63.
        assert_eq!((exceeded.retry_after_s(), exceeded.tokens_retry_after), (53, at(50.0)));
        assert!(window.clone().reserve(at(62.999), lower, 1).is_err());
        assert!(window.reserve(at(63.0), lower, 1).is_ok());
    }

    #[test]
    fn window_memory_is_bounded() {
        let limits = RateLimits { requests_per_min: u32::MAX, tokens_per_min: u32::MAX };
        let bound = MAX_EXACT_ENTRIES + (WINDOW.as_millis() / COALESCE_SPAN.as_millis()) as usize + 2;
        let mut window = SlidingWindow::default();
        for step in 0..200_000 {
            window.reserve(Duration::from_millis(step), limits, 1).unwrap();
            assert!(window.entries.len() <= bound, "{} entries", window.entries.len());
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Wait(Duration),
        Reserve {
            tokens: u64,
        },
        /// One of the requests admitted so far.
        Settle {
            which: prop::sample::Index,
            share: u64,
        },
        Release {
            which: prop::sample::Index,
        },
        Raise {
            which: prop::sample::Index,
            more: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let pauses = [0, 1, 20, 499, 500, 1_000, 7_000, 30_000, 59_999, 60_000];
        prop_oneof![
            4 => prop::sample::select(pauses.to_vec()).prop_map(|ms| Step::Wait(Duration::from_millis(ms))),
            8 => (0..60_u64).prop_map(|tokens| Step::Reserve { tokens }),
            3 => (any::<prop::sample::Index>(), 0..=100_u64)
                .prop_map(|(which, share)| Step::Settle { which, share }),
            1 => any::<prop::sample::Index>().prop_map(|which| Step::Release { which }),
            2 => (any::<prop::sample::Index>(), 1..60_u64).prop_map(|(which, more)| Step::Raise { which, more }),
        ]
    }

    /// One request in the reference model.
    struct Admission {
        at: Duration,
        number: WindowEntryId,
        reserved: u64,
        counts: LimitUsage,
        is_open: bool,
    }

    fn admitted_within(list: &[Admission], now: Duration, window: Duration) -> LimitUsage {
        let within = list.iter().filter(|admission| admission.at + window > now);
        within.fold(LimitUsage::default(), |sum, admission| LimitUsage {
            requests: sum.requests + admission.counts.requests,
            tokens: sum.tokens + admission.counts.tokens,
        })
    }

    proptest! {
        #[test]
        fn no_minute_exceeds_limit_and_retry_after_is_exact(
            steps in prop::collection::vec(step(), 1..300),
            requests_per_min in prop_oneof![1..10_u32, 60..200_u32],
            tokens_per_min in 60..2_000_u32,
        ) {
            let limits = RateLimits { requests_per_min, tokens_per_min };
            let (mut window, mut list, mut now) = (SlidingWindow::default(), Vec::<Admission>::new(), Duration::ZERO);
            for step in steps {
                match step {
                    Step::Wait(pause) => now += pause,
                    Step::Reserve { tokens } => match window.reserve(now, limits, tokens) {
                        Ok(number) => {
                            let counts = LimitUsage { requests: 1, tokens };
                            list.push(Admission { at: now, number, reserved: tokens, counts, is_open: true });
                            let sum = admitted_within(&list, now, WINDOW);
                            prop_assert!(sum.requests <= u64::from(requests_per_min));
                            prop_assert!(sum.tokens <= u64::from(tokens_per_min));
                        }
                        Err(exceeded) => {
                            let wait = exceeded.requests_retry_after.max(exceeded.tokens_retry_after);
                            prop_assert!(wait > Duration::ZERO && wait <= WINDOW);
                            let early = wait - Duration::from_nanos(1);
                            prop_assert!(window.clone().reserve(now + early, limits, tokens).is_err());
                            prop_assert!(window.clone().reserve(now + wait, limits, tokens).is_ok());
                            // The rejection is justified: within the window plus `COALESCE_SPAN`, a limit was exceeded.
                            let max = admitted_within(&list, now, WINDOW + COALESCE_SPAN);
                            prop_assert!(max.requests + 1 > u64::from(requests_per_min)
                                || max.tokens + tokens > u64::from(tokens_per_min));
                        }
                    },
                    Step::Settle { which, share } if !list.is_empty() => {
                        let admission = which.get_mut(&mut list);
                        if std::mem::take(&mut admission.is_open) {
                            admission.counts.tokens = admission.reserved * share / 100;
                            window.settle(now, admission.number, admission.reserved, Some(admission.counts.tokens));
                        }
                    }
                    Step::Release { which } if !list.is_empty() => {
                        let admission = which.get_mut(&mut list);
                        if std::mem::take(&mut admission.is_open) {
                            admission.counts = LimitUsage::default();
                            window.settle(now, admission.number, admission.reserved, None);
                        }
                    }
                    Step::Raise { which, more } if !list.is_empty() => {
                        let before = (window.status(now, limits), window.entries.len());
                        let index = which.index(list.len());
                        let Admission { at, number, reserved, is_open, .. } = list[index];
                        if !is_open || at + WINDOW <= now {
                            continue;
                        }
                        let raised = reserved + more;
                        match window.raise(now, limits, ReservedEntry { entry: number, tokens: reserved }, raised) {
                            Ok(number) => {
                                let counts = LimitUsage { requests: 1, tokens: raised };
                                list[index] = Admission { at: now, number, reserved: raised, counts, is_open: true };
                                let sum = admitted_within(&list, now, WINDOW);
                                prop_assert!(sum.requests <= u64::from(requests_per_min));
                                prop_assert!(sum.tokens <= u64::from(tokens_per_min));
                            }
                            Err(exceeded) => {
                                prop_assert_eq!((window.status(now, limits), window.entries.len()), before);
                                prop_assert!(exceeded.tokens_retry_after > Duration::ZERO);
                                prop_assert_eq!(exceeded.requests_retry_after, Duration::ZERO, "it has its request");
                            }
                        }
                    }
                    Step::Settle { .. } | Step::Release { .. } | Step::Raise { .. } => {}
                }
                let used = window.status(now, limits).used;
                let (min, max) =
                    (admitted_within(&list, now, WINDOW), admitted_within(&list, now, WINDOW + COALESCE_SPAN));
                prop_assert!((min.requests..=max.requests).contains(&used.requests));
                prop_assert!((min.tokens..=max.tokens).contains(&used.tokens));
                if window.entries.len() < MAX_EXACT_ENTRIES && list.len() < MAX_EXACT_ENTRIES {
                    prop_assert_eq!(used, min, "few requests are counted to the moment");
                }
            }
        }
    }
}
