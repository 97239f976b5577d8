//! Session lifetime: an idle timeout and a maximum age.

use crate::{PersonId, UnixMillis};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimeouts {
    /// A session expires after this long without a request.
    pub idle: Duration,
    /// A session expires this long after the sign-in, however much it is used.
    pub max: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub person: PersonId,
    pub started_at: UnixMillis,
    pub last_used_at: UnixMillis,
    /// The IP address it was last used from.
    pub ip_address: String,
    /// The browser's name for display, derived from its `User-Agent`.
    pub user_agent: String,
    /// When the person last authenticated at the identity provider.
    pub authenticated_at: UnixMillis,
    /// When the identity provider last confirmed that the person is signed in there.
    pub confirmed_at: UnixMillis,
    /// The provider's own session (the `sid` claim), if it names one.
    pub sid: Option<String>,
}

impl SessionTimeouts {
    /// Cutoffs `(oldest_start, oldest_use)`: an active session started and was used after them.
    pub fn active_cutoffs(&self, now: UnixMillis) -> (UnixMillis, UnixMillis) {
        (before(now, self.max), before(now, self.idle))
    }
}

impl Session {
    pub fn is_active(&self, timeouts: SessionTimeouts, now: UnixMillis) -> bool {
        let (oldest_start, oldest_use) = timeouts.active_cutoffs(now);
        self.started_at > oldest_start && self.last_used_at > oldest_use
    }
}

fn before(now: UnixMillis, span: Duration) -> UnixMillis {
    UnixMillis(now.0.saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: SessionTimeouts =
        SessionTimeouts { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };

    fn session(started_at: i64, last_used_at: i64) -> Session {
        Session {
            id: SessionId(1),
            person: PersonId(1),
            started_at: UnixMillis(started_at),
            last_used_at: UnixMillis(last_used_at),
            ip_address: "127.0.0.1".to_owned(),
            user_agent: String::new(),
            authenticated_at: UnixMillis(started_at),
            confirmed_at: UnixMillis(started_at),
            sid: None,
        }
    }

    #[test]
    fn session_ends_at_idle_or_absolute_timeout() {
        let now = UnixMillis(1_800_000_000_000);
        let ago_s = |seconds: i64| now.0 - seconds * 1000;
        assert!(session(ago_s(10), ago_s(0)).is_active(TIMES, now));
        assert!(session(ago_s(43_199), ago_s(1_799)).is_active(TIMES, now));
        assert!(!session(ago_s(43_199), ago_s(1_800)).is_active(TIMES, now), "idle");
        assert!(!session(ago_s(43_200), ago_s(0)).is_active(TIMES, now), "old");
    }
}
