//! Combines the steps of requests that arrive while the store is busy with the same account: the next script runs all of them.
//!
//! 1. A step of an account that has no script running runs at once, in the caller's own future.
//! 2. A step that arrives meanwhile waits. When the script has ended, one task runs a script with all that wait, in the order in
//!    which they came.
//! 3. A script that fails fails those that wait too: they would only wait for the same timeout again.
//! 4. A caller that goes away drops its future. What it queued still runs, and whoever waits behind it is served.
//!
//! So a request alone waits for nobody, and a busy account takes a fraction of a script per step.

use crate::rate_limits::{Bucket, Decision, LimiterUnavailable, Reservation};
use chancery_domain::RateLimitStatus;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The most steps of one script. While it runs, Redis serves nobody else.
const MAX_STEPS: usize = 64;

#[derive(Debug)]
pub(super) struct Step {
    pub(super) reservation: Reservation,
    pub(super) kind: StepKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    Reserve,
    Settle { tokens: u64 },
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    Decided(Decision),
    /// With the status of the account's bucket.
    Closed(RateLimitStatus),
}

pub(super) trait StepRunner: Send + Sync + 'static {
    /// Runs steps of one account in their order. Returns an outcome for each.
    fn run(
        &self,
        steps: &[Step],
    ) -> impl Future<Output = Result<Vec<StepOutcome>, LimiterUnavailable>> + Send;
}

type Response = Result<StepOutcome, LimiterUnavailable>;

struct QueuedStep {
    step: Step,
    responder: oneshot::Sender<Response>,
}

pub(super) struct StepQueue<R: StepRunner> {
    pub(super) runner: R,
    /// The steps that wait, for each account that has a script running.
    waiting: Mutex<HashMap<Bucket, Vec<QueuedStep>>>,
}

impl<R: StepRunner> StepQueue<R> {
    pub(super) fn new(runner: R) -> Arc<Self> {
        Arc::new(Self { runner, waiting: Mutex::default() })
    }

