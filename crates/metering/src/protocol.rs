//! The metering protocol. One request goes through it like this:
//!
//! 0. **Look.** A request that was sent before under the same idempotency key is answered with what is stored of it, and
//!    goes no further (`idempotency`).
//! 1. **Admit.** The model is known, the cap fits, the prompt is counted exactly and fits the context; the account's
//!    limits per minute have room for all that the request may use, which is reserved (`admission`); and so has its
//!    spending cap (`spending`); and nobody else has its idempotency key. Nothing is owed if any of this fails.
//! 2. **Generate.** A caller who hangs up cancels the work at the engine's next step.
//! 3. **Settle.** The usage row is made from what was generated and the prices of the moment of admission, and is on
//!    disk before the reply is given, and with it the reply if it is to be kept. Only then may its end leave. The
//!    reservations become what was used.
//!
//! All of it runs in a task of its own, which goes on when the caller hangs up: the row is written for exactly the tokens
//! generated until then. Where nothing had been generated, nothing is billed, though the request counts against its
//! limit, since it was admitted. Work that failed is not billed and does not count.

use crate::admission::{Asked, Hold};
use crate::idempotency::Outcome;
use crate::lease::staying_alive;
use crate::limits::{
    FIRST_SETTLE_PAUSE, GENERATION_TIMEOUT, INLINE_TEXT_BYTES, INLINE_TURNS, LAST_SETTLE_PAUSE,
    LEAST_UNCAPPED_TOKENS, REPLY_SETTLE_PATIENCE, STREAM_SETTLE_PATIENCE, TOKENIZING_TURN_TIMEOUT,
};
use crate::running::{Beginning, Reporter};
use crate::spending::Expense;
use crate::{Call, Caller, GenerateRequest, Meter, MeterError, Model, Reply};
use chancery_domain::{HowEnded, MoneyError, Nanos, RateLimits, UnixMillis, UsageRow};
use chancery_engine::{Ended, EngineError, Event, Generation, Job, Prompt, Sampling, StopReason};
use chancery_store::{Claim, Settlement, StoreError};
use std::sync::Arc;

/// A request that may run as far as the model goes.
pub(crate) struct Admitted {
    pub(crate) model: Arc<Model>,
    pub(crate) prompt: Prompt,
    /// The caller's own cap, or all there is room for; the engine also ends at the context's end, and says so.
    max_output_tokens: u32,
    at: UnixMillis,
}

enum Billed {
    Yes,
    No,
}

/// What a request holds in the store while it is under way.
#[derive(Default)]
struct Held {
    /// Whether something was set aside of a spending cap.
    is_reserved: bool,
    claim: Option<Claim>,
}

/// How a request goes on once it may.
enum Start {
    Run(Held),
    Replay(Reply),
}

impl Admitted {
    /// The cap, or what the context leaves room for if that is less.
    pub(crate) fn most_output_tokens(&self) -> u32 {
        let context_tokens = self.model.engine.context_tokens();
        self.max_output_tokens.min(context_tokens.saturating_sub(self.prompt.prompt_tokens()))
    }

    pub(crate) fn most_cost(&self) -> Result<Nanos, MoneyError> {
        self.model.prices.cost(self.prompt.input_tokens, self.most_output_tokens())
    }

    fn asked(&self) -> Asked {
        Asked { input_tokens: self.prompt.input_tokens, max_output_tokens: self.max_output_tokens }
    }
}

impl Meter {
    pub(crate) async fn admit(
        &self,
        request: &GenerateRequest,
        limits: RateLimits,
    ) -> Result<Admitted, MeterError> {
        let at = self.clock.now();
        let model = Arc::clone(self.models.named(&request.model)?);
        let context_tokens = model.engine.context_tokens();
        let cap = match request.max_output_tokens {
            None => None,
            Some(asked) => match u32::try_from(asked) {
                Ok(cap) if cap <= context_tokens => Some(cap),
                _ => return Err(MeterError::CapAboveContext { asked, context_tokens }),
            },
        };
        let turns = &request.turns;
        let text_bytes: usize = turns.iter().map(|turn| turn.text.len()).sum();
        let prompt = if text_bytes <= INLINE_TEXT_BYTES && turns.len() <= INLINE_TURNS {
            model.engine.prepare(turns)?
        } else {
            let (engine, turns) = (Arc::clone(&model.engine), turns.clone());
            let permit = tokio::time::timeout(TOKENIZING_TURN_TIMEOUT, self.tokenizing_turns.acquire()).await;
            let _permit = permit.map_err(|_| EngineError::Overloaded { retry_after_s: 1 })?;
            tokio::task::spawn_blocking(move || engine.prepare(&turns))
                .await
                .map_err(|error| MeterError::Internal(error.to_string()))??
        };
        let max_output_tokens = cap.unwrap_or_else(|| {
            let context_room = context_tokens.saturating_sub(prompt.prompt_tokens());
            let minute_room = limits.tokens_per_min.saturating_sub(prompt.input_tokens);
            // Where there is no room for even one, that one is what the refusal names.
            context_room.min(minute_room).max(1)
        });
        Ok(Admitted { model, prompt, max_output_tokens, at })
    }

