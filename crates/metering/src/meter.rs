//! What the HTTP crates see of metering: who calls, what a request counts, starting one, and stopping.

use crate::activity::Activity;
use crate::admission::Admission;
use crate::authentication::KnownKey;
use crate::idempotency::Replies;
use crate::running::{Wants, reporting};
use crate::spending::SpendingCaps;
use crate::unrecorded::Unrecorded;
use crate::{
    Authenticator, Call, Caller, Count, GenerateRequest, Limiter, MeterError, Models, Reply, Running,
};
use chancery_domain::{Clock, Randomness, RequestId, Standing, UnixMillis};
use chancery_store::{Store, StoreError, UsageQuery, UsageSum};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub struct Meter {
    pub(crate) models: Models,
    pub(crate) store: Arc<dyn Store>,
    authenticator: Authenticator,
    pub(crate) admission: Admission,
    pub(crate) spending: SpendingCaps,
    pub(crate) replies: Replies,
    pub(crate) activity: Activity,
    pub(crate) clock: Arc<dyn Clock>,
    started_at: UnixMillis,
    pub(crate) randomness: Arc<dyn Randomness>,
    /// Longer texts take turns.
    pub(crate) tokenizing_turns: Semaphore,
    pub(crate) unrecorded: Unrecorded,
    running: TaskTracker,
    /// Set when the process stops taking work.
    draining: CancellationToken,
    /// Set when work still running is given up.
    pub(crate) abandoned: CancellationToken,
}

impl Meter {
    pub fn new(
        models: Models,
        store: Arc<dyn Store>,
        limiter: Arc<dyn Limiter>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Self {
        Self {
            models,
            authenticator: Authenticator::new(Arc::clone(&store), Arc::clone(&clock)),
            admission: Admission::new(limiter),
            spending: SpendingCaps::new(Arc::clone(&store), Arc::clone(&clock)),
            replies: Replies::new(Arc::clone(&store), Arc::clone(&clock)),
            activity: Activity::new(Arc::clone(&clock)),
            store,
            started_at: clock.now(),
            clock,
            randomness,
            tokenizing_turns: Semaphore::new(tokenizing_at_once()),
            unrecorded: Unrecorded::default(),
            running: TaskTracker::new(),
            draining: CancellationToken::new(),
            abandoned: CancellationToken::new(),
        }
    }

    pub fn models(&self) -> &Models {
        &self.models
    }

    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Since when requests can be made.
    pub fn started_at(&self) -> UnixMillis {
        self.started_at
    }

    pub fn new_request_id(&self) -> RequestId {
        RequestId::new(self.clock.now(), self.randomness.as_ref())
    }

    /// For a request that is answered with the error, if there is one: where nobody pays for the key, that is a refusal.
    pub async fn authenticate(&self, presented: Option<&str>) -> Result<Caller, MeterError> {
        match self.authenticator.known_key(presented).await? {
            KnownKey::Payer(caller) => Ok(caller),
            KnownKey::Unpaid { account, key } => {
                let error = MeterError::NoBillingAccount;
                self.activity.refused(account, key, &error);
                Err(error)
            }
        }
    }

    /// Who calls, for a reply that everybody gets.
    pub async fn recognise(&self, presented: Option<&str>) -> Option<Caller> {
        self.authenticator.authenticate(presented).await.ok()
    }

    /// Where an account stands with its limits; None where that cannot be known at the moment.
    pub async fn standing(&self, caller: Caller) -> Option<Standing> {
        self.admission.standing(caller).await
    }

    /// Whether requests can be admitted as far as the limits' store goes.
    pub async fn ping_limiter(&self) -> Result<(), MeterError> {
        Ok(self.admission.ping().await?)
    }

    /// Whether what a request would use can be recorded, as far as the requests before it tell.
    pub fn can_record(&self) -> Result<(), MeterError> {
        match self.unrecorded.are_too_many() {
            false => Ok(()),
            true => {
                Err(StoreError::Unavailable("the usage of many requests could not be written".to_owned())
                    .into())
            }
        }
    }

    /// Counts and prices a request; runs nothing, writes nothing, costs nothing.
    pub async fn count(&self, caller: Caller, request: &GenerateRequest) -> Result<Count, MeterError> {
        let admitted = self.admit(request, caller.limits).await?;
        let (input_tokens, max_output_tokens) = (admitted.prompt.input_tokens, admitted.most_output_tokens());
        let prices = admitted.model.prices;
        Ok(Count {
            input_tokens,
            max_output_tokens,
            input_cost: prices.cost(input_tokens, 0)?,
            max_output_cost: prices.cost(0, max_output_tokens)?,
            max_cost: admitted.most_cost()?,
        })
    }

    /// Runs one request to its end.
    pub async fn generate(self: &Arc<Self>, call: Call) -> Result<Reply, MeterError> {
        self.start(call, Wants::Reply).await?.reply().await
    }

    /// Starts one request, and returns once its work has begun.
    pub async fn stream(self: &Arc<Self>, call: Call) -> Result<Running, MeterError> {
        self.start(call, Wants::Text).await
    }

    async fn start(self: &Arc<Self>, call: Call, wants: Wants) -> Result<Running, MeterError> {
        // Held from before the check until the task is there, so that a drain that begins in between waits for it.
        let counted = self.running.token();
        if self.draining.is_cancelled() {
            return Err(MeterError::ShuttingDown);
        }
        self.can_record()?;
        let (reporter, awaited) = reporting(wants);
        // The task goes on when this future is dropped, because what was generated must still be settled.
        let work = self.running.spawn(Arc::clone(self).run(call, reporter));
        drop(counted);
        awaited.beginning_of(work).await
    }

    /// The account's own usage.
    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, MeterError> {
        Ok(self.store.usage(query).await?)
    }

    /// From now on nothing new is taken.
    pub fn stop_admitting(&self) {
        self.draining.cancel();
        self.running.close();
    }

    pub(crate) async fn until_draining(&self) {
        self.draining.cancelled().await;
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Waits until everything that was admitted is settled.
    pub async fn wait_until_settled(&self) {
        self.running.wait().await;
    }

    /// Gives up what still runs; those requests are answered with `ShuttingDown` and not billed.
    pub fn abandon_running(&self) {
        self.abandoned.cancel();
    }

    pub fn running_requests(&self) -> usize {
        self.running.len()
    }

    /// Requests that have ended and whose rows cannot be written for now.
    pub fn unrecorded_requests(&self) -> usize {
        self.unrecorded.count()
    }
}

/// How many longer texts are tokenized at once. It costs much and is done before the limits are asked, so half of the
/// cores are left to those who generate.
fn tokenizing_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}
