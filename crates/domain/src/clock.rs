//! Injected time. `SystemClock` is the only code that reads the machine's clocks.

use std::str::FromStr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Milliseconds since 1970-01-01 UTC, the representation of every stored time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct UnixMillis(pub i64);

impl UnixMillis {
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }

    /// ISO 8601 in UTC with milliseconds, as logs and JSON show it.
    pub fn to_iso(self) -> String {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => format!("{timestamp:.3}"),
            Err(_) => format!("{} ms", self.0),
        }
    }

    /// `2026-11-18 16:26 UTC`, for people. Seconds are left out.
    pub fn to_utc_minute(self) -> String {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => timestamp.strftime("%Y-%m-%d %H:%M UTC").to_string(),
            Err(_) => format!("{} ms", self.0),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid timestamp; use 2026-11-15T09:30:00Z, or an offset from UTC such as 2026-11-15T09:30:00-05:00"
)]
pub struct TimestampError;

/// Parses ISO 8601 with a UTC offset. Digits beyond milliseconds are dropped.
impl FromStr for UnixMillis {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let timestamp: jiff::Timestamp = text.parse().map_err(|_| TimestampError)?;
        Ok(Self(timestamp.as_millisecond()))
    }
}

pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time, for display and storage. It may jump.
    fn now(&self) -> UnixMillis;

    /// A clock that never runs backwards, for durations and timeouts.
    fn monotonic(&self) -> Instant;
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> UnixMillis {
        let since_epoch =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        UnixMillis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that tests set and advance manually.
#[derive(Debug)]
pub struct ManualClock {
    start: Instant,
    start_ms: i64,
    now_ms: AtomicI64,
}

impl ManualClock {
    pub fn at(now: UnixMillis) -> Self {
        Self { start: SystemClock.monotonic(), start_ms: now.0, now_ms: AtomicI64::new(now.0) }
    }

    pub fn advance(&self, by: Duration) {
        let by_ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.now_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(self.now_ms.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Instant {
        let elapsed_ms = self.now().0 - self.start_ms;
        self.start + Duration::from_millis(elapsed_ms.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timestamp_without_offset_is_rejected_with_format() {
        for text in ["", "2026-11-15T09:30:00", "2026-11-15", "15.11.2026 09:30", "now"] {
            let error = text.parse::<UnixMillis>().unwrap_err().to_string();
            assert!(error.contains("2026-11-15T09:30:00Z"), "{error}");
        }
        let at: UnixMillis = "2026-11-15T04:30:00-05:00".parse().unwrap();
        assert_eq!(at.to_iso(), "2026-11-15T09:30:00.000Z");
        assert_eq!(at.to_utc_minute(), "2026-11-15 09:30 UTC");
    }

    proptest! {
        #[test]
        fn timestamp_round_trips(ms in -10_000_000_000_000_i64..100_000_000_000_000) {
            prop_assert_eq!(UnixMillis(ms).to_iso().parse(), Ok(UnixMillis(ms)));
        }
    }
}
