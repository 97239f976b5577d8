//! How long a session lasts: until it has not been used for a while, and in any case until its longest time is over.

use crate::{PersonId, UnixMillis};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimes {
    /// Without a request for this long, it is over.
    pub idle: Duration,
    /// This long after the sign-in it is over, however much it is used.
    pub max: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub person: PersonId,
    pub started_at: UnixMillis,
    pub last_used_at: UnixMillis,
    /// Where it was last used from: an IP address.
    pub place: String,
    /// What the browser calls itself.
    pub browser: String,
}

impl SessionTimes {
    /// The moments up to which a session must have started and been used to be still alive.
    pub fn oldest_alive(&self, now: UnixMillis) -> (UnixMillis, UnixMillis) {
        (before(now, self.max), before(now, self.idle))
    }
}

impl Session {
    pub fn is_alive(&self, times: SessionTimes, now: UnixMillis) -> bool {
        let (oldest_start, oldest_use) = times.oldest_alive(now);
        self.started_at > oldest_start && self.last_used_at > oldest_use
    }
}

fn before(now: UnixMillis, span: Duration) -> UnixMillis {
    UnixMillis(now.0.saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: SessionTimes =
        SessionTimes { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };

    fn session(started_at: i64, last_used_at: i64) -> Session {
        Session {
            id: SessionId(1),
            person: PersonId(1),
            started_at: UnixMillis(started_at),
            last_used_at: UnixMillis(last_used_at),
            place: "127.0.0.1".to_owned(),
            browser: String::new(),
        }
    }

    #[test]
    fn a_session_ends_when_it_is_idle_and_when_it_is_old_whichever_is_first() {
        let now = UnixMillis(1_800_000_000_000);
        let ago_s = |seconds: i64| now.0 - seconds * 1000;
        assert!(session(ago_s(10), ago_s(0)).is_alive(TIMES, now));
        assert!(session(ago_s(43_199), ago_s(1_799)).is_alive(TIMES, now));
        assert!(!session(ago_s(43_199), ago_s(1_800)).is_alive(TIMES, now), "idle");
        assert!(!session(ago_s(43_200), ago_s(0)).is_alive(TIMES, now), "old");
    }
}
