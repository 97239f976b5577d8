//! The lockout policy of the portal's second factor. Codes from emails are guessed at by whoever knows a password, so wrong
//! codes, and emails, are counted for the identity over all its sign-ins, and with larger bounds for the mailbox: a provider
//! that verifies no addresses lets anybody create any number of identities that claim one mailbox.

use crate::throttle::{Throttle, ThrottleCount, ThrottleKey};
use crate::{EmailAddress, Identity, UnixMillis};
use std::time::Duration;

/// For what people read, and for tests.
pub const MAX_WRONG_CODES: u32 = Throttle::WRONG_CODE_PER_IDENTITY.limit;
pub const MAX_WRONG_CODES_PER_MAILBOX: u32 = Throttle::WRONG_CODE_PER_MAILBOX.limit;
/// How long an identity that used up its wrong codes is locked out.
pub const WRONG_CODE_MEMORY: Duration = Throttle::WRONG_CODE_PER_IDENTITY.window;
pub const MAX_EMAILS_PER_IDENTITY: u32 = Throttle::CODE_EMAIL_PER_IDENTITY.limit;
pub const MAX_EMAILS_PER_MAILBOX: u32 = Throttle::CODE_EMAIL_PER_MAILBOX.limit;
pub const EMAIL_MEMORY: Duration = Throttle::CODE_EMAIL_PER_IDENTITY.window;

/// Emails of one sign-in, the first included.
pub const MAX_EMAILS_PER_SIGN_IN: u32 = 5;
/// Between two emails of one sign-in; longer than a mail server may take for one.
pub const EMAIL_PAUSE: Duration = Duration::from_secs(30);
/// Between an email that the mail server did not take and the next one.
pub const FAILED_EMAIL_PAUSE: Duration = Duration::from_secs(5);

/// Whose codes they are.
#[derive(Clone, Copy, Debug)]
pub struct CodeOwner<'a> {
    pub identity: &'a Identity,
    pub mailbox: &'a EmailAddress,
}

impl<'a> CodeOwner<'a> {
    /// The identity's before the mailbox's, as everybody counts them.
    pub fn wrong_codes(self) -> [ThrottleKey<'a>; 2] {
        [ThrottleKey::WrongCodePerIdentity(self.identity), ThrottleKey::WrongCodePerMailbox(self.mailbox)]
    }

    pub fn emails(self) -> [ThrottleKey<'a>; 2] {
        [ThrottleKey::CodeEmailPerIdentity(self.identity), ThrottleKey::CodeEmailPerMailbox(self.mailbox)]
    }
}

/// What was counted for an owner, in the order of the keys.
#[derive(Clone, Copy, Debug)]
pub struct CodeCounts {
    pub wrong_codes: [ThrottleCount; 2],
    pub emails: [ThrottleCount; 2],
}

/// Why no email may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeEmailDenied {
    /// Too many wrong codes were typed.
    LockedOut { until: UnixMillis },
    /// Very many emails went out, and no code was used.
    TooMany { until: UnixMillis },
}

impl CodeCounts {
    pub fn may_send(&self) -> Result<(), CodeEmailDenied> {
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

    /// Codes that may still be wrong. With none left, all sign-ins of the identity are deleted.
    pub fn codes_left(&self) -> u32 {
        let [identity, _] = self.wrong_codes;
        Throttle::WRONG_CODE_PER_IDENTITY.left(identity).min(self.codes_left_for_mailbox())
    }

    /// With none left, all sign-ins of the mailbox are deleted.
    pub fn codes_left_for_mailbox(&self) -> u32 {
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
    fn an_email_is_denied_for_the_identity_before_the_mailbox_and_for_codes_before_emails() {
        let locked_out = |until| Err(CodeEmailDenied::LockedOut { until: UnixMillis(until) });
        let too_many = |until| Err(CodeEmailDenied::TooMany { until: UnixMillis(until) });
        assert_eq!(counts([4, 19], [29, 59]).may_send(), Ok(()));
        assert_eq!(counts([5, 20], [30, 60]).may_send(), locked_out(5));
        assert_eq!(counts([4, 20], [30, 60]).may_send(), too_many(30));
        assert_eq!(counts([4, 20], [29, 60]).may_send(), locked_out(20));
        assert_eq!(counts([4, 19], [29, 60]).may_send(), too_many(60));
    }

    #[test]
    fn codes_run_out_with_the_identitys_or_the_mailboxes() {
        assert_eq!(counts([2, 2], [0, 0]).codes_left(), 3);
        assert_eq!(counts([1, 18], [0, 0]).codes_left(), 2);
        assert_eq!(counts([5, 6], [0, 0]).codes_left(), 0);
        assert_eq!(counts([5, 6], [0, 0]).codes_left_for_mailbox(), 14);
        assert_eq!(counts([1, 20], [0, 0]).codes_left(), 0);
    }
}
