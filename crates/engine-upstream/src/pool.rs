//! The servers of one model: which ones there are, and which of them gets a job. Servers can be added and removed while
//! jobs run. A removed server gets no new jobs and finishes those it has.

use super::affinity::AffinityKey;
use super::balancing::{Candidate, choose};
use super::endpoint::{Availability, Endpoint, Lease};
use super::settings::ValidatedServers;
use chancery_domain::{AccountId, Clock};
use chancery_engine::EndpointStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

pub(super) struct Pool {
    model: String,
    clock: Arc<dyn Clock>,
    next_round_robin: AtomicU64,
    probe_requests: Arc<Notify>,
    members: Mutex<Members>,
}

struct Members {
    serving: Vec<Arc<Endpoint>>,
    /// Removed, with jobs still running.
    draining: Vec<Arc<Endpoint>>,
}

/// A job waiting for a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRequest {
    pub(super) account: AccountId,
    pub(super) affinity: Option<AffinityKey>,
    /// Upper bound on its tokens, prompt and reply together.
    pub(super) tokens: u64,
}

impl Pool {
    /// `first_round_robin` starts the rotation between equally loaded servers and should differ between nodes.
    pub(super) fn new(
        model: &str,
        servers: ValidatedServers,
        clock: Arc<dyn Clock>,
        first_round_robin: u64,
    ) -> Self {
        let pool = Self {
            model: model.to_owned(),
            clock,
            next_round_robin: AtomicU64::new(first_round_robin),
            probe_requests: Arc::default(),
            members: Mutex::new(Members { serving: Vec::new(), draining: Vec::new() }),
        };
        pool.replace(servers);
        pool
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the servers and their key. A server that stays keeps its state; one that is removed keeps its old key.
    pub(super) fn replace(&self, servers: ValidatedServers) {
        let ValidatedServers { endpoints, authorization } = servers;
        let mut members = self.lock();
        let mut known: Vec<Arc<Endpoint>> = members.serving.drain(..).collect();
        known.append(&mut members.draining);
        for url in &endpoints {
            let endpoint = match known.iter().position(|endpoint| endpoint.url == *url) {
                Some(index) => known.swap_remove(index),
                None => Arc::new(Endpoint::new(&self.model, url, &self.probe_requests)),
            };
            endpoint.activate(authorization.clone());
            members.serving.push(endpoint);
        }
        known.retain(|endpoint| !endpoint.is_idle());
        for endpoint in &known {
            endpoint.drain();
        }
        members.draining = known;
    }

    /// Whether there are several servers to choose from.
    pub(super) fn has_choice(&self) -> bool {
        self.lock().serving.len() > 1
    }

    /// Leases a server that the job has not tried yet. Returns `None` if there is none.
    pub(super) fn lease(&self, request: LeaseRequest, attempted: &[Arc<Endpoint>]) -> Option<Lease> {
        let members = self.lock();
        let now = self.clock.monotonic();
        let is_new =
            |endpoint: &&Arc<Endpoint>| !attempted.iter().any(|attempted| Arc::ptr_eq(attempted, endpoint));
        let mut available: Vec<(Availability, &Arc<Endpoint>)> = members
            .serving
            .iter()
            .filter(is_new)
            .filter_map(|endpoint| Some((endpoint.availability(now)?, endpoint)))
            .collect();
        let best = available.iter().map(|(availability, _)| *availability).max()?;
        available.retain(|(availability, _)| *availability == best);
        let candidate = |(_, endpoint): &(Availability, &Arc<Endpoint>)| Candidate {
            outstanding_tokens: endpoint.outstanding_tokens(),
            affinity: request.affinity.map(|key| key.score(&endpoint.url)),
        };
        let candidates: Vec<Candidate> = available.iter().map(candidate).collect();
        let round_robin = self.next_round_robin.fetch_add(1, Ordering::Relaxed);
        let (_, endpoint) = available.get(choose(&candidates, request.tokens, round_robin)?)?;
        // Leases are granted one at a time under this lock, so the breaker's trial is still available.
        endpoint.lease(request.account, request.tokens, &self.clock)
    }

    /// Notified when a server needs a one-token probe.
    pub(super) fn probe_requests(&self) -> Arc<Notify> {
        Arc::clone(&self.probe_requests)
    }

    pub(super) fn serving(&self) -> Vec<Arc<Endpoint>> {
        self.lock().serving.clone()
    }

    /// The shortest wait until an overloaded server may accept jobs, if any is overloaded.
    pub(super) fn busy_for(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        self.lock().serving.iter().filter_map(|endpoint| endpoint.busy_for(now)).min()
    }

    pub(super) fn statuses(&self) -> Vec<EndpointStatus> {
        let now = self.clock.monotonic();
        let mut members = self.lock();
        members.draining.retain(|endpoint| !endpoint.is_idle());
        members.serving.iter().chain(&members.draining).map(|endpoint| endpoint.status(now)).collect()
    }

    /// Why no server can accept a job, if so.
    pub(super) fn outage(&self) -> Option<String> {
        let now = self.clock.monotonic();
        let members = self.lock();
        let errors: Option<Vec<String>> =
            members.serving.iter().map(|endpoint| endpoint.outage(now)).collect();
        let last_error = errors?.into_iter().find(|last_error| !last_error.is_empty());
        Some(last_error.unwrap_or_else(|| "no upstream server configured".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{UpstreamError, UpstreamErrorKind};
    use crate::limits::{FAILURE_THRESHOLD, HANG_THRESHOLD, INITIAL_OPEN_DURATION, MAX_FAILED_HEALTH_CHECKS};
    use chancery_domain::{AccountId, ManualClock, UnixMillis};
    use chancery_engine::{EndpointState, Turn};

    fn servers(names: &[&str]) -> ValidatedServers {
        let endpoints = names.iter().map(|&name| name.to_owned()).collect();
        ValidatedServers { endpoints, authorization: None }
    }

    fn pool(names: &[&str]) -> Pool {
        pool_at(names).0
    }

    fn pool_at(names: &[&str]) -> (Pool, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(UnixMillis(0)));
        (Pool::new("m", servers(names), clock.clone(), 0), clock)
    }

    fn open(pool: &Pool) {
        for _ in 0..FAILURE_THRESHOLD {
            pool.lease(request(1), &[]).unwrap().failed(&UpstreamError::server_failure("500"), true);
        }
    }

    fn request(tokens: u64) -> LeaseRequest {
        LeaseRequest { account: AccountId(1), affinity: None, tokens }
    }

    fn request_of(account: i64) -> LeaseRequest {
        LeaseRequest { account: AccountId(account), ..request(1) }
    }

    fn timed_out() -> UpstreamError {
        UpstreamError::new(UpstreamErrorKind::TimedOut, "no token")
    }

    #[test]
    fn next_job_goes_to_the_server_with_fewest_outstanding_tokens() {
        let pool = pool(&["a", "b"]);
        let big = pool.lease(request(10_000), &[]).unwrap();
        let small: Vec<Lease> = (0..4).map(|_| pool.lease(request(100), &[]).unwrap()).collect();
        assert!(small.iter().all(|lease| lease.url() != big.url()));
        drop(big);
        assert_ne!(pool.lease(request(100), &[]).unwrap().url(), small[0].url());
    }

    #[test]
    fn affinity_holds_until_the_server_is_overloaded() {
        let pool = pool(&["a", "b", "c"]);
        let turns = Turn::from_instructions_and_input("Draft a letter.", "x");
        let affinity = AffinityKey::of(AccountId(7), &turns);
        let request = LeaseRequest { account: AccountId(7), affinity, tokens: 1_000 };
        let leases: Vec<Lease> = (0..6).map(|_| pool.lease(request, &[]).unwrap()).collect();
        assert!(leases.iter().all(|lease| lease.url() == leases[0].url()));
        let more: Vec<Lease> = (0..60).map(|_| pool.lease(request, &[]).unwrap()).collect();
        assert!(more.iter().any(|lease| lease.url() != leases[0].url()));
    }

    #[test]
    fn removed_server_gets_no_jobs_and_drains() {
        let pool = pool(&["a", "b"]);
        let leases: Vec<Lease> = (0..2).map(|_| pool.lease(request(100), &[]).unwrap()).collect();
        pool.replace(servers(&["b", "c"]));
        for _ in 0..50 {
            assert_ne!(pool.lease(request(100), &[]).unwrap().url(), "a");
        }
        let state_of_a =
            || pool.statuses().into_iter().find(|status| status.url == "a").map(|status| status.state);
        assert_eq!(state_of_a(), Some(EndpointState::Draining));
        drop(leases);
        assert_eq!(state_of_a(), None);
    }

    #[test]
    fn server_added_back_while_draining_keeps_its_load() {
        let pool = pool(&["a"]);
        let _lease = pool.lease(request(100), &[]).unwrap();
        pool.replace(servers(&[]));
        assert!(pool.lease(request(1), &[]).is_none());
        pool.replace(servers(&["a"]));
        assert_eq!(pool.statuses()[0].outstanding_tokens, 100);
    }

    #[test]
    fn down_server_gets_jobs_only_if_no_other_is_left() {
        let pool = pool(&["a", "b"]);
        let error = UpstreamError::server_failure("no answer");
        for endpoint in pool.serving().iter().filter(|endpoint| endpoint.url == "a") {
            (0..MAX_FAILED_HEALTH_CHECKS).for_each(|_| endpoint.record_health_check(Err(&error)));
        }
        assert!((0..20).all(|_| pool.lease(request(1), &[]).unwrap().url() == "b"));
        assert_eq!(pool.outage(), None);
        let b = pool.serving().into_iter().find(|endpoint| endpoint.url == "b").unwrap();
        assert_eq!(pool.lease(request(1), &[Arc::clone(&b)]).unwrap().url(), "a");
        (0..MAX_FAILED_HEALTH_CHECKS).for_each(|_| b.record_health_check(Err(&error)));
        assert_eq!(pool.outage().as_deref(), Some("no answer"));
        b.record_health_check(Ok(()));
        assert_eq!(pool.outage(), None);
    }

    #[test]
    fn trial_is_exclusive_and_a_dropped_trial_frees_the_next() {
        let (pool, clock) = pool_at(&["a"]);
        open(&pool);
        assert!(pool.lease(request(1), &[]).is_none());
        clock.advance(INITIAL_OPEN_DURATION);
        let trial = pool.lease(request(1), &[]).unwrap();
        assert!(pool.lease(request(1), &[]).is_none());
        drop(trial);
        pool.lease(request(1), &[]).unwrap().succeeded();
        assert_eq!(pool.statuses()[0].state, EndpointState::Up);
    }

    #[test]
    fn half_open_breaker_is_not_an_outage() {
        let (pool, clock) = pool_at(&["a"]);
        open(&pool);
        assert_eq!(pool.outage().as_deref(), Some("500"));
        clock.advance(INITIAL_OPEN_DURATION);
        assert_eq!(pool.outage(), None);
        let _trial = pool.lease(request(1), &[]).unwrap();
        assert_eq!(pool.outage(), None, "a trial is under way");
    }

    #[test]
    fn two_accounts_hanging_up_after_a_long_wait_open_the_breaker() {
        let (pool, clock) = pool_at(&["a", "b"]);
        for account in [1, 1, 2, 2] {
            let lease = pool.lease(request_of(account), &[]).unwrap();
            if lease.url() == "a" {
                clock.advance(HANG_THRESHOLD);
                drop(lease);
            } else {
                lease.succeeded();
            }
        }
        let state = |name| pool.statuses().into_iter().find(|status| status.url == name).unwrap().state;
        assert_eq!((state("a"), state("b")), (EndpointState::Open, EndpointState::Up));
    }

    #[test]
    fn one_account_alone_does_not_open_the_breaker() {
        type Ending = fn(Lease, &ManualClock);
        let hang_up: Ending = |lease, clock| {
            clock.advance(HANG_THRESHOLD);
            drop(lease);
        };
        let time_out: Ending = |lease, _| lease.failed(&timed_out(), true);
        let silent_deadline: Ending = |lease, clock| {
            clock.advance(HANG_THRESHOLD);
            lease.failed(&UpstreamError::new(UpstreamErrorKind::DeadlineExceeded, "over"), true);
        };
        let cut_after_text: Ending = |mut lease, _| {
            lease.record_text();
            lease.failed(&UpstreamError::new(UpstreamErrorKind::Unreachable, "cut"), true);
        };
        for (name, end) in [
            ("hang-up", hang_up),
            ("time-out", time_out),
            ("silent deadline", silent_deadline),
            ("cut", cut_after_text),
        ] {
            let (pool, clock) = pool_at(&["a"]);
            let endpoint = pool.serving().remove(0);
            for _ in 0..2 * FAILURE_THRESHOLD {
                end(pool.lease(request_of(1), &[]).unwrap(), &clock);
            }
            assert_eq!(pool.statuses()[0].state, EndpointState::Up, "{name}");
            assert!(endpoint.start_probe().is_some() && endpoint.start_probe().is_none(), "{name}");
            end(pool.lease(request_of(2), &[]).unwrap(), &clock);
            assert_eq!(pool.statuses()[0].state, EndpointState::Open, "{name}: a second account");
        }
    }

    #[test]
    fn deadline_of_a_long_reply_is_no_suspicion() {
        let (pool, clock) = pool_at(&["a"]);
        for account in 0..6 {
            let mut lease = pool.lease(request_of(account), &[]).unwrap();
            lease.record_text();
            clock.advance(HANG_THRESHOLD * 10);
            lease.failed(&UpstreamError::new(UpstreamErrorKind::DeadlineExceeded, "over"), true);
        }
        assert_eq!(pool.statuses()[0].state, EndpointState::Up);
        assert!(pool.serving()[0].start_probe().is_none());
    }

    #[test]
    fn server_that_streams_to_another_caller_is_not_suspected_by_a_hang_up() {
        let (pool, clock) = pool_at(&["a"]);
        let mut streaming = pool.lease(request_of(9), &[]).unwrap();
        streaming.record_text();
        for account in 1..6 {
            let silent = pool.lease(request_of(account), &[]).unwrap();
            clock.advance(HANG_THRESHOLD);
            streaming.endpoint().record_activity();
            drop(silent);
        }
        assert_eq!(pool.statuses()[0].state, EndpointState::Up);
        assert!(pool.serving()[0].start_probe().is_none());
    }

    #[test]
    fn early_hang_up_or_one_after_the_first_text_is_no_failure() {
        let (pool, clock) = pool_at(&["a"]);
        for _ in 0..10 {
            let mut lease = pool.lease(request(1), &[]).unwrap();
            lease.record_text();
            clock.advance(HANG_THRESHOLD * 2);
            drop(lease);
            drop(pool.lease(request(1), &[]).unwrap());
        }
        assert_eq!(pool.statuses()[0].state, EndpointState::Up);
    }

    #[test]
    fn successful_job_restores_a_server_with_failing_health_checks() {
        let pool = pool(&["a"]);
        let endpoint = pool.serving().remove(0);
        (0..MAX_FAILED_HEALTH_CHECKS)
            .for_each(|_| endpoint.record_health_check(Err(&UpstreamError::server_failure("no list"))));
        assert_eq!(pool.statuses()[0].state, EndpointState::Down);
        pool.lease(request(1), &[]).unwrap().succeeded();
        assert_eq!(pool.statuses()[0].state, EndpointState::Up);
    }

    #[test]
    fn removed_server_keeps_its_old_api_key() {
        let keyed = |names: &[&str], key: &'static str| ValidatedServers {
            authorization: Some(hyper::header::HeaderValue::from_static(key)),
            ..servers(names)
        };
        let pool = Pool::new("m", keyed(&["a", "b"], "old"), Arc::new(ManualClock::at(UnixMillis(0))), 0);
        let leases: Vec<Lease> = (0..2).map(|_| pool.lease(request(100), &[]).unwrap()).collect();
        pool.replace(keyed(&["b", "c"], "new"));
        let key_of = |lease: &Lease| lease.endpoint().authorization().unwrap();
        for lease in &leases {
            assert_eq!(key_of(lease), if lease.url() == "a" { "old" } else { "new" });
        }
        assert_eq!(key_of(&pool.lease(request(1), &[]).unwrap()), "new");
    }

    #[test]
    fn idle_removed_server_is_dropped_immediately() {
        let pool = pool(&["a", "b"]);
        pool.replace(servers(&["b"]));
        assert_eq!(pool.lock().draining.len(), 0);
    }
}
