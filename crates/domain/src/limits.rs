//! The limits per minute as arithmetic: the window of one account, what still fits into it, and when more will. The
//! promise it keeps, exactly:
//!
//! **In any 60 seconds an account is admitted at most its requests per minute, and the requests admitted in them count
//! together at most its tokens per minute.** A request counts at the moment of its admission: with everything it may
//! use until it is settled, and with what it did use from then on. A released request does not count at all.
//!
//! Admissions are kept as entries of (time, requests, tokens). Up to `EXACT_ENTRIES` of them each request has an entry
//! of its own, so its time is exact. Past that, requests within `ENTRY_SPAN` of each other share one, which leaves
//! with the last of them: that bounds the memory and can only count too much, for less than `ENTRY_SPAN`, never too
//! little.
//!
//! Time comes in as a duration since any fixed moment. Nothing here knows about requests' ids; stores keep those.

use crate::RateLimits;
use std::collections::VecDeque;
use std::time::Duration;

/// How long an admission counts.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Up to this many entries, each request has one of its own.
pub const EXACT_ENTRIES: usize = 64;

/// Requests that share an entry are at most this far apart.
pub const ENTRY_SPAN: Duration = Duration::from_millis(500);

/// What an account has used of its limits, or is to be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub requests: u64,
    pub tokens: u64,
}

/// Where an account stands at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitStatus {
    pub limits: RateLimits,
    pub used: Amount,
    /// Until the oldest entry leaves; zero where there is none.
    pub next_leaves: Duration,
    /// Until the newest entry leaves, and with it everything.
    pub all_left: Duration,
}

impl RateLimitStatus {
    pub fn remaining(&self) -> Amount {
        Amount {
            requests: u64::from(self.limits.requests_per_min).saturating_sub(self.used.requests),
            tokens: u64::from(self.limits.tokens_per_min).saturating_sub(self.used.tokens),
        }
    }
}

/// It does not fit now. The waits are until it fits each limit if nothing else is admitted meanwhile; zero where it
/// fits already. One of them is longer than zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: RateLimitStatus,
    pub requests_wait: Duration,
    pub tokens_wait: Duration,
}

impl Refusal {
    /// Waiting this long is enough, and one second less is not.
    pub fn retry_after_s(&self) -> u32 {
        whole_seconds(self.requests_wait.max(self.tokens_wait)).max(1)
    }
}

/// Rounded up, so that whoever waits this long has waited long enough.
pub fn whole_seconds(duration: Duration) -> u32 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// An entry of one window, for the time that it is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryNumber(u64);

#[derive(Clone, Copy, Debug)]
struct Entry {
    from: Duration,
    to: Duration,
    amount: Amount,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.amount.requests == 0
    }
}

/// What one account was admitted within the last 60 seconds.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Oldest first.
    entries: VecDeque<Entry>,
    /// The number of the oldest entry; the others' follow.
    first: u64,
    used: Amount,
}

impl Window {
    /// Takes a request with all the tokens it may use, or says when it would fit.
    pub fn reserve(
        &mut self,
        now: Duration,
        limits: RateLimits,
        tokens: u64,
    ) -> Result<EntryNumber, Refusal> {
        let now = self.advance(now);
        let (requests_limit, tokens_limit) =
            (u64::from(limits.requests_per_min), u64::from(limits.tokens_per_min));
        if self.used.requests + 1 > requests_limit || self.used.tokens + tokens > tokens_limit {
            return Err(Refusal {
                status: self.status_at(now, limits),
                requests_wait: self.wait(now, requests_limit, 1, |amount| amount.requests),
                tokens_wait: self.wait(now, tokens_limit, tokens, |amount| amount.tokens),
            });
        }
        let joins = self
            .entries
            .back()
            .is_some_and(|newest| self.entries.len() >= EXACT_ENTRIES && now - newest.from < ENTRY_SPAN);
        if !joins {
            self.entries.push_back(Entry { from: now, to: now, amount: Amount::default() });
        }
        if let Some(newest) = self.entries.back_mut() {
            newest.to = now;
            newest.amount.requests += 1;
            newest.amount.tokens += tokens;
        }
        self.used.requests += 1;
        self.used.tokens += tokens;
        Ok(EntryNumber(self.first + self.entries.len() as u64 - 1))
    }

