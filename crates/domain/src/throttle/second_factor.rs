//! The lockout policy of the portal's second factor. An attacker who knows a password can guess emailed codes. So wrong codes
//! and emails are counted per identity over all its sign-ins, and with larger limits per mailbox: a provider that does not
//! verify addresses lets anyone create any number of identities that claim one mailbox. Both have limits in a day too. Those
//! of the mailbox do not hold for an identity that belongs to a person, so that the others cannot lock the person out.

use crate::throttle::{Throttle, ThrottleCount, ThrottleKey};
use crate::{EmailAddress, Identity, UnixMillis};
use std::time::Duration;

/// For user-visible text and tests.
pub const MAX_WRONG_CODES: u32 = Throttle::WRONG_CODE_PER_IDENTITY.limit;
pub const MAX_WRONG_CODES_PER_MAILBOX: u32 = Throttle::WRONG_CODE_PER_MAILBOX.limit;
/// How long an identity that used up its wrong codes is locked out.
pub const WRONG_CODE_LOCKOUT: Duration = Throttle::WRONG_CODE_PER_IDENTITY.window;
pub const MAX_CODE_EMAILS_PER_IDENTITY: u32 = Throttle::CODE_EMAIL_PER_IDENTITY.limit;
pub const MAX_CODE_EMAILS_PER_MAILBOX: u32 = Throttle::CODE_EMAIL_PER_MAILBOX.limit;
/// Correct codes do not reset these.
pub const MAX_CODE_EMAILS_PER_IDENTITY_AND_DAY: u32 = Throttle::CODE_EMAIL_PER_IDENTITY_AND_DAY.limit;
pub const MAX_CODE_EMAILS_PER_MAILBOX_AND_DAY: u32 = Throttle::CODE_EMAIL_PER_MAILBOX_AND_DAY.limit;
pub const CODE_EMAIL_WINDOW: Duration = Throttle::CODE_EMAIL_PER_IDENTITY.window;

/// Emails per sign-in, including the first.
pub const MAX_CODE_EMAILS_PER_SIGN_IN: u32 = 5;
/// Pause between two emails of one sign-in; longer than a mail server may take to accept one.
pub const CODE_EMAIL_INTERVAL: Duration = Duration::from_secs(30);
/// Pause after an email that the mail server did not accept.
pub const FAILED_CODE_EMAIL_INTERVAL: Duration = Duration::from_secs(5);

/// Whom codes and emails are counted for.
#[derive(Clone, Copy, Debug)]
pub struct CodeOwner<'a> {
    pub identity: &'a Identity,
    pub mailbox: &'a EmailAddress,
}

impl<'a> CodeOwner<'a> {
    /// The identity before the mailbox, the order in which all callers count.
    pub fn wrong_codes(self) -> [ThrottleKey<'a>; 4] {
        [
            ThrottleKey::WrongCodePerIdentity(self.identity),
            ThrottleKey::WrongCodePerIdentityAndDay(self.identity),
            ThrottleKey::WrongCodePerMailbox(self.mailbox),
            ThrottleKey::WrongCodePerMailboxAndDay(self.mailbox),
        ]
    }

    pub fn emails(self) -> [ThrottleKey<'a>; 2] {
        [ThrottleKey::CodeEmailPerIdentity(self.identity), ThrottleKey::CodeEmailPerMailbox(self.mailbox)]
    }

    pub fn daily_emails(self) -> [ThrottleKey<'a>; 2] {
        [
            ThrottleKey::CodeEmailPerIdentityAndDay(self.identity),
            ThrottleKey::CodeEmailPerMailboxAndDay(self.mailbox),
        ]
    }
}

/// The counts of an owner, in the order of its keys.
#[derive(Clone, Copy, Debug)]
pub struct CodeCounts {
    pub wrong_codes: [ThrottleCount; 4],
    pub emails: [ThrottleCount; 2],
    pub daily_emails: [ThrottleCount; 2],
    /// Whether the identity belongs to a person who was not removed.
    pub is_of_person: bool,
}

