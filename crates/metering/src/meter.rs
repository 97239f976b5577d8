//! The metering protocol. One request goes through it like this:
//!
//! 1. **Admit.** The model is known, the cap fits, the prompt is counted exactly and fits the context; what it may cost
//!    fits the account's spending cap (`spending`). Nothing is owed if any of this fails.
//! 2. **Generate.** A caller who hangs up cancels the work at the engine's next step.
//! 3. **Settle.** The usage row is made from what was generated and the prices of the moment of admission, and is on
//!    disk before this function returns. Only then may the first byte of the reply leave.
//!
//! All of it runs in a task of its own, which goes on when the caller hangs up: the row is written for exactly the tokens
//! generated until then. Where nothing had been generated, nothing is billed. Work that failed is not billed either.

use crate::limits::{FIRST_SETTLE_PAUSE, GENERATION_TIMEOUT, INLINE_TEXT_BYTES, LAST_SETTLE_PAUSE};
use crate::spending::{Expense, SpendingCaps};
use crate::{Authenticator, Caller, MeterError, Model, Models};
use chancery_domain::{Clock, HowEnded, MoneyError, Nanos, Randomness, RequestId, UnixMillis, UsageRow};
use chancery_engine::{Ended, EngineError, Event, Generation, Job, Prompt, Sampling, StopReason};
use chancery_store::{Settlement, Store, StoreError, UsageQuery, UsageSum};
use std::num::NonZeroU32;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What a caller asks for, already checked for form.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    pub model: String,
    pub instructions: String,
    pub input: String,
    pub max_output_tokens: u64,
    pub temperature: f32,
    pub top_k: Option<NonZeroU32>,
    pub top_p: f32,
    pub min_p: f32,
    /// None draws one.
    pub seed: Option<u64>,
    pub stop: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub output_text: String,
    pub ended: HowEnded,
    pub input_tokens: u32,
    pub output_tokens: u32,
    /// How many of the input tokens did not have to be computed; the bill is the same.
    pub cached_tokens: u32,
}

/// What a request would use and cost at most, without running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub input_tokens: u32,
    /// The cap, or what the context leaves room for if that is less.
    pub max_output_tokens: u32,
    pub input_cost: Nanos,
    pub max_output_cost: Nanos,
    pub max_cost: Nanos,
}

pub struct Meter {
    models: Models,
    store: Arc<dyn Store>,
    authenticator: Authenticator,
    spending: SpendingCaps,
    clock: Arc<dyn Clock>,
    randomness: Arc<dyn Randomness>,
    running: TaskTracker,
    /// Set when the process stops taking work.
    draining: CancellationToken,
    /// Set when work still running is given up.
    abandoned: CancellationToken,
}

struct Admitted {
    model: Arc<Model>,
    prompt: Prompt,
    /// The caller's own cap; the engine also ends at the context's end, and says so.
    max_output_tokens: u32,
    at: UnixMillis,
}

/// One request on its way through the protocol.
struct Work {
    caller: Caller,
    request_id: RequestId,
    request: GenerateRequest,
    admitted: Admitted,
    /// Set when the caller hangs up.
    hung_up: CancellationToken,
}

enum Billed {
    Yes,
    No,
}

impl Admitted {
    /// The cap, or what the context leaves room for if that is less.
    fn most_output_tokens(&self) -> u32 {
        let context_tokens = self.model.engine.context_tokens();
        self.max_output_tokens.min(context_tokens.saturating_sub(self.prompt.prompt_tokens()))
    }

    fn most_cost(&self) -> Result<Nanos, MoneyError> {
        self.model.prices.cost(self.prompt.input_tokens, self.most_output_tokens())
    }
}

