//! Limits of the provider's pages: passwords, second factors, sessions, codes and emails. Limits on attempts are in
//! `chancery_domain::Throttle`.

use chancery_domain::{SessionTimeouts, Throttle};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// NIST SP 800-63B requires 8 characters with a second factor and 15 without. Here the firm chooses whether to use a
/// second factor, guesses are throttled (`Throttle::PASSWORD_PER_ADDRESS_AND_SUBNET`), and the most common passwords
/// are rejected. Ten is therefore enough against guessing and still easy to type.
pub(crate) const MIN_PASSWORD_CHARS: usize = 10;
/// Enough for any passphrase. More would only cost hashing time.
pub(crate) const MAX_PASSWORD_CHARS: usize = 128;
/// Shorter words of names and addresses are in too many other words.
pub(crate) const MIN_CONTEXT_WORD_CHARS: usize = 3;

/// OWASP's parameters for argon2id: 19 MiB, two passes, one lane.
pub(crate) const ARGON2_MEMORY_KIB: u32 = 19_456;
pub(crate) const ARGON2_PASSES: u32 = 2;
pub(crate) const ARGON2_LANES: u32 = 1;
pub(crate) const SALT_BYTES: usize = 16;
/// Each hash takes `ARGON2_MEMORY_KIB` and a core.
pub(crate) const MAX_CONCURRENT_HASHES: usize = 4;
/// A request that gets no permit within this time is rejected: a growing queue would only make everyone wait.
pub(crate) const HASH_QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// A browser's session with the provider. It is no longer than the portal's session; otherwise the portal's idle
/// timeout would be meaningless.
pub(crate) const SESSION_TIMES: SessionTimeouts =
    SessionTimeouts { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3_600) };

/// How long a browser stays known after a sign-in. The store keeps `MAX_KNOWN_DEVICES` of each account.
pub(crate) const KNOWN_DEVICE_TTL: Duration = Duration::from_secs(180 * 24 * 3_600);

/// How long an email without a code is sent again while the mail server does not accept it.
pub(crate) const NOTICE_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an emailed code is valid.
pub(crate) const EMAIL_CODE_TTL: Duration = Duration::from_secs(600);
/// Emails with a code per sign-up or password reset, including the first.
pub(crate) const MAX_CODES_PER_PROOF: u32 = 3;
/// Minimum time between two of these emails.
pub(crate) const RESEND_INTERVAL: Duration = Duration::from_secs(30);
/// An email is not sent when its code is valid for less than this.
const CODE_EMAIL_MARGIN: Duration = Duration::from_secs(120);
/// How long an email with a code is sent again while the mail server does not accept it.
pub(crate) const CODE_EMAIL_TTL: Duration = EMAIL_CODE_TTL.saturating_sub(CODE_EMAIL_MARGIN);

/// Changes on the security page need an authentication that is younger than this.
pub(crate) const FRESH_AUTHENTICATION: Duration = Duration::from_secs(5 * 60);
/// How long a sign-in with a correct password waits for its second factor.
pub(crate) const SECOND_FACTOR_TTL: Duration = Duration::from_secs(10 * 60);
/// How long a browser may take to add or use a factor.
pub(crate) const CEREMONY_TTL: Duration = Duration::from_secs(10 * 60);
/// How long a browser waits for a passkey. It is shorter than the ceremony.
pub(crate) const PASSKEY_TIMEOUT: Duration = Duration::from_secs(5 * 60);
pub(crate) const MAX_PASSKEY_NAME_CHARS: usize = 60;

/// RFC 4226 recommends 160 bits.
pub(crate) const TOTP_SECRET_BYTES: usize = 20;
pub(crate) const TOTP_DIGITS: usize = 6;
pub(crate) const TOTP_STEP_S: i64 = 30;
/// A code is also accepted one step earlier or later, because clocks differ and people type slowly.
pub(crate) const TOTP_TOLERANCE_STEPS: i64 = 1;

pub(crate) const RECOVERY_CODES: usize = 10;
/// Of 32 characters: 80 bits, so that a stolen hash cannot be reversed.
pub(crate) const RECOVERY_CODE_CHARS: usize = 16;

/// How often expired rows are deleted, and how many at a time.
pub(crate) const MAINTENANCE_INTERVAL: Duration = MINUTE;
pub(crate) const MAINTENANCE_BATCH_ROWS: u32 = 1_000;

const _: () = assert!(!CODE_EMAIL_TTL.is_zero());
// Attempts are remembered for as long as a proof can last.
const _: () = assert!(
    Throttle::CODE_PER_PROOF.window.as_secs() >= EMAIL_CODE_TTL.as_secs() * MAX_CODES_PER_PROOF as u64
);
const _: () = assert!(PASSKEY_TIMEOUT.as_secs() <= CEREMONY_TTL.as_secs());
const _: () = assert!(MAX_CODES_PER_PROOF <= Throttle::EMAIL_PER_ADDRESS_AND_SUBNET.limit);
