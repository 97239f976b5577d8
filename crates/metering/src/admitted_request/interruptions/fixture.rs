//! A test fixture in which everything that metering calls can fail, and the invariants of its requests.

use crate::rate_limits::{
    Bucket, Decision, KeyBucket, Limiter, LimiterUnavailable, MemoryLimiter, RedisLimiter, Reservation, redis,
};
use crate::running::{PendingResponse, Piece, ResponseSender, response_channel};
use crate::{Call, Caller, GenerateRequest, Idempotency, Meter, MeterError, Model, Models, Reply};
use async_trait::async_trait;
use chancery_domain::{
    AccountId, ApiKey, Clock, Fingerprint, KeyLimits, LimitUsage, ManualClock, Nanos, OsRandomness, Prices,
    Randomness, RateLimitStatus, RateLimits, UnixMillis, UsageRow,
};
use chancery_engine::{
    Engine, EngineError, Finished, Generation, GenerationSink, Job, Penalties, Prompt, ScriptedEngine,
    StopReason, Turn,
};
use chancery_store::{
    CapChange, DatabaseUrl, LimitsChange, NewAccount, NewKey, ReserveOutcome, SpendingReservation, Store,
};
use chancery_test_support::RawConnection;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const LIMITS: RateLimits = RateLimits { requests_per_min: 60, tokens_per_min: 60_000 };
const CAP: Nanos = Nanos(1_000_000_000);
const DATABASE: &str = "chancery.db";

/// Yields around every step, so that each has an await point before and after it takes effect. Panics during settlement on
/// request.
pub(super) struct FaultyLimiter {
    pub(super) limiter: Arc<dyn Limiter>,
    /// Tests share one Redis, so each uses its own account there.
    account: AccountId,
    pub(super) panics_in_settle: AtomicU32,
}

impl FaultyLimiter {
    fn own(&self, reservation: &Reservation) -> Reservation {
        let key = reservation.key.map(|key| KeyBucket { bucket: self.own_bucket(key.bucket), ..key });
        Reservation { bucket: self.own_bucket(reservation.bucket), key, ..reservation.clone() }
    }

    fn own_bucket(&self, bucket: Bucket) -> Bucket {
        match bucket {
            Bucket::Generation(_) => Bucket::Generation(self.account),
            Bucket::Reads(_) => Bucket::Reads(self.account),
            Bucket::Key(_, key) => Bucket::Key(self.account, key),
            Bucket::KeyReads(_, key) => Bucket::KeyReads(self.account, key),
            Bucket::Person(person) => Bucket::Person(person),
        }
    }
}

#[async_trait]
impl Limiter for FaultyLimiter {
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable> {
        tokio::task::yield_now().await;
        let decision = self.limiter.reserve(&self.own(reservation)).await;
        tokio::task::yield_now().await;
        decision
    }

    async fn settle(
        &self,
        reservation: &Reservation,
        tokens: u64,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        tokio::task::yield_now().await;
        let left = self.panics_in_settle.load(Ordering::SeqCst);
        if left > 0 {
            self.panics_in_settle.store(left - 1, Ordering::SeqCst);
            panic!("the limiter panics, as the test wants");
        }
        let status = self.limiter.settle(&self.own(reservation), tokens).await;
        tokio::task::yield_now().await;
        status
    }

    async fn release(&self, reservation: &Reservation) -> Result<RateLimitStatus, LimiterUnavailable> {
        tokio::task::yield_now().await;
        self.limiter.release(&self.own(reservation)).await
    }

    async fn status(
        &self,
        bucket: Bucket,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        self.limiter.status(self.own_bucket(bucket), limits).await
    }

    async fn ping(&self) -> Result<(), LimiterUnavailable> {
        self.limiter.ping().await
    }
}

/// Panics in the request's task on request.
pub(super) struct FaultyEngine {
    pub(super) engine: ScriptedEngine,
    pub(super) panics_at_start: AtomicBool,
}

impl Engine for FaultyEngine {
    fn context_tokens(&self) -> u32 {
        self.engine.context_tokens()
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        self.engine.prepare(turns)
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        assert!(!self.panics_at_start.swap(false, Ordering::SeqCst), "the engine panics, as the test wants");
        self.engine.start(job)
    }
}

/// Panics on every call to `now` while `panics` is set.
pub(super) struct FaultyClock {
    pub(super) clock: ManualClock,
    pub(super) panics: AtomicBool,
}

