//! The servers of one model: which of them gets a job, and which of them there are. Servers come and go while jobs run:
//! one that is taken out gets no new jobs, and finishes those it has.

use super::affinity::AffinityKey;
use super::balancing::{Candidate, choose};
use super::endpoint::{Endpoint, Fitness, Lease};
use super::status::{EndpointState, EndpointStatus};
use chancery_domain::Clock;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) struct Pool {
    model: String,
    clock: Arc<dyn Clock>,
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
    pub(super) fn new(model: &str, urls: &[String], clock: Arc<dyn Clock>) -> Self {
        let serving = urls.iter().map(|url| Arc::new(Endpoint::new(model, url))).collect();
        let members = Mutex::new(Members { serving, draining: Vec::new() });
        Self { model: model.to_owned(), clock, members }
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these are the servers. One that stays keeps all that is known of it.
    pub(super) fn replace(&self, urls: &[String]) {
        let mut members = self.lock();
        let mut known: Vec<Arc<Endpoint>> = members.serving.drain(..).collect();
        known.append(&mut members.draining);
        for url in urls {
            let endpoint = match known.iter().position(|endpoint| endpoint.url == *url) {
                Some(index) => known.swap_remove(index),
                None => Arc::new(Endpoint::new(&self.model, url)),
            };
            endpoint.set_draining(false);
            members.serving.push(endpoint);
        }
        for endpoint in &known {
            endpoint.set_draining(true);
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
        let (_, endpoint) = fit.get(choose(&candidates, wanted.tokens)?)?;
        // Places are given one at a time, under this lock, so the probe's place cannot be gone meanwhile.
        endpoint.lease(wanted.tokens, now)
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
        let statuses = self.statuses();
        let is_out =
            |status: &EndpointStatus| matches!(status.state, EndpointState::Down | EndpointState::Open);
        let serving = || statuses.iter().filter(|status| status.state != EndpointState::Draining);
        if !serving().all(is_out) {
            return None;
        }
        let trouble = serving().find_map(|status| status.trouble.clone());
        Some(trouble.unwrap_or_else(|| "there is no upstream server".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::Fault;
    use super::super::limits::{FAILED_LOOKS, FAILURES_TO_OPEN};
    use super::*;
    use crate::Turn;
    use chancery_domain::{AccountId, SystemClock};

    fn urls(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn pool(names: &[&str]) -> Pool {
        Pool::new("m", &urls(names), Arc::new(SystemClock))
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
        pool.replace(&urls(&["b", "c"]));
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
        pool.replace(&[]);
        assert!(pool.lease(wanted(1), &[]).is_none());
        pool.replace(&urls(&["a"]));
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
        let pool = pool(&["a"]);
        let now = SystemClock.monotonic();
        for _ in 0..FAILURES_TO_OPEN {
            pool.lease(wanted(1), &[]).unwrap().failed(&Fault::broken("500"), now - Duration::from_secs(60));
        }
        let probe = pool.lease(wanted(1), &[]).unwrap();
        assert!(pool.lease(wanted(1), &[]).is_none());
        drop(probe);
        pool.lease(wanted(1), &[]).unwrap().went_well(now);
        assert_eq!(pool.statuses()[0].state, EndpointState::Up);
    }
}
