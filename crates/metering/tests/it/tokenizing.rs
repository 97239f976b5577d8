//! Long prompts, whose tokenization is work before any token is reserved: who may cause it, how much, and in whose turn.

use crate::protocol::end;
use crate::{Fixture, call};
use chancery_domain::{AccountId, LimitUsage, RateLimits, WINDOW};
use chancery_engine::{Engine, EngineError, Generation, Job, Prompt, ScriptedEngine, StopReason, Turn};
use chancery_metering::limits::{INLINE_TEXT_BYTES, TOKENIZE_QUEUE_TIMEOUT};
use chancery_metering::{Caller, GenerateRequest, MeterError};
use chancery_store::{CapChange, LimitsChange};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Counts the long prompts that it tokenizes, and can hold them up.
struct Tokenizer {
    engine: ScriptedEngine,
    max_prompt_bytes: usize,
    tokenized: AtomicUsize,
    running: AtomicUsize,
    max_running: AtomicUsize,
    is_open: Mutex<bool>,
    opened: Condvar,
    /// The last word of each prompt, in the order in which they were begun.
    order: Mutex<Vec<String>>,
}

impl Tokenizer {
    fn new(max_prompt_bytes: usize, is_open: bool) -> Arc<Self> {
        Arc::new(Self {
            engine: ScriptedEngine::new(100, |_, sink| end(sink, StopReason::Complete, 4)),
            max_prompt_bytes,
            tokenized: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            max_running: AtomicUsize::new(0),
            is_open: Mutex::new(is_open),
            opened: Condvar::new(),
            order: Mutex::default(),
        })
    }