    /// The whole protocol. A refusal is counted where it leaves, so once.
    pub(crate) async fn run(self: Arc<Self>, call: Call, reporter: Reporter) -> Result<Reply, MeterError> {
        let Caller { account, key, .. } = call.caller;
        let outcome = Arc::clone(&self).run_uncounted(call, reporter).await;
        if let Err(error) = &outcome {
            self.activity.refused(Some(account), key, error);
        }
        outcome
    }

    async fn run_uncounted(self: Arc<Self>, call: Call, mut reporter: Reporter) -> Result<Reply, MeterError> {
        if let Some(reply) = self.replies.reply_to(&call).await? {
            return Ok(replayed(reply, &mut reporter));
        }
        let (admitted, hold) = tokio::select! {
            reserved = self.admit_and_reserve(&call) => reserved?,
            // Nothing has begun, so nothing is left of it: a reservation under way is released when it is dropped.
            () = reporter.hung_up.cancelled() => return Err(MeterError::HungUp),
        };
        let held = match self.hold_in_store(&call, &admitted).await {
            Ok(Start::Run(held)) => held,
            Ok(Start::Replay(reply)) => {
                hold.release().await;
                return Ok(replayed(reply, &mut reporter));
            }
            Err(error) => {
                hold.release().await;
                return Err(error);
            }
        };
        self.activity.admitted(call.caller, hold.standing().used);
        let work = self.generate_and_settle(&call, &admitted, hold, &mut reporter, &held);
        let outcome = match held.is_reserved || held.claim.is_some() {
            true => staying_alive(self.store.as_ref(), self.clock(), work).await,
            false => work.await,
        };
        if !matches!(outcome, Ok((_, Billed::Yes))) {
            self.let_go(&call, held).await;
        }
        outcome.map(|(reply, _)| reply)
    }

    async fn admit_and_reserve(&self, call: &Call) -> Result<(Admitted, Hold), MeterError> {
        let mut admitted = self.admit(&call.request, call.caller.limits).await?;
        loop {
            let reserved =
                self.admission.reserve(call.caller, call.request_id.clone(), admitted.asked()).await;
            match (room_for_uncapped(call, &admitted, &reserved), reserved) {
                // What was refused holds nothing, and the cap falls each time.
                (Some(room), _) => admitted.max_output_tokens = room,
                (None, reserved) => return Ok((admitted, reserved?)),
            }
        }
    }

    /// Everything or nothing.
    async fn hold_in_store(self: &Arc<Self>, call: &Call, admitted: &Admitted) -> Result<Start, MeterError> {
        let is_reserved = match self.set_aside(call, admitted).await {
            Ok(is_reserved) => is_reserved,
            Err(error) => {
                // It may be there though its answer is not.
                if matches!(error, MeterError::Store(_)) {
                    self.spending.give_back(&call.request_id).await;
                }
                return Err(error);
            }
        };
        let mut held = Held { is_reserved, claim: None };
        match self.replies.claim(call).await {
            Ok(None) => Ok(Start::Run(held)),
            Ok(Some(Outcome::Ours(claim))) => {
                held.claim = Some(claim);
                Ok(Start::Run(held))
            }
            Ok(Some(Outcome::Replay(reply))) => {
                self.let_go(call, held).await;
                Ok(Start::Replay(reply))
            }
            Ok(Some(Outcome::Unsure(claim, error))) => {
                self.let_go(call, held).await;
                self.free_unsure(claim).await;
                Err(error.into())
            }
            Err(error) => {
                self.let_go(call, held).await;
                Err(error)
            }
        }
    }

    /// For a request that bills nothing.
    async fn let_go(self: &Arc<Self>, call: &Call, held: Held) {
        if held.is_reserved {
            self.spending.give_back(&call.request_id).await;
        }
        if let Some(claim) = held.claim {
            self.free(claim).await;
        }
    }

    /// Whether something was set aside of a spending cap.
    async fn set_aside(&self, call: &Call, admitted: &Admitted) -> Result<bool, MeterError> {
        if !call.caller.is_capped {
            return Ok(false);
        }
        let Call { caller, request_id, .. } = call;
        let amount = admitted.most_cost()?;
        self.spending
            .set_aside(Expense { request_id, account: caller.account, amount, at: admitted.at })
            .await
    }

