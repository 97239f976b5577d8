//! Idempotency keys, from the first lookup to the replay.

use crate::protocol::end;
use crate::{Fixture, LIMITS, NAME, call, unlock};
use chancery_domain::{Clock, Fingerprint, IdempotencyKey, Nanos, StopReason, UnixMillis};
use chancery_engine::{EngineError, Finished, GenerationSink};
use chancery_metering::limits::STORED_REPLY_TTL;
use chancery_metering::{Call, Idempotency, MeterError, Reply, StreamEvent};
use chancery_store::{CapChange, ClaimOutcome, DbError, KeyClaim, LEASE_DURATION, LimitsChange};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

fn key() -> IdempotencyKey {
    "order-17".parse().unwrap()
}

fn named(body: &str) -> Option<Idempotency> {
    Some(Idempotency { key: key(), fingerprint: Fingerprint::of("/v1/generate", body.as_bytes()) })
}

/// The fixture's request, with the one idempotency key of these tests.
fn keyed(fixture: &Fixture) -> Call {
    let (id, request) = fixture.new_request();
    Call { idempotency: named("{}"), ..call(&fixture.caller, id, request) }
}

async fn send(fixture: &Fixture) -> Result<Reply, MeterError> {
    fixture.meter.generate(keyed(fixture)).await
}

fn send_reply(sink: GenerationSink) {
    sink.reasoning("A book?");
    sink.text("A ledger ");
    sink.text("is a book.");
    sink.end(Finished {
        reason: StopReason::Complete,
        output_tokens: 5,
        cached_tokens: 4,
        billed_cached_tokens: 4,
        reasoning_tokens: 2,
        prefilled_tokens: 0,
        input_tokens: None,
    });
}

#[tokio::test]
async fn text_before_the_end_is_needed_only_where_it_is_streamed_or_stored() {
    let needs_partial_text = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&needs_partial_text);
    let fixture = Fixture::with(move |job, sink| {
        seen.lock().unwrap().push(job.needs_partial_text);
        send_reply(sink);
    })
    .await;
    let (id, request) = fixture.new_request();
    fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap();
    let (id, request) = fixture.new_request();
    drop(fixture.meter.stream(call(&fixture.caller, id, request)).await.unwrap());
    fixture.settled().await;
    send(&fixture).await.unwrap();
    assert_eq!(*needs_partial_text.lock().unwrap(), [false, true, true]);
}

/// A fixture whose engine counts its runs, signals when one starts, and waits for `go` to continue.
struct Gated {
    fixture: Fixture,
    runs: Arc<AtomicU32>,
    begun: Arc<Mutex<Receiver<()>>>,
    go: Sender<()>,
}