    pub(super) async fn run(self: &Arc<Self>, step: Step) -> Response {
        let owner = owner(step.reservation.bucket);
        let queued = match self.lock().entry(owner) {
            Entry::Vacant(vacant) => {
                vacant.insert(Vec::new());
                Ok(step)
            }
            Entry::Occupied(mut waiting) => {
                let (responder, response) = oneshot::channel();
                waiting.get_mut().push(QueuedStep { step, responder });
                Err(response)
            }
        };
        let step = match queued {
            Ok(step) => step,
            Err(response) => return response.await.unwrap_or_else(|_| Err(not_run())),
        };
        let mut permit = ScriptPermit { queue: Arc::clone(self), owner, failure: None };
        match self.runner.run(std::slice::from_ref(&step)).await {
            Ok(outcomes) => outcomes.into_iter().next().ok_or_else(not_run),
            Err(error) => {
                permit.failure = Some(error.clone());
                Err(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Bucket, Vec<QueuedStep>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to run a script for the account. When it is dropped, those that wait get it.
struct ScriptPermit<R: StepRunner> {
    queue: Arc<StepQueue<R>>,
    owner: Bucket,
    failure: Option<LimiterUnavailable>,
}

impl<R: StepRunner> ScriptPermit<R> {
    async fn run(mut self, batch: Vec<QueuedStep>) {
        let (steps, responders): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|queued| (queued.step, queued.responder)).unzip();
        let outcome = self.queue.runner.run(&steps).await;
        match outcome {
            Ok(outcomes) => {
                for (responder, outcome) in responders.into_iter().zip(outcomes) {
                    // The caller may have gone away.
                    let _ = responder.send(Ok(outcome));
                }
            }
            Err(error) => {
                fail(responders, &error);
                self.failure = Some(error);
            }
        }
    }

    /// Takes the steps of the next script. Without any, the account has none running from now on.
    fn next_batch(&self) -> Vec<QueuedStep> {
        let mut waiting = self.queue.lock();
        let Entry::Occupied(mut entry) = waiting.entry(self.owner) else { return Vec::new() };
        let count = match self.failure {
            Some(_) => entry.get().len(),
            None => entry.get().len().min(MAX_STEPS),
        };
        let batch: Vec<QueuedStep> = entry.get_mut().drain(..count).collect();
        if batch.is_empty() || self.failure.is_some() {
            entry.remove();
        }
        batch
    }
}

impl<R: StepRunner> Drop for ScriptPermit<R> {
    fn drop(&mut self) {
        let batch = self.next_batch();
        if let Some(error) = &self.failure {
            fail(batch.into_iter().map(|queued| queued.responder), error);
            return;
        }
        if batch.is_empty() {
            return;
        }
        let permit = ScriptPermit { queue: Arc::clone(&self.queue), owner: self.owner, failure: None };
        // Without a runtime nobody waits, and dropping the permit frees the account.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(permit.run(batch));
        }
    }
}

fn fail(responders: impl IntoIterator<Item = oneshot::Sender<Response>>, error: &LimiterUnavailable) {
    for responder in responders {
        let _ = responder.send(Err(error.clone()));
    }
}

/// What one script may cover: the buckets of one account, which are in one slot of a Redis Cluster.
fn owner(bucket: Bucket) -> Bucket {
    match bucket {
        Bucket::Generation(account)
        | Bucket::Reads(account)
        | Bucket::Key(account, _)
        | Bucket::KeyReads(account, _) => Bucket::Generation(account),
        Bucket::Person(_) => bucket,
    }
}

fn not_run() -> LimiterUnavailable {
    LimiterUnavailable("the step was not run".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{AccountId, KeyId, LimitUsage, RateLimits, RequestId};
    use std::time::Duration;
    use tokio::sync::{Semaphore, mpsc};

    const LIMITS: RateLimits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };

    /// Each script reports the tokens of its steps, waits for a permit, and returns them as used. One with 0 tokens fails.
    struct GatedRunner {
        begun: mpsc::UnboundedSender<Vec<u64>>,
        permits: Semaphore,
    }

    impl StepRunner for GatedRunner {
        async fn run(&self, steps: &[Step]) -> Result<Vec<StepOutcome>, LimiterUnavailable> {
            let tokens: Vec<u64> = steps.iter().map(|step| step.reservation.tokens).collect();
            self.begun.send(tokens.clone()).unwrap();
            self.permits.acquire().await.unwrap().forget();
            match tokens.contains(&0) {
                true => Err(LimiterUnavailable("as the test wants".to_owned())),
                false => Ok(tokens.into_iter().map(closed).collect()),
            }
        }
    }

    fn closed(tokens: u64) -> StepOutcome {
        StepOutcome::Closed(RateLimitStatus {
            limits: LIMITS,
            used: LimitUsage { requests: 1, tokens },
            next_expiry: Duration::ZERO,
            full_reset: Duration::ZERO,
        })
    }

    fn step(bucket: Bucket, tokens: u64) -> Step {
        let request_id = RequestId::from_stored(format!("req_{tokens}"));
        let reservation = Reservation { bucket, request_id, limits: LIMITS, key: None, tokens };
        Step { reservation, kind: StepKind::Release }
    }

    const ACCOUNT: AccountId = AccountId(1);

    fn queue() -> (Arc<StepQueue<GatedRunner>>, mpsc::UnboundedReceiver<Vec<u64>>) {
        let (begun, scripts) = mpsc::unbounded_channel();
        (StepQueue::new(GatedRunner { begun, permits: Semaphore::new(0) }), scripts)
    }

    fn spawn(
        queue: &Arc<StepQueue<GatedRunner>>,
        bucket: Bucket,
        tokens: u64,
    ) -> tokio::task::JoinHandle<Response> {
        let queue = Arc::clone(queue);
        tokio::spawn(async move { queue.run(step(bucket, tokens)).await })
    }

    /// Queues steps behind one that runs.
    async fn queue_behind(
        queue: &Arc<StepQueue<GatedRunner>>,
        tokens: impl IntoIterator<Item = u64>,
    ) -> Vec<tokio::task::JoinHandle<Response>> {
        let mut steps = Vec::new();
        for tokens in tokens {
            steps.push(spawn(queue, Bucket::Generation(ACCOUNT), tokens));
            tokio::task::yield_now().await;
        }
        steps
    }

    #[tokio::test]
    async fn steps_that_arrive_meanwhile_share_the_next_script_in_order() {
        let (queue, mut scripts) = queue();
        let first = spawn(&queue, Bucket::Key(ACCOUNT, KeyId(7)), 1);
        assert_eq!(scripts.recv().await.unwrap(), [1]);
        let waiting = queue_behind(&queue, 2..=4).await;
        queue.runner.permits.add_permits(1);
        assert_eq!(first.await.unwrap().unwrap(), closed(1));
        assert_eq!(scripts.recv().await.unwrap(), [2, 3, 4]);
        queue.runner.permits.add_permits(1);
        for (waiting, tokens) in waiting.into_iter().zip(2..) {
            assert_eq!(waiting.await.unwrap().unwrap(), closed(tokens));
        }
        // The task that ran them ends a moment after it has answered.
        while !queue.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn accounts_do_not_wait_for_each_other() {
        let (queue, mut scripts) = queue();
        let buckets = [Bucket::Generation(ACCOUNT), Bucket::Generation(AccountId(2))];
        let steps = buckets.map(|bucket| spawn(&queue, bucket, 5));
        assert_eq!([scripts.recv().await.unwrap(), scripts.recv().await.unwrap()], [[5], [5]]);
        queue.runner.permits.add_permits(2);
        for step in steps {
            assert_eq!(step.await.unwrap().unwrap(), closed(5));
        }
    }

    #[tokio::test]
    async fn caller_that_goes_away_holds_up_nobody() {
        let (queue, mut scripts) = queue();
        let first = spawn(&queue, Bucket::Generation(ACCOUNT), 1);
        assert_eq!(scripts.recv().await.unwrap(), [1]);
        let mut waiting = queue_behind(&queue, 2..=3).await;
        first.abort();
        waiting.remove(0).abort();
        assert_eq!(scripts.recv().await.unwrap(), [2, 3], "what is queued still runs");
        queue.runner.permits.add_permits(1);
        assert_eq!(waiting.remove(0).await.unwrap().unwrap(), closed(3));
    }

    #[tokio::test]
    async fn failed_script_fails_those_that_wait_and_nobody_else() {
        let (queue, mut scripts) = queue();
        let first = spawn(&queue, Bucket::Generation(ACCOUNT), 0);
        assert_eq!(scripts.recv().await.unwrap(), [0]);
        let waiting = queue_behind(&queue, 2..=3).await;
        queue.runner.permits.add_permits(1);
        assert!(first.await.unwrap().is_err());
        for waiting in waiting {
            assert!(waiting.await.unwrap().is_err());
        }
        queue.runner.permits.add_permits(1);
        assert_eq!(spawn(&queue, Bucket::Generation(ACCOUNT), 4).await.unwrap().unwrap(), closed(4));
        assert_eq!(scripts.recv().await.unwrap(), [4]);
    }

    #[tokio::test]
    async fn script_has_a_bounded_number_of_steps() {
        let (queue, mut scripts) = queue();
        let first = spawn(&queue, Bucket::Generation(ACCOUNT), 1);
        assert_eq!(scripts.recv().await.unwrap(), [1]);
        let waiting = queue_behind(&queue, 1..=MAX_STEPS as u64 + 1).await;
        queue.runner.permits.add_permits(3);
        assert!(first.await.unwrap().is_ok());
        assert_eq!(scripts.recv().await.unwrap().len(), MAX_STEPS);
        assert_eq!(scripts.recv().await.unwrap(), [MAX_STEPS as u64 + 1]);
        for waiting in waiting {
            assert!(waiting.await.unwrap().is_ok());
        }
    }
}