    fn tokenized(&self) -> usize {
        self.tokenized.load(Ordering::SeqCst)
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    async fn until_running(&self, count: usize) {
        while self.running.load(Ordering::SeqCst) < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Engine for Tokenizer {
    fn context_tokens(&self) -> u32 {
        self.engine.context_tokens()
    }

    fn max_prompt_bytes(&self) -> usize {
        self.max_prompt_bytes
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        self.tokenized.fetch_add(1, Ordering::SeqCst);
        let running = 1 + self.running.fetch_add(1, Ordering::SeqCst);
        self.max_running.fetch_max(running, Ordering::SeqCst);
        let last_word = turns.last().and_then(|turn| turn.text.split(' ').next_back());
        self.order.lock().unwrap().extend(last_word.map(str::to_owned));
        let is_open = self.is_open.lock().unwrap();
        // A test that fails must not wait for this thread forever.
        drop(self.opened.wait_timeout_while(is_open, Duration::from_secs(30), |is_open| !*is_open).unwrap());
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.engine.prepare(turns)
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        self.engine.start(job)
    }
}

/// As many as the meter tokenizes at once.
fn max_turns() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

/// Two long words and a short one, so more than the bytes that are tokenized inline.
fn long_request(fixture: &Fixture, last_word: &str) -> GenerateRequest {
    let long = "x".repeat(INLINE_TEXT_BYTES);
    let turns = Turn::from_instructions_and_input(long.clone(), format!("{long} {last_word}"));
    GenerateRequest { turns, ..fixture.new_request().1 }
}

fn limited(fixture: &Fixture, requests_per_min: u32, tokens_per_min: u32) -> Caller {
    Caller { limits: RateLimits { requests_per_min, tokens_per_min }, ..fixture.caller.clone() }
}

async fn generate(fixture: &Fixture, caller: &Caller, request: GenerateRequest) -> Result<(), MeterError> {
    fixture.meter.generate(call(caller, fixture.meter.new_request_id(), request)).await.map(drop)
}

fn spawn(fixture: &Fixture, caller: &Caller, request: GenerateRequest) -> JoinHandle<Result<(), MeterError>> {
    let (meter, call) = (Arc::clone(&fixture.meter), call(caller, fixture.meter.new_request_id(), request));
    tokio::spawn(async move { meter.generate(call).await.map(drop) })
}

async fn used(fixture: &Fixture) -> LimitUsage {
    fixture.meter.rate_limit_status(&fixture.caller).await.unwrap().used
}

#[tokio::test]
async fn long_prompt_is_not_tokenized_without_a_request_left() {
    let tokenizer = Tokenizer::new(usize::MAX, true);
    let fixture = Fixture::with_engine(tokenizer.clone()).await;
    let caller = limited(&fixture, 1, 1_000);
    generate(&fixture, &caller, long_request(&fixture, "one")).await.unwrap();
    assert_eq!(used(&fixture).await, LimitUsage { requests: 1, tokens: 7 }, "counted once");
    fixture.clock.advance(Duration::from_secs(20));
    for _ in 0..100 {
        let rejected = generate(&fixture, &caller, long_request(&fixture, "two")).await.unwrap_err();
        let MeterError::RateLimited { rejection, .. } = rejected else { panic!("{rejected}") };
        assert_eq!(rejection.retry_after_s(), 40);
    }
    assert_eq!(tokenizer.tokenized(), 1);
    fixture.clock.advance(Duration::from_secs(40));
    generate(&fixture, &caller, long_request(&fixture, "three")).await.unwrap();
}

#[tokio::test]
async fn rejected_long_prompt_counts_as_a_request() {
    let tokenizer = Tokenizer::new(usize::MAX, true);
    let fixture = Fixture::with_engine(tokenizer.clone()).await;
    let too_long = GenerateRequest {
        turns: vec![Turn::user("word ".repeat(INLINE_TEXT_BYTES))],
        ..fixture.new_request().1
    };
    let capped = LimitsChange {
        spend_per_month: CapChange::Set(chancery_domain::Nanos(1)),
        ..LimitsChange::default()
    };
    fixture.store.set_limits(&crate::NAME.parse().unwrap(), capped).await.unwrap();
    let long = || long_request(&fixture, "x");
    let capped = Caller { is_capped: true, ..limited(&fixture, 3, 1_000) };
    // Three tokens in and up to fifty out.
    for (caller, request, code) in [
        (limited(&fixture, 3, 1_000), too_long, "input too long"),
        (limited(&fixture, 3, 52), long(), "more than a minute's tokens"),
        (capped, long(), "spending cap"),
    ] {
        let before = tokenizer.tokenized();
        for _ in 0..5 {
            let rejected = generate(&fixture, &caller, request.clone()).await.unwrap_err();
            assert!(!matches!(rejected, MeterError::Internal(_)), "{code}: {rejected}");
        }
        assert_eq!(tokenizer.tokenized() - before, 3, "{code}");
        assert_eq!(used(&fixture).await, LimitUsage { requests: 3, tokens: 0 }, "{code}");
        fixture.clock.advance(WINDOW);
    }
}

#[tokio::test]
async fn long_prompt_over_the_tokens_left_gets_the_time_at_which_a_retry_fits() {
    let tokenizer = Tokenizer::new(usize::MAX, true);
    let fixture = Fixture::with_engine(tokenizer.clone()).await;
    let caller = limited(&fixture, 2, 55);
    generate(&fixture, &caller, fixture.new_request().1).await.unwrap_err();
    let short = GenerateRequest { max_output_tokens: Some(10), ..fixture.new_request().1 };
    generate(&fixture, &caller, short).await.unwrap();
    fixture.clock.advance(Duration::from_secs(30));
    let rejected = generate(&fixture, &caller, long_request(&fixture, "x")).await.unwrap_err();
    let MeterError::RateLimited { rejection, tokens: 53 } = rejected else { panic!("{rejected}") };
    assert_eq!((rejection.retry_after_s(), rejection.account.status.used.requests), (30, 2));
    // The rejected one counts as a request, without tokens.
    fixture.clock.advance(Duration::from_secs(30));
    generate(&fixture, &caller, long_request(&fixture, "x")).await.unwrap();
    assert_eq!(used(&fixture).await, LimitUsage { requests: 2, tokens: 7 });
}

#[tokio::test]
async fn long_prompt_without_a_cap_takes_what_is_left_of_the_minute() {
    let tokenizer = Tokenizer::new(usize::MAX, true);
    let fixture = Fixture::with_engine(tokenizer.clone()).await;
    let request = GenerateRequest { max_output_tokens: None, ..long_request(&fixture, "x") };
    // The last request of the minute.
    generate(&fixture, &limited(&fixture, 1, 1_000), request).await.unwrap();
    assert_eq!(used(&fixture).await, LimitUsage { requests: 1, tokens: 7 });
}

#[tokio::test]
async fn text_over_the_byte_bound_is_rejected_untokenized() {
    let tokenizer = Tokenizer::new(1_000, true);
    let fixture = Fixture::with_engine(tokenizer.clone()).await;
    let with = |bytes: usize| GenerateRequest {
        turns: vec![Turn::user("x".repeat(bytes - 1)), Turn::user("y")],
        ..fixture.new_request().1
    };
    let too_long = |outcome: Result<(), MeterError>| {
        matches!(
            outcome,
            Err(MeterError::Engine(EngineError::InputTooLong { prompt_tokens: None, context_tokens: 100 }))
        )
    };
    assert!(too_long(generate(&fixture, &fixture.caller, with(1_001)).await));
    assert!(too_long(fixture.meter.count(&fixture.caller, &with(1_001)).await.map(drop)));
    assert!(too_long(generate(&fixture, &fixture.caller, with(1 << 20)).await));
    assert_eq!((tokenizer.tokenized(), used(&fixture).await), (0, LimitUsage::default()));
    generate(&fixture, &fixture.caller, with(1_000)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hang_up_does_not_free_the_turn_of_a_running_tokenization() {
    let tokenizer = Tokenizer::new(usize::MAX, false);
    let fixture = Fixture::with_engine(tokenizer.clone()).await;
    let caller = limited(&fixture, 10_000, 60_000);
    let first: Vec<_> =
        (0..max_turns()).map(|_| spawn(&fixture, &caller, long_request(&fixture, "x"))).collect();
    tokenizer.until_running(max_turns()).await;
    for work in first {
        work.abort();
    }
    // Counting shares the turns, and is dropped just as easily.
    for _ in 0..3 * max_turns() {
        let (meter, request) = (Arc::clone(&fixture.meter), long_request(&fixture, "x"));
        let counting = async { meter.count(&caller, &request).await.map(drop) };
        assert!(tokio::time::timeout(Duration::from_millis(20), counting).await.is_err());
    }
    assert_eq!(tokenizer.max_running.load(Ordering::SeqCst), max_turns());
    fixture.settled().await;
    assert_eq!(
        used(&fixture).await,
        LimitUsage { requests: max_turns() as u64, tokens: 0 },
        "they were tokenized"
    );
    tokenizer.open();
    fixture.meter.count(&caller, &long_request(&fixture, "x")).await.unwrap();
    assert_eq!(tokenizer.max_running.load(Ordering::SeqCst), max_turns());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_long_prompts_does_not_starve_another_account() {
    let tokenizer = Tokenizer::new(usize::MAX, false);
    let fixture = Fixture::with_engine(tokenizer.clone()).await;
    let flooding = limited(&fixture, 10_000, 1_000_000);
    let counting = |caller: Caller, word: &'static str| {
        let (meter, request) = (Arc::clone(&fixture.meter), long_request(&fixture, word));
        tokio::spawn(async move { meter.count(&caller, &request).await.map(drop) })
    };
    let flood: Vec<_> = (0..100).map(|_| counting(flooding.clone(), "flood")).collect();
    tokenizer.until_running(max_turns()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let other = Caller { account: AccountId(fixture.caller.account.0 + 1), ..flooding };
    let single = counting(other, "other");
    tokio::time::sleep(Duration::from_millis(50)).await;
    tokenizer.open();
    single.await.unwrap().unwrap();
    let begun = tokenizer.order.lock().unwrap().iter().position(|word| word == "other").unwrap();
    assert!(begun <= 2 * max_turns(), "after {begun} others");
    for work in flood {
        // On a busy machine, the last ones may wait for too long.
        let _ = work.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_prompt_that_got_no_turn_in_time_counts_nothing() {
    let tokenizer = Tokenizer::new(usize::MAX, false);
    let fixture = Fixture::with_engine(tokenizer.clone()).await;
    for _ in 0..max_turns() {
        let (meter, caller, request) =
            (Arc::clone(&fixture.meter), fixture.caller.clone(), long_request(&fixture, "x"));
        tokio::spawn(async move { meter.count(&caller, &request).await.map(drop) });
    }
    tokenizer.until_running(max_turns()).await;
    let waited = tokio::time::timeout(
        2 * TOKENIZE_QUEUE_TIMEOUT,
        generate(&fixture, &fixture.caller, long_request(&fixture, "x")),
    );
    let rejected = waited.await.unwrap();
    assert!(matches!(rejected, Err(MeterError::TokenizeQueueFull)), "{rejected:?}");
    assert_eq!((tokenizer.tokenized(), used(&fixture).await), (max_turns(), LimitUsage::default()));
    tokenizer.open();
}
