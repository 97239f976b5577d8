//! The interface for the HTTP crates, apart from running a request: authentication, token counts and shutdown.

use crate::activity::Activity;
use crate::authentication::ValidKey;
use crate::fair_semaphore::FairSemaphore;
use crate::journal::Journal;
use crate::limits::{RATE_LIMIT_STATUS_TIMEOUT, TOKENIZE_QUEUE_LIMITS};
use crate::models::ModelRegistry;
use crate::rate_limits::Bucket;
use crate::replays::Replays;
use crate::spending::SpendingCaps;
use crate::unrecorded::Unrecorded;
use crate::{
    Authenticator, Caller, CostEstimate, GenerateRequest, HashedKey, Limiter, MeterError, Model, Models,
    OfferedModel, PresentedKey,
};
use chancery_domain::{Clock, Randomness, RateLimitStatus, RequestId, UnixMillis};
use chancery_store::{MeteringStore, UsageQuery, UsageSum};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub struct Meter {
    models: ModelRegistry,
    pub(crate) store: Arc<MeteringStore>,
    authenticator: Authenticator,
    pub(crate) limiter: Arc<dyn Limiter>,
    pub(crate) spending: SpendingCaps,
    pub(crate) replays: Replays,
    pub(crate) activity: Activity,
    pub(crate) clock: Arc<dyn Clock>,
    started_at: UnixMillis,
    pub(crate) randomness: Arc<dyn Randomness>,
    /// Bounds how many long prompts are tokenized at once.
    pub(crate) tokenize_permits: Arc<FairSemaphore>,
    pub(crate) unrecorded: Unrecorded,
    pub(crate) journal: Option<Arc<Journal>>,
    /// Running requests, and the settlers of interrupted ones.
    pub(crate) running: TaskTracker,
    /// Cancelled when the process stops admitting requests.
    draining: CancellationToken,
    /// Cancelled when work that still runs is abandoned.
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
            models: ModelRegistry::new(models),
            authenticator: Authenticator::new(Arc::clone(&store), Arc::clone(&clock)),
            limiter,
            spending: SpendingCaps::new(Arc::clone(&store), Arc::clone(&clock)),
            replays: Replays::new(Arc::clone(&store), Arc::clone(&clock)),
            activity: Activity::new(Arc::clone(&clock)),
            store,
            started_at: clock.now(),
            clock,
            randomness,
            tokenize_permits: FairSemaphore::new(tokenize_concurrency(), TOKENIZE_QUEUE_LIMITS),
            unrecorded: Unrecorded::default(),
            journal: None,
            running: TaskTracker::new(),
            draining: CancellationToken::new(),
            abandoned: CancellationToken::new(),
        }
    }

    /// Writes the usage of delivered text to the journal while the database does not take it. Without a journal, an outage that
    /// lasts until the process ends loses it.
    pub fn with_journal(self, journal: Journal) -> Self {
        Self { journal: Some(Arc::new(journal)), ..self }
    }

    /// The models that are offered right now.
    pub fn models(&self) -> Arc<Models> {
        self.models.current()
    }

    /// Offers a model from now on, instead of one of the same name. Requests that were prepared with that one finish with it.
    pub fn offer_model(&self, model: Model) {
        self.models.insert(model);
    }

    /// From now on the model is unknown. Requests that were prepared with it finish.
    pub fn withdraw_model(&self, name: &str) {
        self.models.remove(name);
    }

    /// The model of this name, if the caller's key may use it.
    pub fn model_for(&self, caller: &Caller, name: &str) -> Result<Arc<OfferedModel>, MeterError> {
        let models = self.models.current();
        let model = models.named(name)?;
        match caller.key_limits.allows_model(name) {
            true => Ok(Arc::clone(model)),
            false => Err(MeterError::ModelNotAllowed(name.to_owned())),
        }
    }

    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// When this meter started.
    pub fn started_at(&self) -> UnixMillis {
        self.started_at
    }

    pub fn new_request_id(&self) -> RequestId {
        RequestId::new(self.clock.now(), self.randomness.as_ref())
    }

    /// For requests that fail with the error. A key without an open account counts as a rejection.
    pub async fn authenticate(&self, presented: impl Into<PresentedKey<'_>>) -> Result<Caller, MeterError> {
        self.authenticate_hashed(&presented.into().hash()?).await
    }

    /// The same for a key that is checked more than once.
    pub async fn authenticate_hashed(&self, presented: &HashedKey) -> Result<Caller, MeterError> {
        match self.authenticator.validate_key(presented).await? {
            ValidKey::Billable(caller) => Ok(caller),
            ValidKey::NotBillable { account, key } => {
                let error = MeterError::NoBillingAccount;
                self.activity.record_rejection(account, key, &error);
                Err(error)
            }
        }
    }

    /// Identifies the caller for a public reply. A failure is not an error, and counts as no rejection.
    pub async fn try_authenticate(&self, presented: impl Into<PresentedKey<'_>>) -> Option<Caller> {
        self.authenticator.authenticate(presented).await.ok()
    }

    /// The rate-limit status of what an account generates; `None` if the limit store does not answer soon, because a reply does not wait for it.
    pub async fn rate_limit_status(&self, caller: &Caller) -> Option<RateLimitStatus> {
        let status = self.limiter.status(Bucket::Generation(caller.account), caller.limits);
        tokio::time::timeout(RATE_LIMIT_STATUS_TIMEOUT, status).await.ok()?.ok()
    }

    /// Whether the limit store answers, so that requests can be admitted.
    pub async fn ping_limiter(&self) -> Result<(), MeterError> {
        Ok(self.limiter.ping().await?)
    }

    /// Counts and prices a request; runs nothing, writes nothing, costs nothing. Counts as a read.
    pub async fn count(
        &self,
        caller: &Caller,
        request: &GenerateRequest,
    ) -> Result<CostEstimate, MeterError> {
        self.admit_read(caller).await?;
        let prepared = self.prepare_count(caller, request).await?;
        let (input_tokens, prices) = (prepared.prompt.input_tokens, prepared.model.prices);
        let max_output_tokens = prepared.max_billed_output_tokens();
        Ok(CostEstimate {
            input_tokens,
            max_output_tokens,
            input_cost: prices.max_cost(input_tokens, 0)?,
            max_output_cost: prices.max_cost(0, max_output_tokens)?,
            max_cost: prepared.max_cost()?,
        })
    }

    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, MeterError> {
        Ok(self.store.ledger.usage(query).await?)
    }

    /// From now on no request is admitted.
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

    /// Waits until all admitted requests are settled.
    pub async fn wait_until_settled(&self) {
        self.running.wait().await;
    }

    /// Abandons running requests. A stream that has sent text ends with `Deadline` and is billed; the others fail with
    /// `ShuttingDown`.
    pub fn abandon_running(&self) {
        self.abandoned.cancel();
    }

    pub fn running_requests(&self) -> usize {
        self.running.len()
    }

    /// Finished requests whose usage rows cannot be written for now, those in the journal included.
    pub fn unrecorded_requests(&self) -> usize {
        self.unrecorded.count() + self.journaled_requests()
    }

    /// Finished requests whose usage rows are in the journal.
    pub fn journaled_requests(&self) -> usize {
        self.journal.as_ref().map_or(0, |journal| journal.len())
    }
}

/// How many long prompts are tokenized at once. Tokenizing is expensive, so half of the cores are left for generation.
fn tokenize_concurrency() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}