impl Clock for FaultyClock {
    fn now(&self) -> UnixMillis {
        assert!(!self.panics.load(Ordering::SeqCst), "the clock panics, as the test wants");
        self.clock.now()
    }

    fn monotonic(&self) -> Instant {
        self.clock.monotonic()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum LimitStore {
    Memory,
    Redis,
}

/// An account with a spending cap, whose requests all have an idempotency key.
pub(super) struct Fixture {
    pub(super) meter: Arc<Meter>,
    pub(super) store: Arc<Store>,
    pub(super) clock: Arc<FaultyClock>,
    pub(super) limiter: Arc<FaultyLimiter>,
    pub(super) engine: Arc<FaultyEngine>,
    caller: Caller,
    folder: tempfile::TempDir,
}

/// Whether the caller streams the text, or only wants the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseMode {
    Stream,
    Whole,
}

impl ResponseMode {
    fn channel(self) -> (ResponseSender, PendingResponse) {
        let (sender, pending) = response_channel();
        match self {
            Self::Stream => (sender, pending),
            Self::Whole => (sender.not_streaming(), pending),
        }
    }
}

/// A request that a test polls and drops, and the caller's side of it.
pub(super) struct Interrupted {
    pub(super) call: Call,
    pub(super) pending: PendingResponse,
}

/// Sends two words, or one if it is cancelled after the first.
pub(super) fn send_two_words(sink: GenerationSink) {
    sink.text("Dear");
    std::thread::sleep(Duration::from_millis(3));
    let (reason, output_tokens) = match sink.is_cancelled() {
        true => (StopReason::Cancelled, 1),
        false => {
            sink.text(" Ruth");
            (StopReason::Complete, 2)
        }
    };
    sink.end(Finished {
        reason,
        output_tokens,
        cached_tokens: 0,
        billed_cached_tokens: 0,
        reasoning_tokens: 0,
        prefilled_tokens: 0,
        input_tokens: None,
    });
}

/// Sends one word, then waits until it is cancelled.
pub(super) fn send_one_word_then_wait(sink: GenerationSink) {
    sink.text("Dear");
    while !sink.is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    sink.end(Finished {
        reason: StopReason::Cancelled,
        output_tokens: 1,
        cached_tokens: 0,
        billed_cached_tokens: 0,
        reasoning_tokens: 0,
        prefilled_tokens: 0,
        input_tokens: None,
    });
}

impl Fixture {
    pub(super) async fn new(limit_store: LimitStore, script: fn(GenerationSink)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = DatabaseUrl::sqlite_file(&folder.path().join(DATABASE));
        let store = Arc::new(Store::open(&url).await.unwrap());
        let clock = ManualClock::at(UnixMillis(1_800_000_000_000));
        let clock = Arc::new(FaultyClock { clock, panics: AtomicBool::new(false) });
        let name: chancery_domain::AccountName = "Hale & Ward".parse().unwrap();
        let new = NewAccount { name: name.clone(), limits: LIMITS, created_at: clock.now() };
        let account = store.create_account(new).await.unwrap().id;
        let spend_per_month = CapChange::Set(CAP);
        store.set_limits(&name, LimitsChange { spend_per_month, ..LimitsChange::default() }).await.unwrap();
        let key = ApiKey::generate(&OsRandomness);
        let (prefix, hash, created_at) = (key.prefix(), key.hash(), clock.now());
        let new = NewKey {
            prefix,
            hash,
            label: String::new(),
            account: Some(account),
            created_at,
            limits: KeyLimits::default(),
        };
        let key = store.create_key(new).await.unwrap().id;
        let limiter: Arc<dyn Limiter> = match limit_store {
            LimitStore::Memory => Arc::new(MemoryLimiter::new(clock.clone())),
            LimitStore::Redis => Arc::new(RedisLimiter::with_clock(&redis(), clock.clone())),
        };
        let account_in_limiter = AccountId((OsRandomness.next_u64() >> 1) as i64);
        let limiter =
            FaultyLimiter { limiter, account: account_in_limiter, panics_in_settle: AtomicU32::new(0) };
        let limiter = Arc::new(limiter);
        let engine = ScriptedEngine::new(100, move |_, sink| script(sink));
        let engine = Arc::new(FaultyEngine { engine, panics_at_start: AtomicBool::new(false) });
        let prices = Prices::new("1".parse().unwrap(), "2".parse().unwrap()).unwrap();
        let models = Models::new([Model { name: "words".to_owned(), engine: engine.clone(), prices }]);
        let randomness = Arc::new(OsRandomness);
        let meter =
            Meter::new(models, Arc::new(store.metering()), limiter.clone(), clock.clone(), randomness);
        let key_limits = KeyLimits::default();
        let caller = Caller { account, key, limits: LIMITS, key_limits, is_capped: true };
        Self { meter: Arc::new(meter), store, clock, limiter, engine, caller, folder }
    }