impl Gated {
    async fn with(script: fn(GenerationSink)) -> Self {
        let (go, wait) = channel::<()>();
        let (began, begun) = channel::<()>();
        let (wait, began) = (Mutex::new(wait), Mutex::new(began));
        let runs = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&runs);
        let fixture = Fixture::with(move |_, sink| {
            count.fetch_add(1, Ordering::SeqCst);
            began.lock().unwrap().send(()).unwrap();
            wait.lock().unwrap().recv().unwrap();
            script(sink);
        })
        .await;
        Self { fixture, runs, begun: Arc::new(Mutex::new(begun)), go }
    }

    /// Sends the request and waits until the engine has started it.
    async fn under_way(&self) -> tokio::task::JoinHandle<Result<Reply, MeterError>> {
        let (meter, call) = (Arc::clone(&self.fixture.meter), keyed(&self.fixture));
        let sent = tokio::spawn(async move { meter.generate(call).await });
        let begun = Arc::clone(&self.begun);
        tokio::task::spawn_blocking(move || begun.lock().unwrap().recv().unwrap()).await.unwrap();
        sent
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

fn is_in_flight(outcome: &Result<Reply, MeterError>) -> bool {
    matches!(outcome, Err(MeterError::IdempotencyInFlight))
}

#[tokio::test]
async fn replay_returns_the_first_reply_without_running_or_billing() {
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let fixture = Fixture::with(move |_, sink| {
        count.fetch_add(1, Ordering::SeqCst);
        send_reply(sink);
    })
    .await;
    let first = send(&fixture).await.unwrap();
    assert!(!first.is_replay);
    fixture.clock.advance(Duration::from_secs(3600));
    for _ in 0..3 {
        let again = send(&fixture).await.unwrap();
        assert_eq!(again, Reply { is_replay: true, rate_limit_status: None, ..first.clone() });
    }
    assert_eq!((runs.load(Ordering::SeqCst), fixture.rows().await), (1, vec![(6, 5, "complete")]));
}

#[tokio::test]
async fn replayed_stream_has_its_start_text_and_end() {
    let fixture = Fixture::with(|_, sink| send_reply(sink)).await;
    let mut streams = Vec::new();
    for is_replay in [false, true] {
        let mut running = fixture.meter.stream(keyed(&fixture)).await.unwrap();
        let beginning = running.start().clone();
        assert_eq!((beginning.is_replay, beginning.rate_limit_status.is_none()), (is_replay, is_replay));
        let (mut reasoning, mut text) = (String::new(), String::new());
        let reply = loop {
            match running.next().await {
                StreamEvent::Reasoning(more) => {
                    assert_eq!(text, "", "reasoning comes first");
                    reasoning.push_str(&more);
                }
                StreamEvent::Text { text: more, .. } => text.push_str(&more),
                StreamEvent::Ended(outcome) => break outcome.unwrap(),
            }
        };
        assert_eq!((text.as_str(), reply.is_replay), ("A ledger is a book.", is_replay));
        assert_eq!((reasoning.as_str(), reply.reasoning_tokens), ("A book?", 2));
        streams.push((beginning.id, beginning.at, beginning.input_tokens, reply.id, reply.output_tokens));
    }
    assert_eq!(streams[0], streams[1]);
    assert_eq!(fixture.rows().await.len(), 1);
}

#[tokio::test]
async fn different_request_under_the_same_key_is_rejected_during_and_after() {
    let gated = Gated::with(send_reply).await;
    let first = gated.under_way().await;
    let other = || Call { idempotency: named("{\"seed\":1}"), ..keyed(&gated.fixture) };
    assert!(is_in_flight(&send(&gated.fixture).await));
    let rejected = gated.fixture.meter.generate(other()).await;
    assert!(matches!(rejected, Err(MeterError::IdempotencyMismatch)), "{rejected:?}");
    gated.go.send(()).unwrap();
    first.await.unwrap().unwrap();
    let rejected = gated.fixture.meter.generate(other()).await;
    assert!(matches!(rejected, Err(MeterError::IdempotencyMismatch)), "{rejected:?}");
    assert!(send(&gated.fixture).await.unwrap().is_replay);
    assert_eq!((gated.runs(), gated.fixture.rows().await.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_race_under_one_key_run_once() {
    let fixture = Fixture::with(|_, sink| {
        std::thread::sleep(Duration::from_millis(5));
        send_reply(sink);
    })
    .await;
    let mut racing = JoinSet::new();
    for number in 0..50 {
        let (meter, call) = (Arc::clone(&fixture.meter), keyed(&fixture));
        racing.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number % 20)).await;
            meter.generate(call).await
        });
    }
    let (mut ran, mut replayed, mut in_flight) = (0, 0, 0);
    for outcome in racing.join_all().await {
        match outcome {
            Ok(reply) if reply.is_replay => replayed += 1,
            Ok(_) => ran += 1,
            Err(MeterError::IdempotencyInFlight) => in_flight += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((ran, replayed + in_flight), (1, 49));
    assert_eq!(fixture.rows().await, [(6, 5, "complete")]);
    let status = fixture.meter.rate_limit_status(&fixture.caller).await.unwrap();
    assert_eq!((status.used.requests, status.used.tokens), (1, 11), "losers count nothing");
}

#[tokio::test]
async fn replay_consumes_only_a_read() {
    let mut fixture = Fixture::with(|_, sink| send_reply(sink)).await;
    // The account may spend exactly what this request may cost, and may send one request per minute.
    let cap = 6 * 1_000 + 50 * 2_000;
    let change = LimitsChange {
        spend_per_month: CapChange::Set(Nanos(cap)),
        requests_per_min: Some(1),
        ..LimitsChange::default()
    };
    fixture.store.set_limits(&NAME.parse().unwrap(), change).await.unwrap();
    fixture.caller = fixture.meter.authenticate(Some(fixture.key.reveal())).await.unwrap();
    assert!(fixture.caller.is_capped && fixture.caller.limits.requests_per_min == 1);
    let first = send(&fixture).await.unwrap();
    let (id, request) = fixture.new_request();
    let other = fixture.meter.generate(call(&fixture.caller, id, request)).await;
    assert!(matches!(other, Err(MeterError::RateLimited { .. })), "{other:?}");
    assert_eq!(send(&fixture).await.unwrap().id, first.id);
    fixture.clock.advance(Duration::from_secs(15));
    let rejected = send(&fixture).await;
    let Err(MeterError::ReadsRateLimited(rejection)) = rejected else { panic!("{rejected:?}") };
    assert_eq!(rejection.retry_after_s(), 45);
    fixture.clock.advance(Duration::from_secs(45));
    assert!(send(&fixture).await.unwrap().is_replay);
    assert_eq!(fixture.meter.rate_limit_status(&fixture.caller).await.unwrap().used.requests, 0);
}

#[tokio::test]
async fn new_idempotency_keys_take_nothing_from_the_reads() {
    let mut fixture = Fixture::with(|_, sink| send_reply(sink)).await;
    fixture.caller.limits.requests_per_min = 3;
    for number in 0..3 {
        let mut call = keyed(&fixture);
        call.idempotency.as_mut().unwrap().key = format!("order-{number}").parse().unwrap();
        fixture.meter.generate(call).await.unwrap();
    }
    for _ in 0..3 {
        fixture.meter.admit_read(&fixture.caller).await.unwrap();
    }
}

#[tokio::test]
async fn unbilled_request_frees_its_idempotency_key() {
    let scripts: [fn(GenerationSink); 3] = [
        |sink| sink.fail(EngineError::Failed("broken".to_owned())),
        drop,
        |sink| end(sink, StopReason::Cancelled, 0),
    ];
    for script in scripts {
        let turn = AtomicU32::new(0);
        let fixture = Fixture::with(move |_, sink| match turn.fetch_add(1, Ordering::SeqCst) {
            0 => script(sink),
            _ => send_reply(sink),
        })
        .await;
        let _ = send(&fixture).await;
        assert_eq!(fixture.rows().await, []);
        let second = send(&fixture).await.unwrap();
        assert!(!second.is_replay);
        assert_eq!(send(&fixture).await.unwrap().id, second.id);
        assert_eq!(fixture.rows().await.len(), 1);
    }
}

#[tokio::test]
async fn rejected_request_claims_no_idempotency_key() {
    let fixture = Fixture::with(|_, sink| send_reply(sink)).await;
    let good = keyed(&fixture);
    let never =
        chancery_metering::GenerateRequest { max_output_tokens: Some(1_000_000), ..good.request.clone() };
    let rejected = fixture.meter.generate(Call { request: never, ..good }).await;
    assert!(matches!(rejected, Err(MeterError::MaxTokensAboveContext { .. })));
    assert!(!send(&fixture).await.unwrap().is_replay);
}

#[tokio::test]
async fn retry_after_hang_up_replays_what_was_billed() {
    let gated = Gated::with(|sink| {
        sink.text("Dear");
        while !sink.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(sink, StopReason::Cancelled, 1);
    })
    .await;
    let sent = gated.under_way().await;
    sent.abort();
    gated.go.send(()).unwrap();
    gated.fixture.settled().await;
    let reply = send(&gated.fixture).await.unwrap();
    assert_eq!((reply.output_text.as_str(), reply.stop_reason), ("Dear", StopReason::Cancelled));
    assert_eq!((reply.input_tokens, reply.output_tokens, reply.is_replay), (6, 1, true));
    assert_eq!((gated.runs(), gated.fixture.rows().await), (1, vec![(6, 1, "cancelled")]));
}

#[tokio::test]
async fn idempotency_key_expires_a_day_after_completion() {
    let fixture = Fixture::with(|_, sink| send_reply(sink)).await;
    let first = send(&fixture).await.unwrap();
    fixture.clock.advance(STORED_REPLY_TTL - Duration::from_millis(1));
    fixture.meter.maintain_once().await.unwrap();
    assert_eq!(send(&fixture).await.unwrap().id, first.id);
    fixture.clock.advance(Duration::from_millis(1));
    let second = send(&fixture).await.unwrap();
    assert!(!second.is_replay && second.id != first.id);
    assert_eq!(fixture.rows().await.len(), 2);
    assert_eq!(fixture.store.stored_replies.finished_keys(None, 10).await.unwrap().len(), 1);
    fixture.clock.advance(STORED_REPLY_TTL);
    fixture.meter.maintain_once().await.unwrap();
    assert_eq!(fixture.store.stored_replies.finished_keys(None, 10).await.unwrap(), []);
    assert_eq!(fixture.rows().await.len(), 2, "the bill stays");
}

/// Claims the key from another process, as if the fixture's process had died. Returns the claim.
async fn with_stolen_claim(fixture: &Fixture) -> (Arc<chancery_store::Store>, KeyClaim) {
    let other = fixture.another_process().await;
    let now = UnixMillis(fixture.clock.now().0 + LEASE_DURATION.as_millis() as i64);
    let Idempotency { key, fingerprint } = named("{}").unwrap();
    let (account, request_id) = (fixture.caller.account, fixture.meter.new_request_id());
    let expires_at = UnixMillis(now.0 + 1_000_000);
    let claim = KeyClaim { account, key, fingerprint, request_id, now, expires_at };
    assert_eq!(other.idempotency.claim_key(&claim).await.unwrap(), ClaimOutcome::Claimed);
    (other, claim)
}

#[tokio::test]
async fn process_that_lost_its_idempotency_key_bills_nothing() {
    let gated = Gated::with(send_reply).await;
    let sent = gated.under_way().await;
    let (other, claim) = with_stolen_claim(&gated.fixture).await;
    gated.go.send(()).unwrap();
    let outcome = sent.await.unwrap();
    assert!(is_in_flight(&outcome), "{outcome:?}");
    assert_eq!(gated.fixture.rows().await, []);
    let holder = other.idempotency.idempotency_record(claim.account, &claim.key, claim.now).await.unwrap();
    assert!(holder.is_some(), "it is still the other's");
    other.close().await;
}

#[tokio::test]
async fn process_whose_key_was_claimed_and_freed_again_bills_once() {
    let gated = Gated::with(send_reply).await;
    let sent = gated.under_way().await;
    let (other, claim) = with_stolen_claim(&gated.fixture).await;
    other.idempotency.release_key(&claim).await.unwrap();
    gated.go.send(()).unwrap();
    let reply = sent.await.unwrap().unwrap();
    assert_eq!(gated.fixture.rows().await.len(), 1);
    assert_eq!(send(&gated.fixture).await.unwrap().id, reply.id);
    other.close().await;
}

#[tokio::test]
async fn request_of_a_process_that_died_can_be_retried() {
    let gated = Gated::with(send_reply).await;
    // The process dies between its claim and its settlement: what remains is the claim, and a lease that expires.
    let dead = gated.fixture.another_process().await;
    let Idempotency { key, fingerprint } = named("{}").unwrap();
    let (account, now) = (gated.fixture.caller.account, gated.fixture.clock.now());
    let expires_at = UnixMillis(now.0 + 900_000);
    let request_id = gated.fixture.meter.new_request_id();
    let claim = KeyClaim { account, key, fingerprint, request_id, now, expires_at };
    assert_eq!(dead.idempotency.claim_key(&claim).await.unwrap(), ClaimOutcome::Claimed);
    assert!(is_in_flight(&send(&gated.fixture).await));
    gated.fixture.clock.advance(LEASE_DURATION);
    gated.go.send(()).unwrap();
    let reply = send(&gated.fixture).await.unwrap();
    assert!(!reply.is_replay);
    assert_eq!(send(&gated.fixture).await.unwrap().id, reply.id);
    assert_eq!(gated.fixture.rows().await.len(), 1);
}

#[tokio::test]
async fn long_request_renews_its_key_lease() {
    let gated = Gated::with(send_reply).await;
    let sent = gated.under_way().await;
    // The meter renews its lease by a timer, independent of the test clock. Without that, the lease would expire below.
    gated.fixture.clock.advance(LEASE_DURATION * 2 / 3);
    tokio::time::sleep(LEASE_DURATION / 3 + Duration::from_millis(500)).await;
    gated.fixture.clock.advance(LEASE_DURATION * 2 / 3);
    assert!(is_in_flight(&send(&gated.fixture).await));
    gated.go.send(()).unwrap();
    assert!(sent.await.unwrap().is_ok());
}

#[tokio::test]
async fn draining_finishes_running_requests_and_frees_keys_of_abandoned_ones() {
    let gated = Gated::with(send_reply).await;
    let sent = gated.under_way().await;
    gated.fixture.meter.stop_admitting();
    assert!(matches!(send(&gated.fixture).await, Err(MeterError::ShuttingDown)));
    gated.go.send(()).unwrap();
    gated.fixture.meter.wait_until_settled().await;
    let reply = sent.await.unwrap().unwrap();
    let other = gated.fixture.another_process().await;
    let holder = other
        .idempotency
        .idempotency_record(gated.fixture.caller.account, &key(), gated.fixture.clock.now())
        .await
        .unwrap();
    assert_eq!(holder.unwrap().reply.unwrap().row.request_id, reply.id);

    let gated = Gated::with(send_reply).await;
    let sent = gated.under_way().await;
    gated.fixture.meter.stop_admitting();
    gated.fixture.meter.abandon_running();
    assert!(matches!(sent.await.unwrap(), Err(MeterError::ShuttingDown)));
    let other = gated.fixture.another_process().await;
    let holder = other
        .idempotency
        .idempotency_record(gated.fixture.caller.account, &key(), gated.fixture.clock.now())
        .await
        .unwrap();
    assert_eq!(holder, None);
    gated.go.send(()).unwrap();
}

#[tokio::test]
async fn idempotency_key_is_scoped_to_the_account_not_the_api_key() {
    let fixture = Fixture::with(|_, sink| send_reply(sink)).await;
    let first = send(&fixture).await.unwrap();
    let second_key = chancery_domain::ApiKey::generate(&chancery_domain::OsRandomness);
    let stored =
        fixture.store.create_key(crate::new_key(&second_key, Some(fixture.caller.account))).await.unwrap();
    let caller = chancery_metering::Caller { key: stored.id, ..fixture.caller.clone() };
    let again = fixture.meter.generate(Call { caller, ..keyed(&fixture) }).await.unwrap();
    assert_eq!((again.id, again.is_replay), (first.id, true));

    let name = "Another firm".parse().unwrap();
    let new = chancery_store::NewAccount { name, limits: LIMITS, created_at: fixture.clock.now() };
    let account = fixture.store.create_account(new).await.unwrap().id;
    let third_key = chancery_domain::ApiKey::generate(&chancery_domain::OsRandomness);
    let stored = fixture.store.create_key(crate::new_key(&third_key, Some(account))).await.unwrap();
    let caller = chancery_metering::Caller { account, key: stored.id, ..fixture.caller.clone() };
    assert!(!fixture.meter.generate(Call { caller, ..keyed(&fixture) }).await.unwrap().is_replay);
}

#[tokio::test]
async fn keyed_request_is_rejected_while_the_database_is_unavailable() {
    let fixture = Fixture::with(|_, _| panic!("the engine was asked")).await;
    fixture.store.close().await;
    let rejected = send(&fixture).await;
    assert!(matches!(rejected, Err(MeterError::Database(_))), "{rejected:?}");
}

#[tokio::test]
async fn idempotency_key_is_freed_once_the_database_recovers() {
    let gated = Gated::with(send_reply).await;
    let sent = gated.under_way().await;
    // Another process locks the database for longer than the store waits.
    let other = gated.fixture.lock_database().await;
    gated.go.send(()).unwrap();
    let outcome = sent.await.unwrap();
    let is_unrecorded = matches!(&outcome, Err(MeterError::UsageNotRecorded { error, has_key: true }) if matches!(**error, MeterError::Database(DbError::Unavailable(_))));
    assert!(is_unrecorded, "{outcome:?}");
    unlock(other).await;
    gated.go.send(()).unwrap();
    let again = async {
        loop {
            match send(&gated.fixture).await {
                Err(MeterError::IdempotencyInFlight) => tokio::time::sleep(Duration::from_millis(20)).await,
                outcome => return outcome.unwrap(),
            }
        }
    };
    let reply = tokio::time::timeout(Duration::from_secs(20), again).await.unwrap();
    assert!(!reply.is_replay);
    assert_eq!(gated.fixture.rows().await.len(), 1);
}
