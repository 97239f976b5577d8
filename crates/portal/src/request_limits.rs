//! Limits the requests of one person in a minute, over all their sessions, so that a session cannot be used to copy records
//! page by page at full speed. The default is far above what anyone does in a browser.
//!
//! Each node counts in memory. Where nodes share a limit store, it counts the requests of all of them too. If it does not
//! answer, the count of this node still holds: the portal works without the store, and never without a limit.

use async_trait::async_trait;
use chancery_domain::{Clock, PersonId, RateLimits, RequestId, SlidingWindow, WINDOW};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests of a person per minute, unless it is configured.
pub const DEFAULT_PERSON_REQUESTS_PER_MIN: u32 = 1_200;

/// Whether a person may make one more request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestDecision {
    /// It is counted.
    Allowed,
    /// It is not counted. Waiting this long is enough.
    Denied { retry_after_s: u32 },
}

/// The store that nodes share does not answer. The text is for the log.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SharedLimitsUnavailable(pub String);

/// Counts the requests of all nodes.
#[async_trait]
pub trait SharedRequestLimits: Send + Sync + 'static {
    /// Counts this request, unless the person has made `max_per_min` in the last minute.
    async fn count_request(
        &self,
        person: PersonId,
        request_id: &RequestId,
        max_per_min: u32,
    ) -> Result<RequestDecision, SharedLimitsUnavailable>;
}

pub(crate) struct RequestLimits {
    max_per_min: u32,
    clock: Arc<dyn Clock>,
    started_at: Instant,
    windows: Mutex<Windows>,
    shared: Option<Arc<dyn SharedRequestLimits>>,
}

#[derive(Default)]
struct Windows {
    of: HashMap<PersonId, SlidingWindow>,
    /// When empty windows were last removed.
    swept_at: Duration,
}

impl RequestLimits {
    pub(crate) fn new(max_per_min: u32, clock: Arc<dyn Clock>) -> Self {
        Self { max_per_min, started_at: clock.monotonic(), clock, windows: Mutex::default(), shared: None }
    }

    pub(crate) fn share(&mut self, shared: Arc<dyn SharedRequestLimits>) {
        self.shared = Some(shared);
    }

    pub(crate) fn max_per_min(&self) -> u32 {
        self.max_per_min
    }

    /// Counts one request of the person, or denies it.
    pub(crate) async fn count(&self, person: PersonId, request_id: &RequestId) -> RequestDecision {
        let Some(shared) = &self.shared else { return self.count_here(person) };
        // A person over the limit of this node is over that of all nodes, and costs the store nothing.
        if let denied @ RequestDecision::Denied { .. } = self.check_here(person) {
            return denied;
        }
        match shared.count_request(person, request_id, self.max_per_min).await {
            Ok(RequestDecision::Allowed) => {
                let (mut windows, now) = self.lock();
                windows.of.entry(person).or_default().admit(now, 0, None);
                RequestDecision::Allowed
            }
            // Not counted here either: then waiting as long as it says would not be enough.
            Ok(denied) => denied,
            Err(error) => {
                tracing::warn!(%error, "shared request limits unavailable, counting on this node only");
                self.count_here(person)
            }
        }
    }

    fn count_here(&self, person: PersonId) -> RequestDecision {
        let limits = self.limits();
        let (mut windows, now) = self.lock();
        let window = windows.of.entry(person).or_default();
        match window.check(now, limits, 0, None) {
            Ok(()) => {
                window.admit(now, 0, None);
                RequestDecision::Allowed
            }
            Err(exceeded) => RequestDecision::Denied { retry_after_s: exceeded.retry_after_s() },
        }
    }

    fn check_here(&self, person: PersonId) -> RequestDecision {
        let limits = self.limits();
        let (mut windows, now) = self.lock();
        let checked = windows.of.get_mut(&person).map_or(Ok(()), |window| window.check(now, limits, 0, None));
        match checked {
            Ok(()) => RequestDecision::Allowed,
            Err(exceeded) => RequestDecision::Denied { retry_after_s: exceeded.retry_after_s() },
        }
    }

