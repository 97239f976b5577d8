//! Throttles for attempts and emails: what is counted (`key`), the limits and how they decide (`rule`), and the lockout policy
//! of emailed codes (`second_factor`). The store keeps the counts.

mod key;
mod rule;
mod second_factor;

pub use key::{AttemptKind, AttemptOrigin, ThrottleKey};
pub use rule::{
    MAX_FIRST_CODES, MAX_FIRST_EMAILS, MAX_FIRST_PASSWORDS, Throttle, ThrottleCount, ThrottleDecision,
    ThrottleExpiry,
};
pub use second_factor::{
    CODE_EMAIL_INTERVAL, CODE_EMAIL_WINDOW, CodeCounts, CodeEmailDenied, CodeOwner,
    FAILED_CODE_EMAIL_INTERVAL, MAX_CODE_EMAILS_PER_IDENTITY, MAX_CODE_EMAILS_PER_IDENTITY_AND_DAY,
    MAX_CODE_EMAILS_PER_MAILBOX, MAX_CODE_EMAILS_PER_MAILBOX_AND_DAY, MAX_CODE_EMAILS_PER_SIGN_IN,
    MAX_WRONG_CODES, MAX_WRONG_CODES_PER_MAILBOX, WRONG_CODE_LOCKOUT,
};
