//! The bounds, and the model of how they decide. The store decides in one statement, which a property test holds against this.

use crate::UnixMillis;
use std::time::Duration;

const QUARTER: Duration = Duration::from_secs(15 * 60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// By how much the clocks of nodes may differ before a count of one is over for another.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// So many in so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    pub limit: u32,
    pub window: Duration,
    pub expiry: ThrottleExpiry,
}

/// When what was counted counts no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleExpiry {
    /// A window after the first: trying on does not lengthen the wait.
    AfterFirst,
    /// A window after the last.
    AfterLast,
}

/// How often something happened, and until when that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleCount {
    pub count: u32,
    pub expires_at: UnixMillis,
}

/// What came of counting one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleDecision {
    /// With this one.
    Allowed(ThrottleCount),
    /// The limit was reached before; this one was not counted.
    Denied(ThrottleCount),
}

const fn after_first(limit: u32, window: Duration) -> Throttle {
    Throttle { limit, window, expiry: ThrottleExpiry::AfterFirst }
}

const fn after_last(limit: u32, window: Duration) -> Throttle {
    Throttle { limit, window, expiry: ThrottleExpiry::AfterLast }
}

/// Attempts for an address are bounded twice: tightly from one subnet, so that guessing is hopeless, and loosely over all, so
/// that a stranger elsewhere does not lock the owner out with a few wrong guesses.
impl Throttle {
    /// Passwords for one address, whether it has an account or not.
    pub const PASSWORD_PER_ADDRESS_AND_SUBNET: Self = after_first(10, QUARTER);
    /// Whoever wants to lock somebody out must come from several subnets.
    pub const PASSWORD_PER_ADDRESS: Self = after_first(50, QUARTER);
    pub const PASSWORD_PER_DAY: Self = after_first(200, DAY);
    /// Wrong passwords and wrong codes. A whole office may sit behind one.
    pub const ATTEMPT_PER_SUBNET: Self = after_first(100, QUARTER);
    /// Codes for one sign-up or one new password, over all its emails; then it is deleted.
    pub const CODE_PER_PROOF: Self = after_first(5, HOUR);
    /// Codes for one address, over everything that waits for one.
    pub const CODE_PER_ADDRESS_AND_SUBNET: Self = after_first(5, QUARTER);
    pub const CODE_PER_SUBNET_AND_DAY: Self = after_first(15, DAY);
    pub const CODE_PER_ADDRESS: Self = after_first(25, QUARTER);
    /// So that patience does not make up for it: sixty guesses a day at one of a million.
    pub const CODE_PER_DAY: Self = after_first(60, DAY);
    /// Emails with codes.
    pub const EMAIL_PER_ADDRESS_AND_SUBNET: Self = after_first(6, HOUR);
    pub const EMAIL_PER_ADDRESS: Self = after_first(18, HOUR);
    pub const EMAIL_PER_SUBNET: Self = after_first(30, HOUR);
    /// Emails that tell one mailbox of too many attempts.
    pub const LOCKOUT_EMAIL: Self = after_first(3, DAY);
    /// Consent pages shown to one account, and codes for applications given to it, so that no one person fills the database.
    pub const CONSENT_PAGE_PER_ACCOUNT: Self = after_first(100, HOUR);
    pub const AUTHORIZATION_CODE_PER_ACCOUNT: Self = after_first(100, Duration::from_secs(600));
    /// The way to a sign-in and back counts once.
    pub const SIGN_IN_DETOUR: Self = after_first(1, HOUR);

    /// Wrong codes of one identity at the portal, over all its sign-ins; then they are all deleted.
    pub const WRONG_CODE_PER_IDENTITY: Self = after_last(5, QUARTER);
    /// Wrong codes for one mailbox, over all identities that claim it; then all its sign-ins are deleted.
    pub const WRONG_CODE_PER_MAILBOX: Self = after_last(20, QUARTER);
    /// Emails with codes for the portal, unless one of the codes was used.
    pub const CODE_EMAIL_PER_IDENTITY: Self = after_first(30, HOUR);
    pub const CODE_EMAIL_PER_MAILBOX: Self = after_first(60, HOUR);

    /// When what is counted now expires.
    pub fn expires_at(self, now: UnixMillis) -> UnixMillis {
        now.after(self.window)
    }