    /// Corrects what was reserved to what was used; `None` takes the request back as if it had never been. Where the
    /// entry has left, there is nothing to correct.
    pub fn settle(
        &mut self,
        now: Duration,
        number: EntryNumber,
        reserved_tokens: u64,
        used_tokens: Option<u64>,
    ) {
        self.advance(now);
        let Some(entry) = number
            .0
            .checked_sub(self.first)
            .and_then(|place| self.entries.get_mut(usize::try_from(place).ok()?))
        else {
            return;
        };
        let released = u64::from(used_tokens.is_none());
        for amount in [&mut entry.amount, &mut self.used] {
            amount.requests = amount.requests.saturating_sub(released);
            amount.tokens = amount.tokens.saturating_sub(reserved_tokens) + used_tokens.unwrap_or(0);
        }
        self.drop_empty_ends();
    }

    pub fn status(&mut self, now: Duration, limits: RateLimits) -> RateLimitStatus {
        let now = self.advance(now);
        self.status_at(now, limits)
    }

    /// Whether nothing is left in it.
    pub fn is_empty(&mut self, now: Duration) -> bool {
        self.advance(now);
        self.entries.is_empty()
    }

    /// Entries before this one have left.
    pub fn oldest(&self) -> EntryNumber {
        EntryNumber(self.first)
    }

    /// Lets go of what is 60 seconds old; everything else here does so first. Time never runs backwards here: what is older than the newest entry is taken
    /// as that entry's time.
    pub fn advance(&mut self, now: Duration) -> Duration {
        let now = self.entries.back().map_or(now, |newest| now.max(newest.to));
        while let Some(oldest) = self.entries.front()
            && oldest.to + WINDOW <= now
        {
            self.used.requests -= oldest.amount.requests;
            self.used.tokens -= oldest.amount.tokens;
            self.drop_oldest();
        }
        self.drop_empty_ends();
        now
    }

    /// So that the oldest and the newest entry are ones that somebody waits for.
    fn drop_empty_ends(&mut self) {
        while self.entries.front().is_some_and(Entry::is_empty) {
            self.drop_oldest();
        }
        while self.entries.back().is_some_and(Entry::is_empty) {
            self.entries.pop_back();
        }
    }

    fn drop_oldest(&mut self) {
        self.entries.pop_front();
        self.first += 1;
    }

    fn status_at(&self, now: Duration, limits: RateLimits) -> RateLimitStatus {
        let leaves = |entry: Option<&Entry>| entry.map_or(Duration::ZERO, |entry| entry.to + WINDOW - now);
        RateLimitStatus {
            limits,
            used: self.used,
            next_leaves: leaves(self.entries.front()),
            all_left: leaves(self.entries.back()),
        }
    }