    /// Requests to the portal have no tokens.
    fn limits(&self) -> RateLimits {
        RateLimits { requests_per_min: self.max_per_min, tokens_per_min: 0 }
    }

    /// The time is read under the lock, so that it never runs backwards. Windows of people who have gone are removed, so there
    /// are never more than people of the firm in the last two minutes.
    fn lock(&self) -> (MutexGuard<'_, Windows>, Duration) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.monotonic().saturating_duration_since(self.started_at);
        if now.saturating_sub(windows.swept_at) >= WINDOW {
            windows.swept_at = now;
            windows.of.retain(|_, window| !window.is_empty(now));
        }
        (windows, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{ManualClock, OsRandomness, UnixMillis};

    const MAYA: PersonId = PersonId(1);
    const OMAR: PersonId = PersonId(2);

    fn limits(max_per_min: u32) -> (RequestLimits, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        (RequestLimits::new(max_per_min, clock.clone()), clock)
    }

    fn request_id() -> RequestId {
        RequestId::new(UnixMillis(1_800_000_000_000), &OsRandomness)
    }

    #[tokio::test]
    async fn requests_are_limited_per_person_and_retry_after_is_true() {
        let (limits, clock) = limits(DEFAULT_PERSON_REQUESTS_PER_MIN);
        for _ in 0..DEFAULT_PERSON_REQUESTS_PER_MIN {
            assert_eq!(limits.count(MAYA, &request_id()).await, RequestDecision::Allowed);
        }
        clock.advance(Duration::from_secs(20));
        let RequestDecision::Denied { retry_after_s } = limits.count(MAYA, &request_id()).await else {
            panic!("over the limit");
        };
        assert_eq!(retry_after_s, 40);
        assert_eq!(limits.count(OMAR, &request_id()).await, RequestDecision::Allowed);
        clock.advance(Duration::from_secs(u64::from(retry_after_s)));
        assert_eq!(limits.count(MAYA, &request_id()).await, RequestDecision::Allowed);
    }

    #[tokio::test]
    async fn windows_of_people_who_have_gone_are_removed() {
        let (limits, clock) = limits(5);
        for number in 0..100 {
            limits.count(PersonId(number), &request_id()).await;
        }
        clock.advance(2 * WINDOW);
        limits.count(MAYA, &request_id()).await;
        assert_eq!(limits.lock().0.of.len(), 1);
    }

    /// Denies after a number of requests, or does not answer.
    struct TestStore {
        left: Mutex<u32>,
        is_down: bool,
    }

    #[async_trait]
    impl SharedRequestLimits for TestStore {
        async fn count_request(
            &self,
            _person: PersonId,
            _request_id: &RequestId,
            _max_per_min: u32,
        ) -> Result<RequestDecision, SharedLimitsUnavailable> {
            if self.is_down {
                return Err(SharedLimitsUnavailable("connection refused".to_owned()));
            }
            let mut left = self.left.lock().unwrap();
            if *left == 0 {
                return Ok(RequestDecision::Denied { retry_after_s: 7 });
            }
            *left -= 1;
            Ok(RequestDecision::Allowed)
        }
    }

    async fn allowed_of(limits: &RequestLimits, requests: u32) -> u32 {
        let mut allowed = 0;
        for _ in 0..requests {
            allowed += u32::from(limits.count(MAYA, &request_id()).await == RequestDecision::Allowed);
        }
        allowed
    }

    #[tokio::test]
    async fn shared_store_limits_requests_of_other_nodes_too() {
        let (mut limits, _) = limits(10);
        // The other nodes have counted seven.
        limits.share(Arc::new(TestStore { left: Mutex::new(3), is_down: false }));
        assert_eq!(allowed_of(&limits, 20).await, 3);
        let denied = limits.count(MAYA, &request_id()).await;
        assert_eq!(
            denied,
            RequestDecision::Denied { retry_after_s: 7 },
            "what it denies does not count here"
        );
    }

    #[tokio::test]
    async fn node_limit_holds_while_shared_store_is_down() {
        let (mut limits, _) = limits(10);
        limits.share(Arc::new(TestStore { left: Mutex::new(0), is_down: true }));
        assert_eq!(allowed_of(&limits, 20).await, 10);
    }
}