    /// Six input tokens and up to 50 output tokens, with its own idempotency key.
    fn call(&self) -> Call {
        let request_id = self.meter.new_request_id();
        let key = request_id.as_str().parse().unwrap();
        let fingerprint = Fingerprint::of("/v1/generate", b"{}");
        let request = GenerateRequest {
            model: "words".to_owned(),
            turns: Turn::from_instructions_and_input("Answer briefly.", "What is a ledger?"),
            max_output_tokens: Some(50),
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            penalties: Penalties::NONE,
            seed: None,
            stop: Vec::new(),
            stop_on_repetition: false,
            top_logprobs: None,
        };
        let idempotency = Some(Idempotency { key, fingerprint });
        Call { caller: self.caller.clone(), request_id, request, idempotency }
    }

    /// The size of the future that runs one request.
    pub(super) fn request_bytes(&self) -> usize {
        let (sender, _pending) = ResponseMode::Whole.channel();
        size_of_val(&Arc::clone(&self.meter).run(self.call(), sender))
    }

    /// Lets the request wait `waits` times, then drops it at its next wait. The outcome is `None` unless it finished before.
    pub(super) async fn drop_after(
        &self,
        waits: u32,
        mode: ResponseMode,
    ) -> (Interrupted, Option<Result<Reply, MeterError>>) {
        let (call, (reporter, pending)) = (self.call(), mode.channel());
        let run = Arc::clone(&self.meter).run(call.clone(), reporter);
        let outcome = drop_at_wait(waits, self.meter.running.track_future(run)).await;
        (Interrupted { call, pending }, outcome)
    }

    /// The same with a caller who hangs up instead of the request that is dropped.
    pub(super) async fn hang_up_after(&self, waits: u32) -> (Interrupted, Option<Result<Reply, MeterError>>) {
        let (call, (_, pending)) = (self.call(), ResponseMode::Whole.channel());
        let outcome = drop_at_wait(waits, self.meter.generate(call.clone())).await;
        (Interrupted { call, pending }, outcome)
    }

    /// Runs the request in a task of its own, as the API does with streams.
    pub(super) fn spawn(&self, mode: ResponseMode) -> (Interrupted, JoinHandle<Result<Reply, MeterError>>) {
        let (call, (reporter, pending)) = (self.call(), mode.channel());
        let work = self.meter.running.spawn(Arc::clone(&self.meter).run(call.clone(), reporter));
        (Interrupted { call, pending }, work)
    }

    pub(super) async fn run(&self, mode: ResponseMode) -> (Interrupted, Result<Reply, MeterError>) {
        let (interrupted, work) = self.spawn(mode);
        let outcome = work.await.unwrap_or_else(|error| Err(MeterError::Internal(error.to_string())));
        (interrupted, outcome)
    }

    /// Asks as the API does. The outcome is whether a request was admitted.
    pub(super) async fn ask(&self, mode: ResponseMode) -> Result<(), MeterError> {
        match mode {
            ResponseMode::Whole => self.meter.generate(self.call()).await.map(drop),
            ResponseMode::Stream => self.meter.stream(self.call()).await.map(drop),
        }
    }

    /// A stream whose caller has read one word and whose engine is waiting.
    pub(super) async fn spawn_and_read_a_word(&self) -> (Interrupted, JoinHandle<Result<Reply, MeterError>>) {
        let (mut interrupted, work) = self.spawn(ResponseMode::Stream);
        assert_eq!(interrupted.pending.pieces.recv().await.unwrap(), Piece::of_text("Dear"));
        (interrupted, work)
    }

