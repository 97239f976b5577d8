//! When a failed message is sent again.

use crate::limits::{FIRST_RETRY, MAX_RETRY, RETRY_FACTOR};
use chancery_domain::{Randomness, UnixMillis};
use std::time::Duration;

/// When the next attempt is, after `attempt` attempts. Waits grow exponentially, with up to a tenth more at random, so
/// that messages that failed together are not all sent again together. The last attempt is at the expiry; `None` after
/// it.
pub(crate) fn next_attempt(
    attempt: u32,
    now: UnixMillis,
    expires_at: UnixMillis,
    randomness: &dyn Randomness,
) -> Option<UnixMillis> {
    if now >= expires_at {
        return None;
    }
    let factor = RETRY_FACTOR.saturating_pow(attempt.saturating_sub(1));
    let wait = FIRST_RETRY.saturating_mul(factor).min(MAX_RETRY);
    let tenth_ms = u64::try_from(wait.as_millis() / 10).unwrap_or(u64::MAX);
    let jitter = Duration::from_millis(randomness.next_u64() % (tenth_ms + 1));
    Some(now.after(wait + jitter).min(expires_at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ALERT_LIFETIME;
    use chancery_domain::SeededRandomness;

    #[test]
    fn retries_back_off_and_end_after_24_hours() {
        let randomness = SeededRandomness::new(5);
        let start = UnixMillis(1_800_000_000_000);
        let expires_at = start.after(ALERT_LIFETIME);
        let (mut now, mut attempt, mut waits) = (start, 1, Vec::new());
        while let Some(next) = next_attempt(attempt, now, expires_at, &randomness) {
            waits.push(next.0 - now.0);
            (now, attempt) = (next, attempt + 1);
        }
        assert_eq!(now, expires_at, "the last attempt is 24 hours after the first");
        assert!((5_000..=5_500).contains(&waits[0]), "{waits:?}");
        assert!((15_000..=16_500).contains(&waits[1]), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= 4 * 3_600_000 * 11 / 10), "{waits:?}");
        assert!((10..=16).contains(&waits.len()), "{waits:?}");
    }

    #[test]
    fn many_attempts_do_not_overflow() {
        let now = UnixMillis(0);
        let far = UnixMillis(i64::MAX);
        let next = next_attempt(u32::MAX, now, far, &SeededRandomness::new(5)).unwrap();
        assert!(next.0 <= 4 * 3_600_000 * 11 / 10, "{next:?}");
    }
}