    /// Until so many entries have left that `asked` fits.
    fn wait(&self, now: Duration, limit: u64, asked: u64, of: impl Fn(&Amount) -> u64) -> Duration {
        let mut used = of(&self.used);
        let mut wait = Duration::ZERO;
        for entry in &self.entries {
            if used + asked <= limit {
                break;
            }
            used -= of(&entry.amount);
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

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_request_counts_for_exactly_sixty_seconds() {
        let mut window = Window::default();
        window.reserve(at(10.25), LIMITS, 100).unwrap();
        let refusal = window.reserve(at(10.25), LIMITS, 1).unwrap_err();
        assert_eq!((refusal.requests_wait, refusal.tokens_wait), (Duration::ZERO, WINDOW));
        assert_eq!(refusal.retry_after_s(), 60);
        let refusal = window.reserve(at(70.249), LIMITS, 1).unwrap_err();
        assert_eq!((refusal.tokens_wait, refusal.retry_after_s()), (at(0.001), 1));
        assert!(window.reserve(at(70.25), LIMITS, 100).is_ok());
    }

    #[test]
    fn settling_frees_what_was_not_used_at_once_and_releasing_frees_all() {
        let mut window = Window::default();
        let one = window.reserve(at(0.0), LIMITS, 90).unwrap();
        assert!(window.reserve(at(1.0), LIMITS, 90).is_err());
        window.settle(at(1.0), one, 90, Some(10));
        let two = window.reserve(at(1.0), LIMITS, 90).unwrap();
        assert_eq!(window.status(at(1.0), LIMITS).remaining(), Amount { requests: 3, tokens: 0 });
        window.settle(at(2.0), two, 90, None);
        assert_eq!(window.status(at(2.0), LIMITS).used, Amount { requests: 1, tokens: 10 });
        window.settle(at(61.0), one, 90, Some(10));
        assert_eq!(window.status(at(61.0), LIMITS).used, Amount::default());
    }

    #[test]
    fn a_lowered_limit_refuses_until_what_is_above_it_has_left() {
        let mut window = Window::default();
        for second in 0..5 {
            window.reserve(Duration::from_secs(second), LIMITS, 20).unwrap();
        }
        let lower = RateLimits { requests_per_min: 2, tokens_per_min: 100 };
        let refusal = window.reserve(at(10.0), lower, 1).unwrap_err();
        assert_eq!(refusal.status.remaining().requests, 0);
        // Two may be there, so one of five is to stay: the fourth leaves at 63.
        assert_eq!((refusal.retry_after_s(), refusal.tokens_wait), (53, at(50.0)));
        assert!(window.clone().reserve(at(62.999), lower, 1).is_err());
        assert!(window.reserve(at(63.0), lower, 1).is_ok());
    }

    #[test]
    fn a_window_takes_no_more_memory_however_many_requests_it_holds() {
        let limits = RateLimits { requests_per_min: u32::MAX, tokens_per_min: u32::MAX };
        let bound = EXACT_ENTRIES + (WINDOW.as_millis() / ENTRY_SPAN.as_millis()) as usize + 2;
        let mut window = Window::default();
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
        /// Of the nth request admitted so far.
        Settle {
            which: prop::sample::Index,
            share: u64,
        },
        Release {
            which: prop::sample::Index,
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
        ]
    }

    /// One request, as somebody with a stopwatch and a list would note it.
    struct Noted {
        at: Duration,
        number: EntryNumber,
        reserved: u64,
        counts: Amount,
        is_open: bool,
    }

    fn noted_within(list: &[Noted], now: Duration, window: Duration) -> Amount {
        let within = list.iter().filter(|noted| noted.at + window > now);
        within.fold(Amount::default(), |sum, noted| Amount {
            requests: sum.requests + noted.counts.requests,
            tokens: sum.tokens + noted.counts.tokens,
        })
    }

    proptest! {
        #[test]
        fn no_sixty_seconds_hold_more_than_the_limit_and_waiting_as_told_is_enough(
            steps in prop::collection::vec(step(), 1..300),
            requests_per_min in prop_oneof![1..10_u32, 60..200_u32],
            tokens_per_min in 60..2_000_u32,
        ) {
            let limits = RateLimits { requests_per_min, tokens_per_min };
            let (mut window, mut list, mut now) = (Window::default(), Vec::<Noted>::new(), Duration::ZERO);
            for step in steps {
                match step {
                    Step::Wait(pause) => now += pause,
                    Step::Reserve { tokens } => match window.reserve(now, limits, tokens) {
                        Ok(number) => {
                            let counts = Amount { requests: 1, tokens };
                            list.push(Noted { at: now, number, reserved: tokens, counts, is_open: true });
                            let sum = noted_within(&list, now, WINDOW);
                            prop_assert!(sum.requests <= u64::from(requests_per_min));
                            prop_assert!(sum.tokens <= u64::from(tokens_per_min));
                        }
                        Err(refusal) => {
                            let wait = refusal.requests_wait.max(refusal.tokens_wait);
                            prop_assert!(wait > Duration::ZERO && wait <= WINDOW);
                            let early = wait - Duration::from_nanos(1);
                            prop_assert!(window.clone().reserve(now + early, limits, tokens).is_err());
                            prop_assert!(window.clone().reserve(now + wait, limits, tokens).is_ok());
                            // It is refused with a reason: what the window counts was there within its bounds.
                            let most = noted_within(&list, now, WINDOW + ENTRY_SPAN);
                            prop_assert!(most.requests + 1 > u64::from(requests_per_min)
                                || most.tokens + tokens > u64::from(tokens_per_min));
                        }
                    },
                    Step::Settle { which, share } if !list.is_empty() => {
                        let noted = which.get_mut(&mut list);
                        if std::mem::take(&mut noted.is_open) {
                            noted.counts.tokens = noted.reserved * share / 100;
                            window.settle(now, noted.number, noted.reserved, Some(noted.counts.tokens));
                        }
                    }
                    Step::Release { which } if !list.is_empty() => {
                        let noted = which.get_mut(&mut list);
                        if std::mem::take(&mut noted.is_open) {
                            noted.counts = Amount::default();
                            window.settle(now, noted.number, noted.reserved, None);
                        }
                    }
                    Step::Settle { .. } | Step::Release { .. } => {}
                }
                let used = window.status(now, limits).used;
                let (least, most) =
                    (noted_within(&list, now, WINDOW), noted_within(&list, now, WINDOW + ENTRY_SPAN));
                prop_assert!((least.requests..=most.requests).contains(&used.requests));
                prop_assert!((least.tokens..=most.tokens).contains(&used.tokens));
                if window.entries.len() < EXACT_ENTRIES && list.len() < EXACT_ENTRIES {
                    prop_assert_eq!(used, least, "few requests are counted to the moment");
                }
            }
        }
    }
}
