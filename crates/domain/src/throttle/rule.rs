//! The limits, and the reference model of how they decide. The store decides in one SQL statement, which a property test
//! compares with this model.

use crate::UnixMillis;
use std::time::Duration;

const QUARTER_HOUR: Duration = Duration::from_secs(15 * 60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// How far node clocks may differ before one node ignores another's counts.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// At most `limit` attempts per `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    pub limit: u32,
    pub window: Duration,
    pub expiry: ThrottleExpiry,
}

/// When a count expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleExpiry {
    /// One window after the first attempt: further attempts do not extend the wait.
    AfterFirst,
    /// One window after the last counted attempt.
    AfterLast,
}

/// A number of attempts, and when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleCount {
    pub count: u32,
    pub expires_at: UnixMillis,
}

/// The result of counting one more attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleDecision {
    /// The count includes this attempt.
    Allowed(ThrottleCount),
    /// The limit was already reached; this attempt was not counted.
    Denied(ThrottleCount),
}

const fn after_first(limit: u32, window: Duration) -> Throttle {
    Throttle { limit, window, expiry: ThrottleExpiry::AfterFirst }
}

const fn after_last(limit: u32, window: Duration) -> Throttle {
    Throttle { limit, window, expiry: ThrottleExpiry::AfterLast }
}

/// Attempts for an address have two limits: a tight one per subnet, so that guessing is hopeless, and a loose one over all
/// subnets, so that a stranger elsewhere cannot lock the owner out with a few wrong guesses.
impl Throttle {
    /// Passwords for one address, whether it has an account or not.
    pub const PASSWORD_PER_ADDRESS_AND_SUBNET: Self = after_first(10, QUARTER_HOUR);
    /// Locking the owner out takes attempts from several subnets.
    pub const PASSWORD_PER_ADDRESS: Self = after_first(50, QUARTER_HOUR);
    pub const PASSWORD_PER_DAY: Self = after_first(200, DAY);
    /// Wrong passwords and wrong codes. A whole office may share one subnet.
    pub const ATTEMPT_PER_SUBNET: Self = after_first(100, QUARTER_HOUR);
    /// Codes for one sign-up or password reset, over all its emails; then it is deleted.
    pub const CODE_PER_PROOF: Self = after_first(5, HOUR);
    /// Codes for one address, over everything that is waiting for a code.
    pub const CODE_PER_ADDRESS_AND_SUBNET: Self = after_first(5, QUARTER_HOUR);
    pub const CODE_PER_SUBNET_AND_DAY: Self = after_first(15, DAY);
    pub const CODE_PER_ADDRESS: Self = after_first(25, QUARTER_HOUR);
    /// A daily bound: 60 guesses a day out of a million codes.
    pub const CODE_PER_DAY: Self = after_first(60, DAY);
    /// Emails with codes.
    pub const EMAIL_PER_ADDRESS_AND_SUBNET: Self = after_first(6, HOUR);
    pub const EMAIL_PER_ADDRESS: Self = after_first(18, HOUR);
    pub const EMAIL_PER_SUBNET: Self = after_first(30, HOUR);
    /// Emails that warn one mailbox of too many attempts.
    pub const LOCKOUT_EMAIL: Self = after_first(3, DAY);
    /// Limits consent pages and authorization codes per account, so that one person cannot fill the database.
    pub const CONSENT_PAGE_PER_ACCOUNT: Self = after_first(100, HOUR);
    pub const AUTHORIZATION_CODE_PER_ACCOUNT: Self = after_first(100, Duration::from_secs(600));
    /// The marker of a redirect to sign-in works once.
    pub const SIGN_IN_REDIRECT: Self = after_first(1, HOUR);

    /// Wrong codes of one identity at the portal, over all its sign-ins; then all its sign-ins are deleted.
    pub const WRONG_CODE_PER_IDENTITY: Self = after_last(5, QUARTER_HOUR);
    /// Wrong codes for one mailbox, over all identities that claim it; then all its sign-ins are deleted.
    pub const WRONG_CODE_PER_MAILBOX: Self = after_last(20, QUARTER_HOUR);
    /// Emails with codes for the portal. A correct code resets the count.
    pub const CODE_EMAIL_PER_IDENTITY: Self = after_first(30, HOUR);
    pub const CODE_EMAIL_PER_MAILBOX: Self = after_first(60, HOUR);

    /// When a count that starts now expires.
    pub fn expires_at(self, now: UnixMillis) -> UnixMillis {
        now.after(self.window)
    }

    /// A stored expiry later than this came from a wrong clock; the count is ignored.
    pub fn latest_expiry(self, now: UnixMillis) -> UnixMillis {
        self.expires_at(now).after(CLOCK_SKEW)
    }

    /// The stored count, if it is still valid.
    pub fn current(self, stored: Option<ThrottleCount>, now: UnixMillis) -> Option<ThrottleCount> {
        stored.filter(|stored| stored.expires_at > now && stored.expires_at <= self.latest_expiry(now))
    }

    /// Counts one more attempt. An allowed count replaces the stored one.
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
    /// Gives back attempts that turned out to be harmless. The expiry stays.
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

    /// Attempt times in milliseconds, in order.
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
        fn fixed_window_never_exceeds_limit(times in times()) {
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
        fn lockout_ends_one_window_after_last_attempt(times in times()) {
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
    fn count_beyond_clock_skew_is_ignored() {
        let (throttle, now) = (Throttle::CODE_PER_PROOF, UnixMillis(1_000_000));
        let ahead = |by_ms: i64| {
            let expires_at = throttle.expires_at(UnixMillis(now.0 + by_ms));
            throttle.current(Some(ThrottleCount { count: 5, expires_at }), now)
        };
        assert!(ahead(60_000).is_some());
        assert_eq!(ahead(60_001), None);
    }
}
