//! Every bound of the provider's people side but those on attempts, which are `chancery_domain::Throttle`'s: passwords, sessions,
//! codes and emails.

use chancery_domain::{SessionTimes, Throttle};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// NIST SP 800-63B asks for 8 characters beside a second factor and 15 without. Here the firm chooses whether there is a
/// second factor, guesses are few (`Throttle::PASSWORD_PER_ADDRESS_AND_SUBNET`), and the commonest passwords are refused, so ten is enough against
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

/// How often what is over is removed, and how much at a time.
pub(crate) const TIDYING_PAUSE: Duration = MINUTE;
pub(crate) const TIDYING_BATCH: u32 = 1_000;

// A proof's attempts are remembered for as long as it can live.
const _: () =
    assert!(Throttle::CODE_PER_PROOF.window.as_secs() >= CODE_LASTS.as_secs() * CODES_PER_PROOF as u64);
const _: () = assert!(CODES_PER_PROOF <= Throttle::EMAIL_PER_ADDRESS_AND_SUBNET.limit);
