//! How often something may be tried: what is counted (`key`), the bounds and how they decide (`rule`), and the lockout policy of
//! codes from emails (`second_factor`). The counts themselves are the store's.

mod key;
mod rule;
mod second_factor;

pub use key::ThrottleKey;
pub use rule::{Throttle, ThrottleCount, ThrottleDecision, ThrottleExpiry};
pub use second_factor::{
    CodeCounts, CodeEmailDenied, CodeOwner, EMAIL_MEMORY, EMAIL_PAUSE, FAILED_EMAIL_PAUSE,
    MAX_EMAILS_PER_IDENTITY, MAX_EMAILS_PER_MAILBOX, MAX_EMAILS_PER_SIGN_IN, MAX_WRONG_CODES,
    MAX_WRONG_CODES_PER_MAILBOX, WRONG_CODE_MEMORY,
};
