//! What the HTTP crates see of metering, apart from running a request: who calls, what a request counts, and stopping.

use crate::activity::Activity;
use crate::authentication::KnownKey;
use crate::limits::RATE_LIMIT_STATUS_TIMEOUT;
use crate::replays::Replays;
use crate::spending::SpendingCaps;
use crate::unrecorded::Unrecorded;
use crate::{Authenticator, Caller, Count, GenerateRequest, Limiter, MeterError, Models};
use chancery_domain::{Clock, Randomness, RateLimitStatus, RequestId, UnixMillis};
use chancery_store::{DbError, MeteringStore, UsageQuery, UsageSum};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub struct Meter {
    pub(crate) models: Models,
    pub(crate) store: Arc<MeteringStore>,
    authenticator: Authenticator,
    pub(crate) limiter: Arc<dyn Limiter>,
    pub(crate) spending: SpendingCaps,
    pub(crate) replays: Replays,
    pub(crate) activity: Activity,
    pub(crate) clock: Arc<dyn Clock>,
    started_at: UnixMillis,
    pub(crate) randomness: Arc<dyn Randomness>,
    /// Longer texts take turns.
    pub(crate) tokenizing_turns: Semaphore,
    pub(crate) unrecorded: Unrecorded,
    /// Requests, and what is left to do of those that were interrupted.
    pub(crate) running: TaskTracker,
    /// Set when the process stops taking work.
    draining: CancellationToken,
    /// Set when work still running is given up.
    pub(crate) abandoned: CancellationToken,
}

impl Meter {
    pub fn new(
        models: Models,
        store: Arc<MeteringStore>,
        limiter: Arc<dyn Limiter>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Self {
        Self {
            models,
            authenticator: Authenticator::new(Arc::clone(&store), Arc::clone(&clock)),
            limiter,
            spending: SpendingCaps::new(Arc::clone(&store), Arc::clone(&clock)),
            replays: Replays::new(Arc::clone(&store), Arc::clone(&clock)),
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

    /// Where an account stands with its limits; None where the limits' store does not say soon enough: a reply is not
    /// held up for it.
    pub async fn rate_limit_status(&self, caller: Caller) -> Option<RateLimitStatus> {
        let asking = self.limiter.status(caller.account, caller.limits);
        tokio::time::timeout(RATE_LIMIT_STATUS_TIMEOUT, asking).await.ok()?.ok()
    }

    /// Whether requests can be admitted as far as the limits' store goes.
    pub async fn ping_limiter(&self) -> Result<(), MeterError> {
        Ok(self.limiter.ping().await?)
    }

    /// Whether what a request would use can be recorded, as far as the requests before it tell.
    pub fn can_record(&self) -> Result<(), MeterError> {
        match self.unrecorded.are_too_many() {
            false => Ok(()),
            true => {
                Err(DbError::Unavailable("the usage of many requests could not be written".to_owned()).into())
            }
        }
    }

    /// Counts and prices a request; runs nothing, writes nothing, costs nothing.
    pub async fn count(&self, caller: Caller, request: &GenerateRequest) -> Result<Count, MeterError> {
        let prepared = self.prepare(request, caller.limits).await?;
        let (input_tokens, prices) = (prepared.prompt.input_tokens, prepared.model.prices);
        let max_output_tokens = prepared.max_billed_output_tokens();
        Ok(Count {
            input_tokens,
            max_output_tokens,
            input_cost: prices.cost(input_tokens, 0)?,
            max_output_cost: prices.cost(0, max_output_tokens)?,
            max_cost: prepared.max_cost()?,
        })
    }

    /// The account's own usage.
    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, MeterError> {
        Ok(self.store.ledger.usage(query).await?)
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