    /// Waits until writing a row has failed and is being retried.
    pub(super) async fn unrecorded(&self) {
        while self.meter.unrecorded_requests() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) async fn has_claimed(&self, call: &Call) -> bool {
        let key = &call.idempotency.as_ref().unwrap().key;
        self.store
            .idempotency
            .idempotency_record(call.caller.account, key, self.clock.now())
            .await
            .unwrap()
            .is_some()
    }

    pub(super) async fn settled(&self) {
        while self.meter.running_requests() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) async fn row(&self, call: &Call) -> Option<UsageRow> {
        let rows = self.store.ledger_chains.ledger_rows(None, 1_000).await.unwrap();
        let mut rows = rows.into_iter().filter(|row| row.request_id == call.request_id);
        let row = rows.next();
        assert_eq!(rows.next(), None, "it is billed once");
        row
    }

    pub(super) async fn used(&self) -> LimitUsage {
        self.limiter.status(Bucket::Generation(self.caller.account), LIMITS).await.unwrap().used
    }

    /// Whether another request could reserve all of the unspent cap.
    pub(super) async fn is_rest_of_cap_free(&self) -> bool {
        let rows = self.store.ledger_chains.ledger_rows(None, 1_000).await.unwrap();
        let amount = Nanos(CAP.0 - rows.iter().map(|row| row.cost.0).sum::<i64>());
        let (request_id, at) = (self.meter.new_request_id(), self.clock.now());
        let all = SpendingReservation {
            request_id: request_id.clone(),
            account: self.caller.account,
            key: self.caller.key,
            amount,
            at,
            now: at,
        };
        let is_free = self.store.spending.reserve_spending(all).await.unwrap() == ReserveOutcome::Reserved;
        self.store.spending.release_spending(&request_id).await.unwrap();
        is_free
    }

    /// Checks what must hold once a request is over, whatever happened to it. Returns the billed output tokens, if any.
    pub(super) async fn assert_closed(&self, interrupted: &mut Interrupted) -> Option<u32> {
        let Interrupted { call, pending } = interrupted;
        self.settled().await;
        let row = self.row(call).await;
        let mut text = String::new();
        while let Ok(Piece::Reasoning(more) | Piece::Text { text: more, .. }) = pending.pieces.try_recv() {
            text += &more;
        }
        let key = &call.idempotency.as_ref().unwrap().key;
        // Background releases may take a moment longer.
        for attempt in 0.. {
            let holder = self
                .store
                .idempotency
                .idempotency_record(call.caller.account, key, self.clock.now())
                .await
                .unwrap();
            let is_key_right = match &row {
                None => holder.is_none(),
                Some(_) => holder.is_some_and(|holder| holder.reply.unwrap().output_text.starts_with(&text)),
            };
            if is_key_right && self.is_rest_of_cap_free().await {
                break;
            }
            assert!(attempt < 500, "something is still reserved, or was freed that is billed: {row:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let used = self.used().await;
        match row {
            Some(row) => {
                let tokens = u64::from(row.input_tokens) + u64::from(row.output_tokens);
                assert_eq!(used, LimitUsage { requests: 1, tokens }, "the limits count what is billed");
                assert!(text.split_whitespace().count() as u32 <= row.output_tokens, "{text}: {row:?}");
                Some(row.output_tokens)
            }
            None => {
                assert_eq!(text, "", "what was read is billed");
                // If the request was dropped while its row was being written, its tokens count whether or not the row exists.
                assert!(used == LimitUsage::default() || used.requests == 1 && used.tokens <= 8, "{used:?}");
                None
            }
        }
    }

    /// Locks the database exclusively, as another process could.
    pub(super) async fn lock_database(&self) -> RawConnection {
        let file = self.folder.path().join(DATABASE);
        let mut other = RawConnection::open(&format!("sqlite:{}", file.display())).await;
        other.run("BEGIN EXCLUSIVE").await.unwrap();
        other
    }
}

pub(super) async fn unlock(mut database: RawConnection) {
    database.run("ROLLBACK").await.unwrap();
}

/// Lets the work wait `waits` times, then drops it at its next wait. Returns its output if it has ended before.
async fn drop_at_wait<T>(waits: u32, work: impl Future<Output = T>) -> Option<T> {
    let mut work = Box::pin(work);
    let mut waited = 0;
    let output = poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if waited == waits => Poll::Ready(None),
        Poll::Pending => {
            waited += 1;
            Poll::Pending
        }
    });
    let output = output.await;
    drop(work);
    output
}
