//! Every bound of the provider's people side, in one place: passwords, sessions, codes, letters and tries.

use chancery_domain::SessionTimes;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const QUARTER: Duration = Duration::from_secs(15 * 60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// NIST SP 800-63B asks for 8 characters beside a second factor and 15 without. Here the firm chooses whether there is a
/// second factor, guesses are few (`PASSWORD_TRIES_FROM_PLACE`), and the commonest passwords are refused, so ten is enough against
/// guessing and still short enough to be typed.
pub(crate) const MIN_PASSWORD_CHARS: usize = 10;
/// Room for any phrase; more would only be work for the hash.
pub(crate) const MAX_PASSWORD_CHARS: usize = 128;

/// OWASP's parameters for argon2id: 19 MiB, two passes, one lane.
pub(crate) const ARGON2_MEMORY_KIB: u32 = 19_456;
pub(crate) const ARGON2_PASSES: u32 = 2;
pub(crate) const ARGON2_LANES: u32 = 1;
pub(crate) const SALT_BYTES: usize = 16;
/// Each takes `ARGON2_MEMORY_KIB` and a core.
pub(crate) const HASHES_AT_ONCE: usize = 4;
/// Whoever does not get a turn within this is refused: a queue that grows would only make everybody wait.
pub(crate) const HASH_PATIENCE: Duration = Duration::from_secs(5);

/// A browser's session with the provider. It is no longer than the portal's own, or ending that one idle would mean nothing.
pub(crate) const SESSION_TIMES: SessionTimes =
    SessionTimes { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3_600) };

/// How long a code from a mail works.
pub(crate) const CODE_LASTS: Duration = Duration::from_secs(600);
/// Letters with a code for one sign-up or one new password, the first included.
pub(crate) const CODES_PER_PROOF: u32 = 3;
/// Between two of them.
pub(crate) const RESEND_PAUSE: Duration = Duration::from_secs(30);
/// Letters on their way to the mail server at once.
pub(crate) const LETTERS_AT_ONCE: usize = 32;
/// How long others wait for their turn, after the reply has left; then they are dropped.
pub(crate) const LETTER_PATIENCE: Duration = MINUTE;

/// So many in so long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub attempts: u32,
    pub within: Duration,
}

const fn bound(attempts: u32, within: Duration) -> Bound {
    Bound { attempts, within }
}

/// Passwords for one address from one place, whether it has an account or not.
pub(crate) const PASSWORD_TRIES_FROM_PLACE: Bound = bound(10, QUARTER);
/// Passwords for one address from everywhere. Whoever wants to lock somebody out must come from several places.
pub(crate) const PASSWORD_TRIES: Bound = bound(50, QUARTER);
pub(crate) const PASSWORD_TRIES_A_DAY: Bound = bound(200, DAY);
/// Wrong passwords and wrong codes from one place. A whole office may sit behind one.
pub(crate) const TRIES_FROM_PLACE: Bound = bound(100, QUARTER);
/// Codes for one sign-up or one new password, over all its letters; then it is destroyed.
pub(crate) const CODE_TRIES_OF_PROOF: Bound = bound(5, HOUR);
/// Codes for one address from one place, over everything that waits for one.
pub(crate) const CODE_TRIES_FROM_PLACE: Bound = bound(5, QUARTER);
pub(crate) const CODE_TRIES_FROM_PLACE_A_DAY: Bound = bound(15, DAY);
/// Codes for one address from everywhere.
pub(crate) const CODE_TRIES: Bound = bound(25, QUARTER);
/// The same over a day, so that patience does not make up for it: sixty guesses a day at one of a million.
pub(crate) const CODE_TRIES_A_DAY: Bound = bound(60, DAY);
/// Letters with codes to one address, asked for from one place, and from everywhere.
pub(crate) const LETTERS_TO_ADDRESS_FROM_PLACE: Bound = bound(6, HOUR);
pub(crate) const LETTERS_TO_ADDRESS: Bound = bound(18, HOUR);
/// Letters that tell one mailbox of too many tries.
pub(crate) const LOCKOUT_LETTERS: Bound = bound(3, DAY);
/// Letters with codes that one place asked for.
pub(crate) const LETTERS_FROM_PLACE: Bound = bound(30, HOUR);

/// Consent pages shown to one account, and codes for applications given to it, so that no one person fills the database.
pub(crate) const CONSENT_QUESTIONS: Bound = bound(100, HOUR);
pub(crate) const CODES_FOR_APPLICATIONS: Bound = bound(100, MINUTE.saturating_mul(10));

/// How often what is over is removed, and how much at a time.
pub(crate) const TIDYING_PAUSE: Duration = MINUTE;
pub(crate) const TIDYING_BATCH: u32 = 1_000;

// A proof's tries are remembered for as long as it can live.
const _: () = assert!(CODE_TRIES_OF_PROOF.within.as_secs() >= CODE_LASTS.as_secs() * CODES_PER_PROOF as u64);
const _: () = assert!(CODE_TRIES_FROM_PLACE_A_DAY.attempts < CODE_TRIES_A_DAY.attempts);
const _: () = assert!(PASSWORD_TRIES_FROM_PLACE.attempts < PASSWORD_TRIES.attempts);
const _: () = assert!(CODES_PER_PROOF <= LETTERS_TO_ADDRESS_FROM_PLACE.attempts);
