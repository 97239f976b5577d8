//! How many sign-ins are begun: each is a row until it is finished or ten minutes old, and beginning one needs no proof of
//! anything. The bounds are far above what people do, even all of a firm behind one address; they are for floods.
//!
//! 1. One place may begin `MAX_FROM_ONE_PLACE` in a window.
//! 2. When all places together have begun `MAX_FROM_ALL`, those that have begun more than a few themselves are refused, and
//!    no others: a flood from many places must not keep people out who come from none of them.
//! 3. Places beyond `MAX_PLACES` are let through uncounted. What they begin, upkeep bounds (`MAX_SIGN_INS`).

use chancery_domain::neighbourhood;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// As long as a sign-in may take.
const WINDOW: Duration = Duration::from_secs(10 * 60);
/// From one place; a firm, or a proxy, may be one place.
const MAX_FROM_ONE_PLACE: u32 = 3_000;
const MAX_FROM_ALL: u32 = 50_000;
/// What a place may begin however many the others have begun.
const ALWAYS_FROM_ONE_PLACE: u32 = 20;
/// Places that are counted.
const MAX_PLACES: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct SignInsBegun(Mutex<Option<Window>>);

#[derive(Debug)]
struct Window {
    started_at: Instant,
    from_all: u32,
    from: HashMap<String, u32>,
}

/// Too many; there is room again after this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flood {
    pub(crate) retry_after_s: u32,
}

impl SignInsBegun {
    /// Counts one more from this IP address.
    pub(crate) fn count(&self, place: &str, now: Instant) -> Result<(), Flood> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |window: &mut Window| now.saturating_duration_since(window.started_at) >= WINDOW;
        if window.as_mut().is_none_or(is_over) {
            *window = None;
        }
        let window =
            window.get_or_insert_with(|| Window { started_at: now, from_all: 0, from: HashMap::new() });
        let place = place_of(place);
        let from_here = window.from.get(&place).copied().unwrap_or(0);
        let bound = if window.from_all < MAX_FROM_ALL { MAX_FROM_ONE_PLACE } else { ALWAYS_FROM_ONE_PLACE };
        if from_here >= bound {
            let left = WINDOW.saturating_sub(now.saturating_duration_since(window.started_at));
            return Err(Flood { retry_after_s: u32::try_from(left.as_secs() + 1).unwrap_or(u32::MAX) });
        }
        if from_here > 0 || window.from.len() < MAX_PLACES {
            window.from.insert(place, from_here + 1);
        }
        window.from_all = window.from_all.saturating_add(1);
        Ok(())
    }
}

/// What is no address, which no listener says, is a place by itself.
fn place_of(text: &str) -> String {
    text.parse().map_or_else(|_| text.to_owned(), |address: IpAddr| neighbourhood(address).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Clock, ManualClock, UnixMillis};

    #[test]
    fn a_flood_from_one_place_is_stopped_and_nobody_else_notices() {
        let clock = ManualClock::at(UnixMillis(1_800_000_000_000));
        let begun = SignInsBegun::default();
        for _ in 0..MAX_FROM_ONE_PLACE {
            assert_eq!(begun.count("2001:db8::1", clock.monotonic()), Ok(()));
        }
        clock.advance(Duration::from_secs(60));
        assert_eq!(begun.count("2001:db8::ffff", clock.monotonic()), Err(Flood { retry_after_s: 541 }));
        assert_eq!(begun.count("2001:db8:1::1", clock.monotonic()), Ok(()));
        assert_eq!(begun.count("192.0.2.1", clock.monotonic()), Ok(()));
        clock.advance(Duration::from_secs(541));
        assert_eq!(begun.count("2001:db8::1", clock.monotonic()), Ok(()), "waiting as long as it was told");
    }

    #[test]
    fn a_flood_from_everywhere_is_stopped_and_does_not_keep_others_out() {
        let clock = ManualClock::at(UnixMillis(1_800_000_000_000));
        let (now, begun) = (clock.monotonic(), SignInsBegun::default());
        let places = 100;
        for number in 0..MAX_FROM_ALL {
            assert_eq!(begun.count(&format!("192.0.2.{}", number % places), now), Ok(()), "{number}");
        }
        for number in 0..places {
            assert!(begun.count(&format!("192.0.2.{number}"), now).is_err(), "{number} has begun many");
        }
        for number in 0..ALWAYS_FROM_ONE_PLACE {
            assert_eq!(begun.count("198.51.100.1", now), Ok(()), "{number}");
        }
        assert!(begun.count("198.51.100.1", now).is_err());
        clock.advance(WINDOW);
        assert_eq!(begun.count("198.51.100.1", clock.monotonic()), Ok(()));
    }

    #[test]
    fn however_many_places_there_are_only_so_many_are_remembered_and_the_next_is_let_in() {
        let now = ManualClock::at(UnixMillis(1_800_000_000_000)).monotonic();
        let begun = SignInsBegun::default();
        for number in 0..MAX_PLACES + 10 {
            assert_eq!(begun.count(&number.to_string(), now), Ok(()), "{number}");
        }
        assert_eq!(begun.0.lock().unwrap().as_ref().unwrap().from.len(), MAX_PLACES);
    }
}
