//! The lockout policy of the portal's second factor. An attacker who knows a password can guess emailed codes. So wrong codes
//! and emails are counted per identity over all its sign-ins, and with larger limits per mailbox: a provider that does not
//! verify addresses lets anyone create any number of identities that claim one mailbox.

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
    pub fn wrong_codes(self) -> [ThrottleKey<'a>; 2] {
        [ThrottleKey::WrongCodePerIdentity(self.identity), ThrottleKey::WrongCodePerMailbox(self.mailbox)]
    }

    pub fn emails(self) -> [ThrottleKey<'a>; 2] {
        [ThrottleKey::CodeEmailPerIdentity(self.identity), ThrottleKey::CodeEmailPerMailbox(self.mailbox)]
    }
}

/// The counts of an owner, in the order of its keys.
#[derive(Clone, Copy, Debug)]
pub struct CodeCounts {
    pub wrong_codes: [ThrottleCount; 2],
    pub emails: [ThrottleCount; 2],
}

/// Why no email with a code may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeEmailDenied {
    /// Too many wrong codes were entered.
    LockedOut { until: UnixMillis },
    /// Too many emails were sent without a code being used.
    TooMany { until: UnixMillis },
}

impl CodeCounts {
    pub fn check_email_allowed(&self) -> Result<(), CodeEmailDenied> {
        let [identity, mailbox] = self.wrong_codes;
        let [to_identity, to_mailbox] = self.emails;
        let checks = [
            (Throttle::WRONG_CODE_PER_IDENTITY, identity, Throttle::CODE_EMAIL_PER_IDENTITY, to_identity),
            (Throttle::WRONG_CODE_PER_MAILBOX, mailbox, Throttle::CODE_EMAIL_PER_MAILBOX, to_mailbox),
        ];
        for (codes, wrong, emails, sent) in checks {
            if codes.left(wrong) == 0 {
                return Err(CodeEmailDenied::LockedOut { until: wrong.expires_at });
            }
            if emails.left(sent) == 0 {
                return Err(CodeEmailDenied::TooMany { until: sent.expires_at });
            }
        }
        Ok(())
    }

    /// How many more wrong codes are allowed. At zero, all sign-ins of the identity are deleted.
    pub fn remaining_attempts(&self) -> u32 {
        let [identity, _] = self.wrong_codes;
        Throttle::WRONG_CODE_PER_IDENTITY.left(identity).min(self.remaining_mailbox_attempts())
    }

    /// At zero, all sign-ins of the mailbox are deleted.
    pub fn remaining_mailbox_attempts(&self) -> u32 {
        let [_, mailbox] = self.wrong_codes;
        Throttle::WRONG_CODE_PER_MAILBOX.left(mailbox)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(wrong_codes: [u32; 2], emails: [u32; 2]) -> CodeCounts {
        let count = |count| ThrottleCount { count, expires_at: UnixMillis(i64::from(count)) };
        CodeCounts { wrong_codes: wrong_codes.map(count), emails: emails.map(count) }
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
}