/// Why no email with a code may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeEmailDenied {
    /// Too many wrong codes were entered.
    LockedOut { until: UnixMillis },
    /// Too many emails were sent without a code being used.
    TooMany { until: UnixMillis },
    /// Too many emails were sent today, whether their codes were used or not.
    TooManyToday { until: UnixMillis },
}

/// Counts with their limits.
type Limits = [(Throttle, ThrottleCount); 2];

impl CodeCounts {
    pub fn check_email_allowed(&self) -> Result<(), CodeEmailDenied> {
        let email_limits = [Throttle::CODE_EMAIL_PER_IDENTITY, Throttle::CODE_EMAIL_PER_MAILBOX];
        let emails = email_limits.into_iter().zip(self.emails);
        for (codes, (limit, sent)) in self.wrong_code_limits().iter().zip(emails) {
            if let Some(until) = used_up_until(codes) {
                return Err(CodeEmailDenied::LockedOut { until });
            }
            if limit.left(sent) == 0 {
                return Err(CodeEmailDenied::TooMany { until: sent.expires_at });
            }
        }
        let [identity_today, mailbox_today] = self.daily_emails;
        let daily = [
            (Throttle::CODE_EMAIL_PER_IDENTITY_AND_DAY, identity_today),
            (Throttle::CODE_EMAIL_PER_MAILBOX_AND_DAY, self.daily_of_mailbox(mailbox_today)),
        ];
        match used_up_until(&daily) {
            Some(until) => Err(CodeEmailDenied::TooManyToday { until }),
            None => Ok(()),
        }
    }

    /// How many more wrong codes are allowed. At zero, all sign-ins of the identity are deleted.
    pub fn remaining_attempts(&self) -> u32 {
        let [identity, _] = self.wrong_code_limits();
        left(&identity).min(self.remaining_mailbox_attempts())
    }

    /// At zero, all sign-ins of the mailbox are deleted.
    pub fn remaining_mailbox_attempts(&self) -> u32 {
        let [_, mailbox] = self.wrong_code_limits();
        left(&mailbox)
    }

    /// Of the identity and of the mailbox.
    fn wrong_code_limits(&self) -> [Limits; 2] {
        let [identity, identity_today, mailbox, mailbox_today] = self.wrong_codes;
        [
            [
                (Throttle::WRONG_CODE_PER_IDENTITY, identity),
                (Throttle::WRONG_CODE_PER_IDENTITY_AND_DAY, identity_today),
            ],
            [
                (Throttle::WRONG_CODE_PER_MAILBOX, mailbox),
                (Throttle::WRONG_CODE_PER_MAILBOX_AND_DAY, self.daily_of_mailbox(mailbox_today)),
            ],
        ]
    }

    /// What a daily count of the mailbox counts for this identity.
    fn daily_of_mailbox(&self, counted: ThrottleCount) -> ThrottleCount {
        match self.is_of_person {
            true => ThrottleCount { count: 0, ..counted },
            false => counted,
        }
    }
}

fn left(limits: &Limits) -> u32 {
    limits.iter().map(|(throttle, count)| throttle.left(*count)).min().unwrap_or(0)
}

