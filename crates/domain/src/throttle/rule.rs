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

/// How many attempts of one subnet for one address are its first ones, see `Throttle`.
pub const MAX_FIRST_PASSWORDS: u32 = 3;
pub const MAX_FIRST_CODES: u32 = 2;
pub const MAX_FIRST_EMAILS: u32 = 1;

/// Attempts for an address are limited in three ways, so that guessing is hopeless and yet cannot lock the owner out:
///
/// 1. **Per subnet**, with a tight limit for a quarter of an hour and one for a day.
/// 2. **From everywhere.** The first few attempts of each subnet (`MAX_FIRST_…`) have a limit of their own. After it is
///    used up, they count as further ones. Attackers who use up the further attempts have not used up the first ones of
///    the owner, whose subnet takes no part in the attack.
/// 3. **Per known device** instead of all that: a browser in which the owner has signed in before. Strangers do not have
///    its cookie, so nothing that they do counts against it.
///
/// All unknown devices together get at most `MAX_PASSWORDS_PER_DAY` and `MAX_CODES_PER_DAY` guesses in a window of a day.
impl Throttle {
    /// Passwords for one address, whether it has an account or not.
    pub const PASSWORD_PER_ADDRESS_AND_SUBNET: Self = after_first(10, QUARTER_HOUR);
    pub const PASSWORD_PER_SUBNET_AND_DAY: Self = after_first(30, DAY);
    pub const FIRST_PASSWORD_PER_DAY: Self = after_first(300, DAY);
    pub const PASSWORD_PER_ADDRESS: Self = after_first(50, QUARTER_HOUR);
    pub const PASSWORD_PER_DAY: Self = after_first(200, DAY);
    pub const PASSWORD_PER_DEVICE: Self = after_first(10, QUARTER_HOUR);
    pub const PASSWORD_PER_DEVICE_AND_DAY: Self = after_first(30, DAY);
    pub const MAX_PASSWORDS_PER_DAY: u32 = Self::FIRST_PASSWORD_PER_DAY.limit + Self::PASSWORD_PER_DAY.limit;
    /// Wrong passwords and wrong codes. A whole office may share one subnet.
    pub const ATTEMPT_PER_SUBNET: Self = after_first(100, QUARTER_HOUR);
    /// Codes for one sign-up or password reset, over all its emails; then it is deleted.
    pub const CODE_PER_PROOF: Self = after_first(5, HOUR);
    /// Codes for one address, over everything that is waiting for a code.
    pub const CODE_PER_ADDRESS_AND_SUBNET: Self = after_first(5, QUARTER_HOUR);
    pub const CODE_PER_SUBNET_AND_DAY: Self = after_first(15, DAY);
    pub const FIRST_CODE_PER_DAY: Self = after_first(60, DAY);
    pub const CODE_PER_ADDRESS: Self = after_first(25, QUARTER_HOUR);
    pub const CODE_PER_DAY: Self = after_first(60, DAY);
    pub const CODE_PER_DEVICE: Self = after_first(5, QUARTER_HOUR);
    pub const CODE_PER_DEVICE_AND_DAY: Self = after_first(15, DAY);
    /// Out of a million codes.
    pub const MAX_CODES_PER_DAY: u32 = Self::FIRST_CODE_PER_DAY.limit + Self::CODE_PER_DAY.limit;
    /// Codes of an authenticator app, after a correct password. Three codes are valid at a time.
    pub const SECOND_FACTOR_PER_ACCOUNT_AND_SUBNET: Self = after_first(5, QUARTER_HOUR);
    pub const SECOND_FACTOR_PER_ACCOUNT: Self = after_first(25, QUARTER_HOUR);
    pub const SECOND_FACTOR_PER_DAY: Self = after_first(60, DAY);
    pub const SECOND_FACTOR_PER_DEVICE: Self = after_first(5, QUARTER_HOUR);
    pub const SECOND_FACTOR_PER_DEVICE_AND_DAY: Self = after_first(15, DAY);
    /// Sign-ins with a passkey that were begun. A whole office may share one subnet.
    pub const PASSKEY_CHALLENGE_PER_SUBNET: Self = after_first(300, QUARTER_HOUR);
    pub const PASSKEY_CHALLENGE_PER_DEVICE: Self = after_first(60, Duration::from_secs(600));
    /// Emails with codes.
    pub const EMAIL_PER_ADDRESS_AND_SUBNET: Self = after_first(6, HOUR);
    pub const FIRST_EMAIL_PER_ADDRESS: Self = after_first(24, HOUR);
    pub const EMAIL_PER_ADDRESS: Self = after_first(12, HOUR);
    pub const EMAIL_PER_DEVICE: Self = after_first(6, HOUR);
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
    /// The same in a day, so that guessing on and on is hopeless too: at most 60 of a million codes.
    pub const WRONG_CODE_PER_IDENTITY_AND_DAY: Self = after_first(30, DAY);
    pub const WRONG_CODE_PER_MAILBOX_AND_DAY: Self = after_first(60, DAY);
    /// Emails with codes for the portal. A correct code resets the count.
    pub const CODE_EMAIL_PER_IDENTITY: Self = after_first(30, HOUR);
    pub const CODE_EMAIL_PER_MAILBOX: Self = after_first(60, HOUR);
    /// Daily limits that no correct code resets: whoever knows a password cannot fill a mailbox with codes. A working day of
    /// eight hours with a sign-in after each idle timeout of 30 minutes, and as many step-ups, needs 32. Daily limits of a
    /// mailbox do not hold for an identity that belongs to a person (`CodeCounts`).
    pub const CODE_EMAIL_PER_IDENTITY_AND_DAY: Self = after_first(40, DAY);
    pub const CODE_EMAIL_PER_MAILBOX_AND_DAY: Self = after_first(80, DAY);
    /// Invitations to one mailbox.
    pub const INVITATION_EMAIL: Self = after_first(5, DAY);
    /// Exports of one person: clients, invoices and the audit log. An export may have every record that the person may read,
    /// so a few are enough for any work, and someone who took over a session cannot copy the firm's data again and again.
    pub const EXPORT_PER_PERSON: Self = after_first(20, HOUR);
    pub const EXPORT_PER_PERSON_AND_DAY: Self = after_first(60, DAY);
    /// Letters that one person emails to clients. More than anyone writes in a day, and too few to send spam in the firm's
    /// name from a session that was taken over.
    pub const LETTER_PER_PERSON_AND_DAY: Self = after_first(50, DAY);

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
const _: () = assert!(Throttle::PASSWORD_PER_SUBNET_AND_DAY.limit < Throttle::PASSWORD_PER_DAY.limit);
const _: () = assert!(Throttle::EXPORT_PER_PERSON.limit < Throttle::EXPORT_PER_PERSON_AND_DAY.limit);
// One subnet's first attempts must not use up the first attempts of all.
const _: () = assert!(MAX_FIRST_PASSWORDS * 50 <= Throttle::FIRST_PASSWORD_PER_DAY.limit);
const _: () = assert!(MAX_FIRST_CODES * 20 <= Throttle::FIRST_CODE_PER_DAY.limit);
const _: () = assert!(MAX_FIRST_EMAILS * 20 <= Throttle::FIRST_EMAIL_PER_ADDRESS.limit);

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
