//! The servers of one model: which of them gets a job, and which of them there are. Servers come and go while jobs run:
//! one that is taken out gets no new jobs, and finishes those it has.

use super::affinity::AffinityKey;
use super::balancing::{Candidate, choose};
use super::endpoint::{Endpoint, Fitness, Lease};
use super::settings::CheckedServers;
use chancery_domain::Clock;
use chancery_engine::EndpointStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) struct Pool {
    model: String,
    clock: Arc<dyn Clock>,
    turns: AtomicU64,
    members: Mutex<Members>,
}

struct Members {
    serving: Vec<Arc<Endpoint>>,
    /// Taken out, with jobs that still run.
    draining: Vec<Arc<Endpoint>>,
}

/// A job that looks for a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) affinity: Option<AffinityKey>,
    /// The most tokens that it may have, prompt and reply.
    pub(super) tokens: u64,
}

impl Pool {
    /// Which of equals is first is up to the caller, who should not choose the same on every node.
    pub(super) fn new(model: &str, servers: CheckedServers, clock: Arc<dyn Clock>, first_turn: u64) -> Self {
        let pool = Self {
            model: model.to_owned(),
            clock,
            turns: AtomicU64::new(first_turn),
            members: Mutex::new(Members { serving: Vec::new(), draining: Vec::new() }),
        };
        pool.replace(servers);
        pool
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these are the servers, with their key. One that stays keeps all that is known of it; one that goes keeps
    /// the key it had.
    pub(super) fn replace(&self, servers: CheckedServers) {
        let CheckedServers { endpoints, authorization } = servers;
        let mut members = self.lock();
        let mut known: Vec<Arc<Endpoint>> = members.serving.drain(..).collect();
        known.append(&mut members.draining);
        for url in &endpoints {
            let endpoint = match known.iter().position(|endpoint| endpoint.url == *url) {
                Some(index) => known.swap_remove(index),
                None => Arc::new(Endpoint::new(&self.model, url, None)),
            };
            endpoint.serve_with(authorization.clone());
            members.serving.push(endpoint);
        }
        known.retain(|endpoint| !endpoint.is_idle());
        for endpoint in &known {
            endpoint.drain();
        }
        members.draining = known;
    }

    /// A place at a server that is none of those where the job was before; None where there is no such server.
    pub(super) fn lease(&self, wanted: Wanted, tried: &[Arc<Endpoint>]) -> Option<Lease> {
        let members = self.lock();
        let now = self.clock.monotonic();
        let is_new = |endpoint: &&Arc<Endpoint>| !tried.iter().any(|tried| Arc::ptr_eq(tried, endpoint));
        let mut fit: Vec<(Fitness, &Arc<Endpoint>)> = members
            .serving
            .iter()
            .filter(is_new)
            .filter_map(|endpoint| Some((endpoint.fitness(now)?, endpoint)))
            .collect();
        let best = fit.iter().map(|(fitness, _)| *fitness).max()?;
        fit.retain(|(fitness, _)| *fitness == best);
        let candidate = |(_, endpoint): &(Fitness, &Arc<Endpoint>)| Candidate {
            outstanding_tokens: endpoint.outstanding_tokens(),
            affinity: wanted.affinity.map(|key| key.score(&endpoint.url)),
        };
        let candidates: Vec<Candidate> = fit.iter().map(candidate).collect();
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let (_, endpoint) = fit.get(choose(&candidates, wanted.tokens, turn)?)?;
        // Places are given one at a time, under this lock, so the probe's place cannot be gone meanwhile.
        endpoint.lease(wanted.tokens, &self.clock)
    }

    pub(super) fn serving(&self) -> Vec<Arc<Endpoint>> {
        self.lock().serving.clone()
    }

    /// Where every server that works has said that it has too much to do: how soon one may not.
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

    /// Why no server can be given a job, where that is so.
    pub(super) fn outage(&self) -> Option<String> {
        let now = self.clock.monotonic();
        let members = self.lock();
        let troubles: Option<Vec<String>> =
            members.serving.iter().map(|endpoint| endpoint.outage(now)).collect();
        let trouble = troubles?.into_iter().find(|trouble| !trouble.is_empty());
        Some(trouble.unwrap_or_else(|| "there is no upstream server".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use crate::limits::{FAILED_LOOKS, FAILURES_TO_OPEN, FIRST_OPEN_PAUSE, HUNG_AFTER};
    use chancery_domain::{AccountId, ManualClock, UnixMillis};
    use chancery_engine::{EndpointState, Turn};

    fn servers(names: &[&str]) -> CheckedServers {
        let endpoints = names.iter().map(|&name| name.to_owned()).collect();
        CheckedServers { endpoints, authorization: None }
    }

    fn pool(names: &[&str]) -> Pool {
        pool_at(names).0
    }

    fn pool_at(names: &[&str]) -> (Pool, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(UnixMillis(0)));
        (Pool::new("m", servers(names), clock.clone(), 0), clock)
    }

    fn open(pool: &Pool) {
        for _ in 0..FAILURES_TO_OPEN {
            pool.lease(wanted(1), &[]).unwrap().failed(&Fault::broken("500"), true);
        }
    }

    fn wanted(tokens: u64) -> Wanted {
        Wanted { affinity: None, tokens }
    }

    #[test]
    fn the_next_job_goes_where_the_fewest_tokens_are_outstanding() {
        let pool = pool(&["a", "b"]);
        let big = pool.lease(wanted(10_000), &[]).unwrap();
        let small: Vec<Lease> = (0..4).map(|_| pool.lease(wanted(100), &[]).unwrap()).collect();
        assert!(small.iter().all(|lease| lease.url() != big.url()));
        drop(big);
        assert_ne!(pool.lease(wanted(100), &[]).unwrap().url(), small[0].url());
    }

    #[test]
    fn one_accounts_instructions_stay_at_one_server_until_it_has_much_more_to_do() {
        let pool = pool(&["a", "b", "c"]);
        let turns = Turn::instructions_and_input("Draft a letter.", "x");
        let wanted = Wanted { affinity: AffinityKey::of(AccountId(7), &turns), tokens: 1_000 };
        let leases: Vec<Lease> = (0..6).map(|_| pool.lease(wanted, &[]).unwrap()).collect();
        assert!(leases.iter().all(|lease| lease.url() == leases[0].url()));
        let more: Vec<Lease> = (0..60).map(|_| pool.lease(wanted, &[]).unwrap()).collect();
        assert!(more.iter().any(|lease| lease.url() != leases[0].url()));
    }

    #[test]
    fn a_server_that_was_taken_out_gets_nothing_and_keeps_what_it_has() {
        let pool = pool(&["a", "b"]);
        let held: Vec<Lease> = (0..2).map(|_| pool.lease(wanted(100), &[]).unwrap()).collect();
        pool.replace(servers(&["b", "c"]));
        for _ in 0..50 {
            assert_ne!(pool.lease(wanted(100), &[]).unwrap().url(), "a");
        }
        let state_of_a =
            || pool.statuses().into_iter().find(|status| status.url == "a").map(|status| status.state);
        assert_eq!(state_of_a(), Some(EndpointState::Draining));
        drop(held);
        assert_eq!(state_of_a(), None);
    }

    #[test]
    fn a_server_that_is_put_back_while_it_drains_keeps_its_count() {
        let pool = pool(&["a"]);
        let _held = pool.lease(wanted(100), &[]).unwrap();
        pool.replace(servers(&[]));
        assert!(pool.lease(wanted(1), &[]).is_none());
        pool.replace(servers(&["a"]));
        assert_eq!(pool.statuses()[0].outstanding_tokens, 100);
    }

    #[test]
    fn a_server_that_does_not_answer_gets_jobs_only_where_there_is_no_other() {
        let pool = pool(&["a", "b"]);
        let fault = Fault::broken("no answer");
        for endpoint in pool.serving().iter().filter(|endpoint| endpoint.url == "a") {
            (0..FAILED_LOOKS).for_each(|_| endpoint.looked(Err(&fault)));
        }
        assert!((0..20).all(|_| pool.lease(wanted(1), &[]).unwrap().url() == "b"));
        assert_eq!(pool.outage(), None);
        let b = pool.serving().into_iter().find(|endpoint| endpoint.url == "b").unwrap();
        assert_eq!(pool.lease(wanted(1), &[Arc::clone(&b)]).unwrap().url(), "a");
        (0..FAILED_LOOKS).for_each(|_| b.looked(Err(&fault)));
        assert_eq!(pool.outage().as_deref(), Some("no answer"));
        b.looked(Ok(()));
        assert_eq!(pool.outage(), None);
    }

    #[test]
    fn while_a_probe_is_under_way_nobody_else_goes_there_and_a_dropped_probe_leaves_its_place() {
        let (pool, clock) = pool_at(&["a"]);
        open(&pool);
        assert!(pool.lease(wanted(1), &[]).is_none());
        clock.advance(FIRST_OPEN_PAUSE);
        let probe = pool.lease(wanted(1), &[]).unwrap();
        assert!(pool.lease(wanted(1), &[]).is_none());
        drop(probe);
        pool.lease(wanted(1), &[]).unwrap().went_well();
        assert_eq!(pool.statuses()[0].state, EndpointState::Up);
    }

    #[test]
    fn a_breaker_whose_pause_is_over_makes_no_outage_though_no_job_has_come() {
        let (pool, clock) = pool_at(&["a"]);
        open(&pool);
        assert_eq!(pool.outage().as_deref(), Some("500"));
        clock.advance(FIRST_OPEN_PAUSE);
        assert_eq!(pool.outage(), None);
        let _probe = pool.lease(wanted(1), &[]).unwrap();
        assert_eq!(pool.outage(), None, "somebody is finding out");
    }

    #[test]
    fn a_server_that_lets_callers_wait_in_vain_is_found_out_by_their_hanging_up() {
        let (pool, clock) = pool_at(&["a", "b"]);
        for _ in 0..2 * FAILURES_TO_OPEN {
            let lease = pool.lease(wanted(1), &[]).unwrap();
            if lease.url() == "a" {
                clock.advance(HUNG_AFTER);
                drop(lease);
            } else {
                lease.went_well();
            }
        }
        let state = |name| pool.statuses().into_iter().find(|status| status.url == name).unwrap().state;
        assert_eq!((state("a"), state("b")), (EndpointState::Open, EndpointState::Up));
    }

    #[test]
    fn a_hang_up_after_the_first_text_or_soon_after_sending_says_nothing() {
        let (pool, clock) = pool_at(&["a"]);
        for _ in 0..10 {
            let mut lease = pool.lease(wanted(1), &[]).unwrap();
            lease.note_text();
            clock.advance(HUNG_AFTER * 2);
            drop(lease);
            drop(pool.lease(wanted(1), &[]).unwrap());
        }
        assert_eq!(pool.statuses()[0].state, EndpointState::Up);
    }

    #[test]
    fn a_job_that_went_well_brings_back_a_server_that_cannot_be_looked_at() {
        let pool = pool(&["a"]);
        let endpoint = pool.serving().remove(0);
        (0..FAILED_LOOKS).for_each(|_| endpoint.looked(Err(&Fault::broken("no list"))));
        assert_eq!(pool.statuses()[0].state, EndpointState::Down);
        pool.lease(wanted(1), &[]).unwrap().went_well();
        assert_eq!(pool.statuses()[0].state, EndpointState::Up);
    }

    #[test]
    fn a_server_that_was_taken_out_keeps_the_key_it_had() {
        let keyed = |names: &[&str], key: &'static str| CheckedServers {
            authorization: Some(reqwest::header::HeaderValue::from_static(key)),
            ..servers(names)
        };
        let pool = Pool::new("m", keyed(&["a", "b"], "old"), Arc::new(ManualClock::at(UnixMillis(0))), 0);
        let held: Vec<Lease> = (0..2).map(|_| pool.lease(wanted(100), &[]).unwrap()).collect();
        pool.replace(keyed(&["b", "c"], "new"));
        let key_of = |lease: &Lease| lease.endpoint().authorization().unwrap();
        for lease in &held {
            assert_eq!(key_of(lease), if lease.url() == "a" { "old" } else { "new" });
        }
        assert_eq!(key_of(&pool.lease(wanted(1), &[]).unwrap()), "new");
    }

    #[test]
    fn a_server_that_has_nothing_to_do_is_gone_when_it_is_taken_out() {
        let pool = pool(&["a", "b"]);
        pool.replace(servers(&["b"]));
        assert_eq!(pool.lock().draining.len(), 0);
    }
}