/// When all that is used up has expired. `None` if nothing is used up.
fn used_up_until(limits: &Limits) -> Option<UnixMillis> {
    let used_up = limits.iter().filter(|(throttle, count)| throttle.left(*count) == 0);
    used_up.map(|(_, count)| count.expires_at).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the identity and of the mailbox; wrong codes are as many today as now, and no emails were sent today.
    fn counts(wrong_codes: [u32; 2], emails: [u32; 2]) -> CodeCounts {
        let [identity, mailbox] = wrong_codes;
        CodeCounts {
            wrong_codes: [identity, identity, mailbox, mailbox].map(count),
            emails: emails.map(count),
            daily_emails: [0, 0].map(count),
            is_of_person: false,
        }
    }

    fn count(count: u32) -> ThrottleCount {
        ThrottleCount { count, expires_at: UnixMillis(i64::from(count)) }
    }

    #[test]
    fn email_denial_checks_identity_first_and_codes_first() {
        let locked_out = |until| Err(CodeEmailDenied::LockedOut { until: UnixMillis(until) });
        let too_many = |until| Err(CodeEmailDenied::TooMany { until: UnixMillis(until) });
        assert_eq!(counts([4, 19], [29, 59]).check_email_allowed(), Ok(()));
        assert_eq!(counts([5, 20], [30, 60]).check_email_allowed(), locked_out(5));
        assert_eq!(counts([4, 20], [30, 60]).check_email_allowed(), too_many(30));
        assert_eq!(counts([4, 20], [29, 60]).check_email_allowed(), locked_out(20));
        assert_eq!(counts([4, 19], [29, 60]).check_email_allowed(), too_many(60));
    }

    #[test]
    fn remaining_attempts_is_minimum_of_identity_and_mailbox() {
        assert_eq!(counts([2, 2], [0, 0]).remaining_attempts(), 3);
        assert_eq!(counts([1, 18], [0, 0]).remaining_attempts(), 2);
        assert_eq!(counts([5, 6], [0, 0]).remaining_attempts(), 0);
        assert_eq!(counts([5, 6], [0, 0]).remaining_mailbox_attempts(), 14);
        assert_eq!(counts([1, 20], [0, 0]).remaining_attempts(), 0);
    }

    #[test]
    fn daily_limit_of_wrong_codes_holds_when_the_short_one_has_expired() {
        let at = |count, expires_at| ThrottleCount { count, expires_at: UnixMillis(expires_at) };
        let fresh = counts([0, 0], [0, 0]);
        let wrong_codes = [at(0, 0), at(30, 86_400), at(0, 0), at(59, 86_400)];
        let locked = CodeCounts { wrong_codes, ..fresh };
        assert_eq!((locked.remaining_attempts(), locked.remaining_mailbox_attempts()), (0, 1));
        let until = UnixMillis(86_400);
        assert_eq!(locked.check_email_allowed(), Err(CodeEmailDenied::LockedOut { until }));
        // The later of the two ends the wait.
        let wrong_codes = [at(5, 900), at(30, 86_400), at(0, 0), at(0, 0)];
        let locked = CodeCounts { wrong_codes, ..fresh };
        assert_eq!(locked.check_email_allowed(), Err(CodeEmailDenied::LockedOut { until }));
    }

    #[test]
    fn daily_limits_deny_emails_whatever_the_hourly_counts_say() {
        let with_daily = |daily: [u32; 2]| {
            CodeCounts { daily_emails: daily.map(count), ..counts([0, 0], [0, 0]) }.check_email_allowed()
        };
        let too_many = |until| Err(CodeEmailDenied::TooManyToday { until: UnixMillis(until) });
        assert_eq!(with_daily([39, 79]), Ok(()));
        assert_eq!(with_daily([40, 0]), too_many(40));
        assert_eq!(with_daily([0, 80]), too_many(80));
    }

    #[test]
    fn daily_counts_of_the_mailbox_do_not_hold_for_a_person() {
        let used_up = CodeCounts {
            wrong_codes: [0, 0, 0, 60].map(count),
            daily_emails: [0, 80].map(count),
            ..counts([0, 0], [0, 0])
        };
        assert!(used_up.check_email_allowed().is_err() && used_up.remaining_attempts() == 0);
        let person = CodeCounts { is_of_person: true, ..used_up };
        assert_eq!((person.check_email_allowed(), person.remaining_attempts()), (Ok(()), 5));
        // Everything else holds for everyone.
        let identity = CodeCounts { wrong_codes: [0, 30, 0, 0].map(count), ..person };
        assert_eq!(identity.remaining_attempts(), 0);
        let mailbox = CodeCounts { wrong_codes: [0, 0, 20, 20].map(count), ..person };
        assert_eq!(mailbox.remaining_attempts(), 0);
    }
}