    async fn generate_and_settle(
        &self,
        call: &Call,
        admitted: &Admitted,
        hold: Hold,
        reporter: &mut Reporter,
        held: &Held,
    ) -> Result<(Reply, Billed), MeterError> {
        let counted_tokens = admitted.prompt.input_tokens;
        let generated = match self.start_engine(call, admitted) {
            Ok(generation) => {
                let (id, at) = (call.request_id.clone(), admitted.at);
                let standing = Some(hold.standing());
                reporter.begin(Beginning {
                    id,
                    at,
                    input_tokens: counted_tokens,
                    is_counted: admitted.prompt.is_counted(),
                    is_replay: false,
                    standing,
                });
                self.collect(generation, reporter).await
            }
            Err(error) => Err(error.into()),
        };
        let (output_text, ended) = match generated {
            Ok(generated) => generated,
            Err(error) => {
                hold.release().await;
                return Err(error);
            }
        };
        // Whatever an engine says in the end, no more is billed than was reserved.
        let input_tokens = ended.input_tokens.unwrap_or(counted_tokens).min(counted_tokens);
        let mut reply = Reply {
            id: call.request_id.clone(),
            at: admitted.at,
            output_text,
            ended: how_ended(ended.reason),
            input_tokens,
            output_tokens: ended.output_tokens,
            // The engine counts the template's scaffolding, the bill does not: no more was cached than was counted.
            cached_tokens: ended.cached_tokens.min(input_tokens),
            is_replay: false,
            standing: None,
        };
        if reply.ended == HowEnded::Cancelled && reply.output_tokens == 0 {
            hold.settle(0).await;
            return Ok((reply, Billed::No));
        }
        let settlement = Settlement {
            row: usage_row(call, admitted, &reply)?,
            is_reserved: held.is_reserved,
            kept: held.claim.as_ref().map(|claim| self.replies.kept(claim, &reply)),
        };
        // A row that could not be written may have been, so the tokens count either way.
        let used_tokens = u64::from(input_tokens) + u64::from(reply.output_tokens);
        let (written, standing) =
            tokio::join!(self.settle(settlement, held, reporter), hold.settle(used_tokens));
        written?;
        reply.standing = standing;
        let model = &admitted.model.name;
        metrics::counter!("chancery_input_tokens_total", "model" => model.clone())
            .increment(u64::from(input_tokens));
        metrics::counter!("chancery_output_tokens_total", "model" => model.clone())
            .increment(u64::from(reply.output_tokens));
        Ok((reply, Billed::Yes))
    }

    fn start_engine(&self, call: &Call, admitted: &Admitted) -> Result<Generation, EngineError> {
        let GenerateRequest { temperature, top_k, top_p, min_p, seed, ref stop, .. } = call.request;
        let seed = seed.unwrap_or_else(|| self.randomness.next_u64());
        admitted.model.engine.start(Job {
            account: call.caller.account,
            prompt: admitted.prompt.clone(),
            max_output_tokens: admitted.max_output_tokens,
            sampling: Sampling { temperature, top_k, top_p, min_p, seed },
            stop: stop.clone(),
        })
    }

