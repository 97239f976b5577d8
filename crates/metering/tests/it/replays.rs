//! Idempotency keys, from the first look to the replay.

use crate::protocol::end;
use crate::{Firm, LIMITS, NAME, call};
use chancery_domain::{Clock, Fingerprint, HowEnded, IdempotencyKey, Nanos, UnixMillis};
use chancery_engine::{Ended, EngineError, GenerationSink, StopReason};
use chancery_metering::limits::REPLY_MEMORY;
use chancery_metering::{Call, Idempotency, MeterError, Progress, Reply};
use chancery_store::{CapChange, Claim, Claimed, DbError, LEASE, LimitsChange};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
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

/// The firm's request, under the one key of these tests.
fn keyed(firm: &Firm) -> Call {
    let (id, request) = firm.new_request();
    Call { idempotency: named("{}"), ..call(firm.caller, id, request) }
}

async fn send(firm: &Firm) -> Result<Reply, MeterError> {
    firm.meter.generate(keyed(firm)).await
}

fn answer(sink: GenerationSink) {
    sink.text("A ledger ");
    sink.text("is a book.");
    sink.end(Ended { reason: StopReason::Complete, output_tokens: 5, cached_tokens: 4, input_tokens: None });
}

/// A firm whose engine counts its runs, tells when one has begun, and goes on when it is told to.
struct Gated {
    firm: Firm,
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
        let firm = Firm::with(move |_, sink| {
            count.fetch_add(1, Ordering::SeqCst);
            began.lock().unwrap().send(()).unwrap();
            wait.lock().unwrap().recv().unwrap();
            script(sink);
        })
        .await;
        Self { firm, runs, begun: Arc::new(Mutex::new(begun)), go }
    }

    /// Sends the request and waits until the engine has begun with it.
    async fn under_way(&self) -> tokio::task::JoinHandle<Result<Reply, MeterError>> {
        let (meter, call) = (Arc::clone(&self.firm.meter), keyed(&self.firm));
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
async fn a_replay_is_the_first_reply_and_is_neither_run_nor_billed() {
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let firm = Firm::with(move |_, sink| {
        count.fetch_add(1, Ordering::SeqCst);
        answer(sink);
    })
    .await;
    let first = send(&firm).await.unwrap();
    assert!(!first.is_replay);
    firm.clock.advance(Duration::from_secs(3600));
    for _ in 0..3 {
        let again = send(&firm).await.unwrap();
        assert_eq!(again, Reply { is_replay: true, rate_limit_status: None, ..first.clone() });
    }
    assert_eq!((runs.load(Ordering::SeqCst), firm.rows().await), (1, vec![(6, 5, "complete")]));
}

#[tokio::test]
async fn a_replayed_stream_tells_its_beginning_its_text_and_its_end() {
    let firm = Firm::with(|_, sink| answer(sink)).await;
    let mut told = Vec::new();
    for is_replay in [false, true] {
        let mut running = firm.meter.stream(keyed(&firm)).await.unwrap();
        let beginning = running.beginning().clone();
        assert_eq!((beginning.is_replay, beginning.rate_limit_status.is_none()), (is_replay, is_replay));
        let mut text = String::new();
        let reply = loop {
            match running.next().await {
                Progress::Text(more) => text.push_str(&more),
                Progress::Ended(outcome) => break outcome.unwrap(),
            }
        };
        assert_eq!((text.as_str(), reply.is_replay), ("A ledger is a book.", is_replay));
        told.push((beginning.id, beginning.at, beginning.input_tokens, reply.id, reply.output_tokens));
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(firm.rows().await.len(), 1);
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused_while_the_first_runs_and_after() {
    let gated = Gated::with(answer).await;
    let first = gated.under_way().await;
    let other = || Call { idempotency: named("{\"seed\":1}"), ..keyed(&gated.firm) };
    assert!(is_in_flight(&send(&gated.firm).await));
    let refused = gated.firm.meter.generate(other()).await;
    assert!(matches!(refused, Err(MeterError::IdempotencyMismatch)), "{refused:?}");
    gated.go.send(()).unwrap();
    first.await.unwrap().unwrap();
    let refused = gated.firm.meter.generate(other()).await;
    assert!(matches!(refused, Err(MeterError::IdempotencyMismatch)), "{refused:?}");
    assert!(send(&gated.firm).await.unwrap().is_replay);
    assert_eq!((gated.runs(), gated.firm.rows().await.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_race_under_one_key_one_runs_and_the_others_are_told_or_get_its_reply() {
    let firm = Firm::with(|_, sink| {
        std::thread::sleep(Duration::from_millis(5));
        answer(sink);
    })
    .await;
    let mut racing = JoinSet::new();
    for number in 0..50 {
        let (meter, call) = (Arc::clone(&firm.meter), keyed(&firm));
        racing.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number % 20)).await;
            meter.generate(call).await
        });
    }
    let (mut ran, mut replayed, mut told) = (0, 0, 0);
    for outcome in racing.join_all().await {
        match outcome {
            Ok(reply) if reply.is_replay => replayed += 1,
            Ok(_) => ran += 1,
            Err(MeterError::IdempotencyInFlight) => told += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((ran, replayed + told), (1, 49));
    assert_eq!(firm.rows().await, [(6, 5, "complete")]);
    let status = firm.meter.rate_limit_status(firm.caller).await.unwrap();
    assert_eq!((status.used.requests, status.used.tokens), (1, 11), "losers count nothing");
}

#[tokio::test]
async fn a_replay_takes_nothing_of_any_limit() {
    let mut firm = Firm::with(|_, sink| answer(sink)).await;
    // Everything that the account may spend is what the one request may cost, and it may send one in a minute.
    let cap = 6 * 1_000 + 50 * 2_000;
    let change = LimitsChange {
        spend_per_month: CapChange::Set(Nanos(cap)),
        requests_per_min: Some(1),
        ..LimitsChange::default()
    };
    firm.store.set_limits(&NAME.parse().unwrap(), change).await.unwrap();
    firm.caller = firm.meter.authenticate(Some(firm.key.reveal())).await.unwrap();
    assert!(firm.caller.is_capped && firm.caller.limits.requests_per_min == 1);
    let first = send(&firm).await.unwrap();
    let (id, request) = firm.new_request();
    let other = firm.meter.generate(call(firm.caller, id, request)).await;
    assert!(matches!(other, Err(MeterError::RateLimited { .. })), "{other:?}");
    for _ in 0..5 {
        assert_eq!(send(&firm).await.unwrap().id, first.id);
    }
    firm.clock.advance(Duration::from_secs(120));
    assert!(send(&firm).await.unwrap().is_replay);
    assert_eq!(firm.meter.rate_limit_status(firm.caller).await.unwrap().used.requests, 0);
}

#[tokio::test]
async fn what_bills_nothing_frees_its_key() {
    let scripts: [fn(GenerationSink); 3] = [
        |sink| sink.fail(EngineError::Failed("broken".to_owned())),
        drop,
        |sink| end(sink, StopReason::Cancelled, 0),
    ];
    for script in scripts {
        let turn = AtomicU32::new(0);
        let firm = Firm::with(move |_, sink| match turn.fetch_add(1, Ordering::SeqCst) {
            0 => script(sink),
            _ => answer(sink),
        })
        .await;
        let _ = send(&firm).await;
        assert_eq!(firm.rows().await, []);
        let second = send(&firm).await.unwrap();
        assert!(!second.is_replay);
        assert_eq!(send(&firm).await.unwrap().id, second.id);
        assert_eq!(firm.rows().await.len(), 1);
    }
}

#[tokio::test]
async fn what_is_refused_before_it_runs_takes_no_key() {
    let firm = Firm::with(|_, sink| answer(sink)).await;
    let good = keyed(&firm);
    let never =
        chancery_metering::GenerateRequest { max_output_tokens: Some(1_000_000), ..good.request.clone() };
    let refused = firm.meter.generate(Call { request: never, ..good }).await;
    assert!(matches!(refused, Err(MeterError::CapAboveContext { .. })));
    assert!(!send(&firm).await.unwrap().is_replay);
}

#[tokio::test]
async fn a_caller_who_hung_up_finds_what_was_billed_under_its_key() {
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
    gated.firm.settled().await;
    let reply = send(&gated.firm).await.unwrap();
    assert_eq!((reply.output_text.as_str(), reply.ended), ("Dear", HowEnded::Cancelled));
    assert_eq!((reply.input_tokens, reply.output_tokens, reply.is_replay), (6, 1, true));
    assert_eq!((gated.runs(), gated.firm.rows().await), (1, vec![(6, 1, "cancelled")]));
}

#[tokio::test]
async fn a_key_is_free_again_a_day_after_the_end() {
    let firm = Firm::with(|_, sink| answer(sink)).await;
    let first = send(&firm).await.unwrap();
    firm.clock.advance(REPLY_MEMORY - Duration::from_millis(1));
    firm.meter.tidy_up().await.unwrap();
    assert_eq!(send(&firm).await.unwrap().id, first.id);
    firm.clock.advance(Duration::from_millis(1));
    let second = send(&firm).await.unwrap();
    assert!(!second.is_replay && second.id != first.id);
    assert_eq!(firm.rows().await.len(), 2);
    assert_eq!(firm.store.stored_replies.kept_keys(None, 10).await.unwrap().len(), 1);
    firm.clock.advance(REPLY_MEMORY);
    firm.meter.tidy_up().await.unwrap();
    assert_eq!(firm.store.stored_replies.kept_keys(None, 10).await.unwrap(), []);
    assert_eq!(firm.rows().await.len(), 2, "the bill stays");
}

/// Another process claims the firm's key as if the firm's own process had died; gives its claim.
async fn taken_over(firm: &Firm) -> (Arc<chancery_store::Store>, Claim) {
    let other = firm.another_process().await;
    let now = UnixMillis(firm.clock.now().0 + LEASE.as_millis() as i64);
    let Idempotency { key, fingerprint } = named("{}").unwrap();
    let (account, request_id) = (firm.caller.account, firm.meter.new_request_id());
    let expires_at = UnixMillis(now.0 + 1_000_000);
    let claim = Claim { account, key, fingerprint, request_id, now, expires_at };
    assert_eq!(other.idempotency.claim_key(&claim).await.unwrap(), Claimed::Yes);
    (other, claim)
}

#[tokio::test]
async fn a_process_whose_key_was_taken_over_bills_nothing() {
    let gated = Gated::with(answer).await;
    let sent = gated.under_way().await;
    let (other, claim) = taken_over(&gated.firm).await;
    gated.go.send(()).unwrap();
    let outcome = sent.await.unwrap();
    assert!(is_in_flight(&outcome), "{outcome:?}");
    assert_eq!(gated.firm.rows().await, []);
    let holder = other.idempotency.key_holder(claim.account, &claim.key, claim.now).await.unwrap();
    assert!(holder.is_some(), "it is still the other's");
    other.close().await;
}

#[tokio::test]
async fn a_process_whose_key_was_taken_and_given_back_bills_once() {
    let gated = Gated::with(answer).await;
    let sent = gated.under_way().await;
    let (other, claim) = taken_over(&gated.firm).await;
    other.idempotency.free_key(&claim).await.unwrap();
    gated.go.send(()).unwrap();
    let reply = sent.await.unwrap().unwrap();
    assert_eq!(gated.firm.rows().await.len(), 1);
    assert_eq!(send(&gated.firm).await.unwrap().id, reply.id);
    other.close().await;
}

#[tokio::test]
async fn what_a_process_left_when_it_died_can_be_sent_again() {
    let gated = Gated::with(answer).await;
    // The process dies between its claim and its settlement: what remains is the claim, and a lease that runs out.
    let dead = gated.firm.another_process().await;
    let Idempotency { key, fingerprint } = named("{}").unwrap();
    let (account, now) = (gated.firm.caller.account, gated.firm.clock.now());
    let expires_at = UnixMillis(now.0 + 900_000);
    let request_id = gated.firm.meter.new_request_id();
    let claim = Claim { account, key, fingerprint, request_id, now, expires_at };
    assert_eq!(dead.idempotency.claim_key(&claim).await.unwrap(), Claimed::Yes);
    assert!(is_in_flight(&send(&gated.firm).await));
    gated.firm.clock.advance(LEASE);
    gated.go.send(()).unwrap();
    let reply = send(&gated.firm).await.unwrap();
    assert!(!reply.is_replay);
    assert_eq!(send(&gated.firm).await.unwrap().id, reply.id);
    assert_eq!(gated.firm.rows().await.len(), 1);
}

#[tokio::test]
async fn a_long_request_keeps_its_key() {
    let gated = Gated::with(answer).await;
    let sent = gated.under_way().await;
    // The meter says that it lives by a timer, whatever the clock says; without that, the lease would be over below.
    gated.firm.clock.advance(LEASE * 2 / 3);
    tokio::time::sleep(LEASE / 3 + Duration::from_millis(500)).await;
    gated.firm.clock.advance(LEASE * 2 / 3);
    assert!(is_in_flight(&send(&gated.firm).await));
    gated.go.send(()).unwrap();
    assert!(sent.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_server_that_drains_ends_what_runs_and_what_it_gives_up_can_be_sent_elsewhere() {
    let gated = Gated::with(answer).await;
    let sent = gated.under_way().await;
    gated.firm.meter.stop_admitting();
    assert!(matches!(send(&gated.firm).await, Err(MeterError::ShuttingDown)));
    gated.go.send(()).unwrap();
    gated.firm.meter.wait_until_settled().await;
    let reply = sent.await.unwrap().unwrap();
    let other = gated.firm.another_process().await;
    let holder = other
        .idempotency
        .key_holder(gated.firm.caller.account, &key(), gated.firm.clock.now())
        .await
        .unwrap();
    assert_eq!(holder.unwrap().reply.unwrap().row.request_id, reply.id);

    let gated = Gated::with(answer).await;
    let sent = gated.under_way().await;
    gated.firm.meter.stop_admitting();
    gated.firm.meter.abandon_running();
    assert!(matches!(sent.await.unwrap(), Err(MeterError::ShuttingDown)));
    let other = gated.firm.another_process().await;
    let holder = other
        .idempotency
        .key_holder(gated.firm.caller.account, &key(), gated.firm.clock.now())
        .await
        .unwrap();
    assert_eq!(holder, None);
    gated.go.send(()).unwrap();
}

#[tokio::test]
async fn a_key_belongs_to_the_account_and_not_to_one_of_its_api_keys() {
    let firm = Firm::with(|_, sink| answer(sink)).await;
    let first = send(&firm).await.unwrap();
    let second_key = chancery_domain::ApiKey::generate(&chancery_domain::OsRandomness);
    let stored = firm.store.create_key(crate::new_key(&second_key, Some(firm.caller.account))).await.unwrap();
    let caller = chancery_metering::Caller { key: stored.id, ..firm.caller };
    let again = firm.meter.generate(Call { caller, ..keyed(&firm) }).await.unwrap();
    assert_eq!((again.id, again.is_replay), (first.id, true));

    let name = "Another firm".parse().unwrap();
    let new = chancery_store::NewAccount { name, limits: LIMITS, created_at: firm.clock.now() };
    let account = firm.store.create_account(new).await.unwrap().id;
    let third_key = chancery_domain::ApiKey::generate(&chancery_domain::OsRandomness);
    let stored = firm.store.create_key(crate::new_key(&third_key, Some(account))).await.unwrap();
    let caller = chancery_metering::Caller { account, key: stored.id, ..firm.caller };
    assert!(!firm.meter.generate(Call { caller, ..keyed(&firm) }).await.unwrap().is_replay);
}

#[tokio::test]
async fn without_a_store_nothing_runs_under_a_key() {
    let firm = Firm::with(|_, _| panic!("the engine was asked")).await;
    firm.store.close().await;
    let refused = send(&firm).await;
    assert!(matches!(refused, Err(MeterError::Database(_))), "{refused:?}");
}

#[tokio::test]
async fn a_key_whose_database_was_gone_when_it_should_be_freed_is_free_once_it_is_back() {
    let gated = Gated::with(answer).await;
    let sent = gated.under_way().await;
    // Another process keeps the database to itself for longer than the store is patient.
    let options = SqliteConnectOptions::new().filename(gated.firm.database_file());
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    gated.go.send(()).unwrap();
    let outcome = sent.await.unwrap();
    let is_unrecorded = matches!(&outcome, Err(MeterError::Unrecorded { error, has_key: true }) if matches!(**error, MeterError::Database(DbError::Unavailable(_))));
    assert!(is_unrecorded, "{outcome:?}");
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    gated.go.send(()).unwrap();
    let again = async {
        loop {
            match send(&gated.firm).await {
                Err(MeterError::IdempotencyInFlight) => tokio::time::sleep(Duration::from_millis(20)).await,
                outcome => return outcome.unwrap(),
            }
        }
    };
    let reply = tokio::time::timeout(Duration::from_secs(20), again).await.unwrap();
    assert!(!reply.is_replay);
    assert_eq!(gated.firm.rows().await.len(), 1);
}
