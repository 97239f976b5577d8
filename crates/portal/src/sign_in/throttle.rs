//! Limits the number of started sign-ins, and of wrong logout tokens. Each sign-in is a row until it is finished or ten
//! minutes old, and starting one needs no proof of anything. The limits are far above normal use, even for a whole firm
//! behind one address; they only stop floods.
//!
//! 1. A subnet may start `MAX_PER_SUBNET` sign-ins in a window.
//! 2. Once all subnets together have started `MAX_FOR_ALL_SUBNETS`, only subnets that have started `GUARANTEED_PER_SUBNET`
//!    themselves are rejected: a flood from many subnets must not lock out people in other ones.
//! 3. A known browser (`known_browser`) first counts in another throttle, by itself: it may start `MAX_PER_KNOWN_BROWSER`.
//! 4. Subnets beyond `MAX_TRACKED_SUBNETS` are allowed without a count of their own. Maintenance bounds their sign-ins
//!    (`MAX_SIGN_INS`).

use chancery_domain::rate_limit_subnet;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// As long as a sign-in is valid.
const WINDOW: Duration = Duration::from_secs(10 * 60);
/// High, because a whole firm or a proxy may be one subnet.
pub(crate) const MAX_PER_SUBNET: u32 = 3_000;
/// A person needs one or two. A page that sends the browser here again and again uses up no one else's.
pub(crate) const MAX_PER_KNOWN_BROWSER: u32 = 60;
const MAX_FOR_ALL_SUBNETS: u32 = 50_000;
/// What a subnet may start however many the others have started.
const GUARANTEED_PER_SUBNET: u32 = 20;
const MAX_TRACKED_SUBNETS: usize = 100_000;

#[derive(Debug)]
pub(crate) struct SignInThrottle {
    max_per_subnet: u32,
    window: Mutex<Option<Window>>,
}

#[derive(Debug)]
struct Window {
    started_at: Instant,
    from_all: u32,
    from: HashMap<String, u32>,
}

/// Too many sign-ins; retry after this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimitExceeded {
    pub(crate) retry_after_s: u32,
}

impl SignInThrottle {
    pub(crate) fn new(max_per_subnet: u32) -> Self {
        Self { max_per_subnet, window: Mutex::default() }
    }

    /// Whether one more from this IP address would be counted.
    pub(crate) fn check(&self, ip_address: &str, now: Instant) -> Result<(), RateLimitExceeded> {
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        match window.as_ref() {
            Some(window) if !window.is_over(now) => {
                window.check(&subnet_key(ip_address), self.max_per_subnet, now)
            }
            _ => Ok(()),
        }
    }

    /// Counts one more from this IP address, or from this known browser.
    pub(crate) fn count(&self, ip_address: &str, now: Instant) -> Result<(), RateLimitExceeded> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.as_ref().is_none_or(|window| window.is_over(now)) {
            *window = None;
        }
        let window =
            window.get_or_insert_with(|| Window { started_at: now, from_all: 0, from: HashMap::new() });
        let subnet = subnet_key(ip_address);
        window.check(&subnet, self.max_per_subnet, now)?;
        let from_here = window.from.get(&subnet).copied().unwrap_or(0);
        if from_here > 0 || window.from.len() < MAX_TRACKED_SUBNETS {
            window.from.insert(subnet, from_here + 1);
        }
        window.from_all = window.from_all.saturating_add(1);
        Ok(())
    }
}

impl Window {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.started_at) >= WINDOW
    }

    fn check(&self, subnet: &str, max_per_subnet: u32, now: Instant) -> Result<(), RateLimitExceeded> {
        let from_here = self.from.get(subnet).copied().unwrap_or(0);
        let limit = if self.from_all < MAX_FOR_ALL_SUBNETS { max_per_subnet } else { GUARANTEED_PER_SUBNET };
        if from_here < limit {
            return Ok(());
        }
        let left = WINDOW.saturating_sub(now.saturating_duration_since(self.started_at));
        Err(RateLimitExceeded { retry_after_s: u32::try_from(left.as_secs() + 1).unwrap_or(u32::MAX) })
    }
}

/// A known browser, and any other text that is not an IP address, counts by itself.
fn subnet_key(text: &str) -> String {
    text.parse().map_or_else(|_| text.to_owned(), |address: IpAddr| rate_limit_subnet(address).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Clock, ManualClock, UnixMillis};

    #[test]
    fn sign_ins_are_throttled_per_subnet() {
        let clock = ManualClock::at(UnixMillis(1_800_000_000_000));
        let throttle = SignInThrottle::new(MAX_PER_SUBNET);
        for _ in 0..MAX_PER_SUBNET {
            assert_eq!(throttle.count("2001:db8::1", clock.monotonic()), Ok(()));
        }
        clock.advance(Duration::from_secs(60));
        assert_eq!(
            throttle.count("2001:db8::ffff", clock.monotonic()),
            Err(RateLimitExceeded { retry_after_s: 541 })
        );
        assert_eq!(throttle.count("2001:db8:1::1", clock.monotonic()), Ok(()));
        assert_eq!(throttle.count("192.0.2.1", clock.monotonic()), Ok(()));
        clock.advance(Duration::from_secs(541));
        assert_eq!(throttle.count("2001:db8::1", clock.monotonic()), Ok(()), "after the announced wait");
    }

    #[test]
    fn global_throttle_still_admits_other_subnets() {
        let clock = ManualClock::at(UnixMillis(1_800_000_000_000));
        let (now, throttle) = (clock.monotonic(), SignInThrottle::new(MAX_PER_SUBNET));
        let subnets = 100;
        for number in 0..MAX_FOR_ALL_SUBNETS {
            assert_eq!(throttle.count(&format!("192.0.2.{}", number % subnets), now), Ok(()), "{number}");
        }
        for number in 0..subnets {
            assert!(throttle.count(&format!("192.0.2.{number}"), now).is_err(), "{number} has begun many");
        }
        for number in 0..GUARANTEED_PER_SUBNET {
            assert_eq!(throttle.count("198.51.100.1", now), Ok(()), "{number}");
        }
        assert!(throttle.count("198.51.100.1", now).is_err());
        clock.advance(WINDOW);
        assert_eq!(throttle.count("198.51.100.1", clock.monotonic()), Ok(()));
    }

    #[test]
    fn tracked_subnets_are_bounded() {
        let now = ManualClock::at(UnixMillis(1_800_000_000_000)).monotonic();
        let throttle = SignInThrottle::new(MAX_PER_SUBNET);
        for number in 0..MAX_TRACKED_SUBNETS + 10 {
            assert_eq!(throttle.count(&number.to_string(), now), Ok(()), "{number}");
        }
        assert_eq!(throttle.window.lock().unwrap().as_ref().unwrap().from.len(), MAX_TRACKED_SUBNETS);
    }
}