    /// Gathers the whole reply, or what there is of it when the caller hangs up.
    async fn collect(
        &self,
        mut generation: Generation,
        reporter: &Reporter,
    ) -> Result<(String, Ended), MeterError> {
        let mut output_text = String::new();
        let mut asked_to_stop = false;
        let deadline = tokio::time::sleep(GENERATION_TIMEOUT);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                event = generation.next() => match event? {
                    Event::Text(text) => {
                        reporter.text(&text);
                        output_text.push_str(&text);
                    }
                    Event::Ended(ended) => return Ok((output_text, ended)),
                },
                () = reporter.hung_up.cancelled(), if !asked_to_stop => {
                    asked_to_stop = true;
                    generation.cancel();
                }
                () = self.abandoned.cancelled() => return Err(MeterError::ShuttingDown),
                () = &mut deadline => return Err(EngineError::TimedOut.into()),
            }
        }
    }

    /// A row that cannot be written is tried again for a while before the caller is told, longer where text has left
    /// already: whoever is told will send the request again, and the row may be there though its answer was lost. A caller who
    /// has hung up cannot be told and did use the tokens, so the row is tried until it is written. Trying again is safe,
    /// because a request is billed once.
    async fn settle(
        &self,
        mut settlement: Settlement,
        held: &Held,
        reporter: &Reporter,
    ) -> Result<(), MeterError> {
        let patience = if reporter.streams() { STREAM_SETTLE_PATIENCE } else { REPLY_SETTLE_PATIENCE };
        let deadline = tokio::time::sleep(patience);
        tokio::pin!(deadline);
        let (mut pause, mut is_patient) = (FIRST_SETTLE_PAUSE, true);
        let mut unrecorded = None;
        loop {
            let Err(error) = self.settle_once(&mut settlement, held).await else { return Ok(()) };
            let has_hung_up = reporter.hung_up.is_cancelled();
            let is_worth_it = has_hung_up || is_patient;
            let request_id = &settlement.row.request_id;
            if !is_worth_it || !may_pass(&error) || self.abandoned.is_cancelled() {
                if is_of_an_invoiced_month(&error) {
                    tracing::error!(
                        %request_id, %error,
                        "what a request has used came after its month was invoiced, and is not billed; \
                         to have later ones billed, credit that invoice as a whole and issue the month anew"
                    );
                } else if has_hung_up || reporter.streams() {
                    tracing::error!(%request_id, %error, "what a request has used could not be recorded");
                }
                return Err(match error {
                    MeterError::Store(error) => {
                        MeterError::Unrecorded { error, has_key: held.claim.is_some() }
                    }
                    error => error,
                });
            }
            tracing::warn!(%request_id, %error, "recording what a request has used is tried again");
            unrecorded.get_or_insert_with(|| self.unrecorded.one_more());
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LAST_SETTLE_PAUSE),
                () = &mut deadline, if is_patient => is_patient = false,
                () = self.abandoned.cancelled() => {}
            }
        }
    }

    /// What others took because they thought this process dead is taken again, if it is still there to be taken.
    async fn settle_once(&self, settlement: &mut Settlement, held: &Held) -> Result<(), MeterError> {
        let mut outcome = self.store.settle(settlement.clone()).await;
        if let Err(StoreError::ReservationGone(request_id)) = &outcome {
            tracing::warn!(%request_id, "others took this process for dead; the true cost is set aside anew");
            let UsageRow { account, cost, at, .. } = settlement.row;
            let expense = Expense { request_id, account, amount: cost, at };
            settlement.is_reserved = self.spending.set_aside(expense).await?;
            outcome = self.store.settle(settlement.clone()).await;
        }
        if let (Err(StoreError::ClaimGone(request_id)), Some(claim)) = (&outcome, &held.claim) {
            tracing::warn!(%request_id, "others took this process for dead; its idempotency key is claimed anew");
            self.replies.claim_anew(claim).await?;
            outcome = self.store.settle(settlement.clone()).await;
        }
        Ok(outcome?)
    }
}

/// A caller who sets no cap takes what is left of its minute, where that is enough to be worth it: it did not ask for more.
fn room_for_uncapped(call: &Call, admitted: &Admitted, reserved: &Result<Hold, MeterError>) -> Option<u32> {
    let Err(MeterError::RateLimited { refusal, .. }) = reserved else { return None };
    if call.request.max_output_tokens.is_some() || !refusal.requests_wait.is_zero() {
        return None;
    }
    let left = refusal.standing.remaining().tokens.checked_sub(admitted.prompt.input_tokens.into())?;
    let room = u32::try_from(left).ok()?;
    (LEAST_UNCAPPED_TOKENS..admitted.max_output_tokens).contains(&room).then_some(room)
}

/// The stored reply, told as if it ran.
fn replayed(reply: Reply, reporter: &mut Reporter) -> Reply {
    let Reply { ref id, at, input_tokens, is_replay, standing, .. } = reply;
    reporter.begin(Beginning { id: id.clone(), at, input_tokens, is_counted: true, is_replay, standing });
    if !reply.output_text.is_empty() {
        reporter.text(&reply.output_text);
    }
    reply
}

fn usage_row(call: &Call, admitted: &Admitted, reply: &Reply) -> Result<UsageRow, MoneyError> {
    let prices = admitted.model.prices;
    Ok(UsageRow {
        cost: prices.cost(reply.input_tokens, reply.output_tokens)?,
        request_id: call.request_id.clone(),
        account: call.caller.account,
        key: call.caller.key,
        model: admitted.model.name.clone(),
        input_tokens: reply.input_tokens,
        output_tokens: reply.output_tokens,
        prices,
        at: admitted.at,
        ended: reply.ended,
    })
}

/// Whether the store may take the same thing later.
fn may_pass(error: &MeterError) -> bool {
    use StoreError::{DiskFull, ReadOnly, Unavailable};
    matches!(error, MeterError::Store(Unavailable(_) | DiskFull(_) | ReadOnly(_)))
}

/// Whether the row came too late for its month. The store's databases say so in these words.
fn is_of_an_invoiced_month(error: &MeterError) -> bool {
    matches!(error, MeterError::Store(StoreError::LedgerRefused { why, .. }) if why.contains("month is invoiced"))
}

fn how_ended(reason: StopReason) -> HowEnded {
    match reason {
        StopReason::Complete => HowEnded::Complete,
        StopReason::MaxOutputTokens => HowEnded::MaxOutputTokens,
        StopReason::StopSequence => HowEnded::StopSequence,
        StopReason::ContextLength => HowEnded::ContextLength,
        StopReason::Cancelled => HowEnded::Cancelled,
    }
}