impl Meter {
    pub fn new(
        models: Models,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Self {
        Self {
            models,
            authenticator: Authenticator::new(Arc::clone(&store), Arc::clone(&clock)),
            spending: SpendingCaps::new(Arc::clone(&store), Arc::clone(&clock)),
            store,
            clock,
            randomness,
            running: TaskTracker::new(),
            draining: CancellationToken::new(),
            abandoned: CancellationToken::new(),
        }
    }

    pub fn models(&self) -> &Models {
        &self.models
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    pub fn new_request_id(&self) -> RequestId {
        RequestId::new(self.clock.now(), self.randomness.as_ref())
    }

    pub async fn authenticate(&self, presented: Option<&str>) -> Result<Caller, MeterError> {
        self.authenticator.authenticate(presented).await
    }

    /// Counts and prices a request; runs nothing, writes nothing, costs nothing.
    pub async fn count(&self, request: &GenerateRequest) -> Result<Count, MeterError> {
        let admitted = self.admit(request).await?;
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

    /// Runs one request through the protocol above.
    pub async fn generate(
        self: &Arc<Self>,
        caller: Caller,
        request_id: RequestId,
        request: GenerateRequest,
    ) -> Result<Reply, MeterError> {
        // Held from before the check until the task is there, so that a drain that begins in between waits for it.
        let counted = self.running.token();
        if self.draining.is_cancelled() {
            return Err(MeterError::ShuttingDown);
        }
        let hung_up = CancellationToken::new();
        let work = Arc::clone(self).run(caller, request_id, request, hung_up.clone());
        // The task goes on when this future is dropped, because what was generated must still be settled.
        let task = self.running.spawn(work);
        drop(counted);
        let hang_up = hung_up.drop_guard();
        let outcome = task.await.map_err(|error| MeterError::Internal(error.to_string()));
        hang_up.disarm();
        outcome?
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

    async fn admit(&self, request: &GenerateRequest) -> Result<Admitted, MeterError> {
        let at = self.clock.now();
        let model = Arc::clone(self.models.named(&request.model)?);
        let context_tokens = model.engine.context_tokens();
        let asked = request.max_output_tokens;
        let cap = u32::try_from(asked).ok().filter(|cap| *cap <= context_tokens);
        let max_output_tokens = cap.ok_or(MeterError::CapAboveContext { asked, context_tokens })?;
        let (instructions, input) = (&request.instructions, &request.input);
        let prompt = if instructions.len() + input.len() <= INLINE_TEXT_BYTES {
            model.engine.prepare(instructions, input)?
        } else {
            let (engine, instructions, input) =
                (Arc::clone(&model.engine), instructions.clone(), input.clone());
            tokio::task::spawn_blocking(move || engine.prepare(&instructions, &input))
                .await
                .map_err(|error| MeterError::Internal(error.to_string()))??
        };
        Ok(Admitted { model, prompt, max_output_tokens, at })
    }

    async fn run(
        self: Arc<Self>,
        caller: Caller,
        request_id: RequestId,
        request: GenerateRequest,
        hung_up: CancellationToken,
    ) -> Result<Reply, MeterError> {
        let admitted = self.admit(&request).await?;
        let work = Work { caller, request_id, request, admitted, hung_up };
        if !caller.is_capped {
            return self.generate_and_settle(&work, false).await.map(|(reply, _)| reply);
        }
        let (request_id, at) = (&work.request_id, work.admitted.at);
        let expense = Expense { request_id, account: caller.account, amount: work.admitted.most_cost()?, at };
        let is_reserved = self.spending.set_aside(expense).await?;
        let outcome = self.spending.staying_alive(self.generate_and_settle(&work, is_reserved)).await;
        if is_reserved && !matches!(outcome, Ok((_, Billed::Yes))) {
            self.spending.give_back(request_id).await;
        }
        outcome.map(|(reply, _)| reply)
    }

    async fn generate_and_settle(
        &self,
        work: &Work,
        is_reserved: bool,
    ) -> Result<(Reply, Billed), MeterError> {
        let Work { caller, request_id, request, admitted, hung_up } = work;
        let GenerateRequest { temperature, top_k, top_p, min_p, ref stop, .. } = *request;
        let seed = request.seed.unwrap_or_else(|| self.randomness.next_u64());
        let generation = admitted.model.engine.start(Job {
            account: caller.account,
            prompt: admitted.prompt.clone(),
            max_output_tokens: admitted.max_output_tokens,
            sampling: Sampling { temperature, top_k, top_p, min_p, seed },
            stop: stop.clone(),
        })?;
        let (output_text, ended) = self.collect(generation, hung_up).await?;
        let how_ended = match ended.reason {
            StopReason::Complete => HowEnded::Complete,
            StopReason::MaxOutputTokens => HowEnded::MaxOutputTokens,
            StopReason::StopSequence => HowEnded::StopSequence,
            StopReason::ContextLength => HowEnded::ContextLength,
            StopReason::Cancelled => HowEnded::Cancelled,
        };
        let input_tokens = admitted.prompt.input_tokens;
        let reply = Reply {
            output_text,
            ended: how_ended,
            input_tokens,
            output_tokens: ended.output_tokens,
            // The engine counts the template's scaffolding, the bill does not: no more was cached than was counted.
            cached_tokens: ended.cached_tokens.min(input_tokens),
        };
        if how_ended == HowEnded::Cancelled && ended.output_tokens == 0 {
            return Ok((reply, Billed::No));
        }
        let prices = admitted.model.prices;
        let row = UsageRow {
            cost: prices.cost(input_tokens, ended.output_tokens)?,
            request_id: request_id.clone(),
            account: caller.account,
            key: caller.key,
            model: admitted.model.name.clone(),
            input_tokens,
            output_tokens: ended.output_tokens,
            prices,
            at: admitted.at,
            ended: how_ended,
        };
        self.settle(Settlement { row, is_reserved }, hung_up).await?;
        metrics::counter!("chancery_input_tokens_total", "model" => admitted.model.name.clone())
            .increment(u64::from(input_tokens));
        metrics::counter!("chancery_output_tokens_total", "model" => admitted.model.name.clone())
            .increment(u64::from(ended.output_tokens));
        Ok((reply, Billed::Yes))
    }

    /// A caller who waits is told when the row cannot be written, and gets no reply. A caller who has hung up cannot be
    /// told and did use the tokens, so the row is tried until it is written; trying again is safe, because a request
    /// is billed once.
    async fn settle(
        &self,
        mut settlement: Settlement,
        hung_up: &CancellationToken,
    ) -> Result<(), MeterError> {
        let mut pause = FIRST_SETTLE_PAUSE;
        loop {
            let Err(error) = self.settle_once(&mut settlement).await else { return Ok(()) };
            if !hung_up.is_cancelled() {
                return Err(error);
            }
            let request_id = &settlement.row.request_id;
            let may_pass = matches!(
                error,
                MeterError::Store(
                    StoreError::Unavailable(_) | StoreError::DiskFull(_) | StoreError::ReadOnly(_)
                )
            );
            if !may_pass || self.abandoned.is_cancelled() {
                tracing::error!(%request_id, %error, "the usage of a caller who hung up could not be recorded");
                return Err(error);
            }
            tracing::warn!(%request_id, %error, "recording the usage of a caller who hung up is tried again");
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LAST_SETTLE_PAUSE),
                () = self.abandoned.cancelled() => {}
            }
        }
    }

    async fn settle_once(&self, settlement: &mut Settlement) -> Result<(), MeterError> {
        match self.store.settle(settlement.clone()).await {
            Err(StoreError::ReservationGone(request_id)) => {
                tracing::warn!(%request_id, "others took this process for dead; the true cost is set aside anew");
                let UsageRow { account, cost, at, .. } = settlement.row;
                let expense = Expense { request_id: &request_id, account, amount: cost, at };
                settlement.is_reserved = self.spending.set_aside(expense).await?;
                Ok(self.store.settle(settlement.clone()).await?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Gathers the whole reply, or what there is of it when the caller hangs up.
    async fn collect(
        &self,
        mut generation: Generation,
        hung_up: &CancellationToken,
    ) -> Result<(String, Ended), MeterError> {
        let mut output_text = String::new();
        let mut asked_to_stop = false;
        let deadline = tokio::time::sleep(GENERATION_TIMEOUT);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                event = generation.next() => match event? {
                    Event::Text(text) => output_text.push_str(&text),
                    Event::Ended(ended) => return Ok((output_text, ended)),
                },
                () = hung_up.cancelled(), if !asked_to_stop => {
                    asked_to_stop = true;
                    generation.cancel();
                }
                () = self.abandoned.cancelled() => return Err(MeterError::ShuttingDown),
                () = &mut deadline => return Err(EngineError::TimedOut.into()),
            }
        }
    }
}