    /// What expires later than this was counted by a clock that was wrong, and counts no more.
    pub fn latest_expiry(self, now: UnixMillis) -> UnixMillis {
        self.expires_at(now).after(CLOCK_SKEW)
    }

    /// What is stored, if it still counts.
    pub fn current(self, stored: Option<ThrottleCount>, now: UnixMillis) -> Option<ThrottleCount> {
        stored.filter(|stored| stored.expires_at > now && stored.expires_at <= self.latest_expiry(now))
    }

    /// Counts one more; what is allowed takes the place of what was stored.
    pub fn count(self, stored: Option<ThrottleCount>, now: UnixMillis) -> ThrottleDecision {
        let first = ThrottleCount { count: 0, expires_at: self.expires_at(now) };
        let current = self.current(stored, now).unwrap_or(first);
        if self.left(current) == 0 {
            return ThrottleDecision::Denied(current);
        }
        let expires_at = match self.expiry {
            ThrottleExpiry::AfterFirst => current.expires_at,
            ThrottleExpiry::AfterLast => first.expires_at,
        };
        ThrottleDecision::Allowed(ThrottleCount { count: current.count + 1, expires_at })
    }

    pub fn left(self, count: ThrottleCount) -> u32 {
        self.limit.saturating_sub(count.count)
    }
}

impl ThrottleCount {
    /// For what did no harm after all. The expiry stays.
    pub fn refund(self, amount: u32) -> Self {
        Self { count: self.count.saturating_sub(amount), ..self }
    }
}

const _: () = assert!(Throttle::CODE_PER_SUBNET_AND_DAY.limit < Throttle::CODE_PER_DAY.limit);
const _: () = assert!(Throttle::PASSWORD_PER_ADDRESS_AND_SUBNET.limit < Throttle::PASSWORD_PER_ADDRESS.limit);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The times of some attempts, in order, in milliseconds.
    fn times() -> impl Strategy<Value = Vec<i64>> {
        let pauses = proptest::collection::vec(0_i64..400_000, 1..60);
        pauses.prop_map(|pauses| {
            pauses
                .into_iter()
                .scan(1_000, |now, pause| {
                    *now += pause;
                    Some(*now)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn no_window_that_begins_with_the_first_allows_more_than_the_limit(times in times()) {
            let throttle = Throttle::CODE_PER_ADDRESS_AND_SUBNET;
            let (mut stored, mut allowed) = (None, Vec::new());
            for now in times.into_iter().map(UnixMillis) {
                match throttle.count(stored, now) {
                    ThrottleDecision::Allowed(count) => {
                        stored = Some(count);
                        allowed.push((now, count));
                    }
                    ThrottleDecision::Denied(count) => {
                        prop_assert_eq!(Some(count), stored);
                        prop_assert_eq!(count.count, throttle.limit);
                        prop_assert!(count.expires_at > now);
                    }
                }
            }
            for (now, count) in &allowed {
                prop_assert!(count.count <= throttle.limit && count.expires_at > *now);
                let of_window = allowed.iter().filter(|(_, other)| other.expires_at == count.expires_at);
                prop_assert!(of_window.count() <= throttle.limit as usize);
            }
        }

        #[test]
        fn a_lockout_ends_a_window_after_the_last_that_was_counted(times in times()) {
            let throttle = Throttle::WRONG_CODE_PER_IDENTITY;
            let (mut stored, mut last) = (None, UnixMillis(0));
            for now in times.into_iter().map(UnixMillis) {
                match throttle.count(stored, now) {
                    ThrottleDecision::Allowed(count) => {
                        prop_assert_eq!(count.expires_at, throttle.expires_at(now));
                        (stored, last) = (Some(count), now);
                    }
                    ThrottleDecision::Denied(count) => prop_assert_eq!(count.expires_at, throttle.expires_at(last)),
                }
            }
        }
    }

    #[test]
    fn a_count_from_a_clock_far_ahead_is_over_and_one_a_little_ahead_counts() {
        let (throttle, now) = (Throttle::CODE_PER_PROOF, UnixMillis(1_000_000));
        let ahead = |by_ms: i64| {
            let expires_at = throttle.expires_at(UnixMillis(now.0 + by_ms));
            throttle.current(Some(ThrottleCount { count: 5, expires_at }), now)
        };
        assert!(ahead(60_000).is_some());
        assert_eq!(ahead(60_001), None);
    }
}
