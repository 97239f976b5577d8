//! The spending cap, from admission to settlement.

use crate::protocol::end;
use crate::{Fixture, NAME, call};
use chancery_domain::{Clock, Day, LimitScope, Nanos, UnixMillis};
use chancery_engine::{EngineError, GenerationSink, StopReason};
use chancery_metering::{MeterError, SpendingCapDetails};
use chancery_store::{CapChange, LEASE_DURATION, LimitsChange, ReserveOutcome, SpendingReservation};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// The maximum cost of the fixture's request: 6 tokens in and up to 50 out.
const MAX_COST: i64 = 6 * 1_000 + 50 * 2_000;

/// A fixture whose engine signals when it starts, and waits for a signal before it runs the script.
async fn gated(script: fn(GenerationSink)) -> (Fixture, Begun, Sender<()>) {
    let (go, wait) = channel::<()>();
    let (began, begun) = channel::<()>();
    let (wait, began) = (Mutex::new(wait), Mutex::new(began));
    let mut fixture = Fixture::with(move |_, sink| {
        began.lock().unwrap().send(()).unwrap();
        wait.lock().unwrap().recv().unwrap();
        script(sink);
    })
    .await;
    cap(&mut fixture, MAX_COST).await;
    (fixture, Begun(begun), go)
}

struct Begun(Receiver<()>);

impl Begun {
    async fn wait(self) {
        tokio::task::spawn_blocking(move || self.0.recv()).await.unwrap().unwrap();
    }
}

pub async fn cap(fixture: &mut Fixture, nanos: i64) {
    let spend_per_month = CapChange::Set(Nanos(nanos));
    fixture
        .store
        .set_limits(&NAME.parse().unwrap(), LimitsChange { spend_per_month, ..LimitsChange::default() })
        .await
        .unwrap();
    fixture.caller = fixture.meter.authenticate(Some(fixture.key.reveal())).await.unwrap();
    assert!(fixture.caller.is_capped);
}

/// Whether another request could still reserve this amount.
async fn is_left(fixture: &Fixture, nanos: i64) -> bool {
    let request_id = fixture.meter.new_request_id();
    let (at, account, key) = (fixture.clock.now(), fixture.caller.account, fixture.caller.key);
    let reservation = SpendingReservation {
        request_id: request_id.clone(),
        account,
        key,
        amount: Nanos(nanos),
        at,
        now: at,
    };
    let outcome = fixture.store.spending.reserve_spending(reservation).await.unwrap();
    fixture.store.spending.release_spending(&request_id).await.unwrap();
    outcome == ReserveOutcome::Reserved
}

async fn exactly_left(fixture: &Fixture, nanos: i64) -> bool {
    is_left(fixture, nanos).await && !is_left(fixture, nanos + 1).await
}

#[tokio::test]
async fn request_over_the_spending_cap_is_rejected_with_the_reset_time() {
    let mut fixture = Fixture::with(|_, _| panic!("the engine was asked")).await;
    cap(&mut fixture, MAX_COST - 1).await;
    let (id, request) = fixture.new_request();
    let rejected = fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap_err();
    let MeterError::SpendingCapReached(reached) = rejected else { panic!("{rejected}") };
    // The test clock is in January 2027.
    let resets_at = "2027-02-01".parse::<Day>().unwrap().start();
    let (cap, asked) = (Nanos(MAX_COST - 1), Nanos(MAX_COST));
    let (scope, spent, reserved) = (LimitScope::Account, Nanos(0), Nanos(0));
    assert_eq!(reached, SpendingCapDetails { scope, cap, spent, reserved, asked, resets_at });
    assert!(exactly_left(&fixture, MAX_COST - 1).await);
}

#[tokio::test]
async fn reply_spends_its_actual_cost_and_releases_the_rest() {
    let mut fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 5)).await;
    cap(&mut fixture, MAX_COST).await;
    let (id, request) = fixture.new_request();
    fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap();
    let cost = 6 * 1_000 + 5 * 2_000;
    assert!(exactly_left(&fixture, MAX_COST - cost).await);
    let (id, request) = fixture.new_request();
    let rejected = fixture.meter.generate(call(&fixture.caller, id, request.clone())).await;
    assert!(matches!(rejected, Err(MeterError::SpendingCapReached(reached)) if reached.spent == Nanos(cost)));
    // A smaller request fits, and the cap resets next month.
    let smaller = chancery_metering::GenerateRequest { max_output_tokens: Some(42), ..request.clone() };
    fixture.meter.generate(call(&fixture.caller, fixture.meter.new_request_id(), smaller)).await.unwrap();
    fixture.clock.advance(Duration::from_secs(40 * 86_400));
    fixture.meter.generate(call(&fixture.caller, fixture.meter.new_request_id(), request)).await.unwrap();
}

#[tokio::test]
async fn unbilled_request_releases_its_whole_reservation() {
    let scripts: [fn(GenerationSink); 2] = [
        |sink| sink.fail(EngineError::Failed("broken".to_owned())),
        |sink| end(sink, StopReason::Cancelled, 0),
    ];
    for script in scripts {
        let mut fixture = Fixture::with(move |_, sink| script(sink)).await;
        cap(&mut fixture, MAX_COST).await;
        let (id, request) = fixture.new_request();
        let _ = fixture.meter.generate(call(&fixture.caller, id, request)).await;
        assert!(exactly_left(&fixture, MAX_COST).await);
        assert_eq!(fixture.rows().await, []);
    }
}

#[tokio::test]
async fn hang_up_spends_the_cost_of_the_generated_tokens() {
    let (fixture, begun, go) = gated(|sink| {
        sink.text("Dear");
        while !sink.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(sink, StopReason::Cancelled, 1);
    })
    .await;
    let call = fixture.spawn_request();
    begun.wait().await;
    call.abort();
    go.send(()).unwrap();
    fixture.settled().await;
    assert_eq!(fixture.rows().await, [(6, 1, "cancelled")]);
    assert!(exactly_left(&fixture, MAX_COST - 6 * 1_000 - 2_000).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_race_never_exceed_the_spending_cap() {
    let mut fixture = Fixture::with(|_, sink| end(sink, StopReason::MaxOutputTokens, 50)).await;
    cap(&mut fixture, 10 * MAX_COST + MAX_COST / 2).await;
    let calls: Vec<_> = (0..40).map(|_| fixture.spawn_request()).collect();
    let mut replies = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => replies += 1,
            Err(MeterError::SpendingCapReached(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(replies, 10);
    assert_eq!(fixture.rows().await.len(), 10);
    assert!(exactly_left(&fixture, MAX_COST / 2).await);
}

/// Runs a request while another process takes this one for dead and uses some of the cap itself.
async fn with_expired_lease(used_by_other: i64) -> (Fixture, Result<chancery_metering::Reply, MeterError>) {
    let (fixture, begun, go) = gated(|sink| end(sink, StopReason::Complete, 5)).await;
    let call = fixture.spawn_request();
    begun.wait().await;
    let other = fixture.another_process().await;
    let now = UnixMillis(fixture.clock.now().0 + LEASE_DURATION.as_millis() as i64);
    let (request_id, account, key) =
        (fixture.meter.new_request_id(), fixture.caller.account, fixture.caller.key);
    let amount = Nanos(used_by_other);
    let at = fixture.clock.now();
    let taken = SpendingReservation { request_id, account, key, amount, at, now };
    assert_eq!(other.spending.reserve_spending(taken).await.unwrap(), ReserveOutcome::Reserved);
    go.send(()).unwrap();
    let outcome = call.await.unwrap();
    other.close().await;
    (fixture, outcome)
}

#[tokio::test]
async fn process_presumed_dead_bills_only_what_fits_the_cap() {
    let cost = 6 * 1_000 + 5 * 2_000;
    let (fixture, outcome) = with_expired_lease(MAX_COST - cost).await;
    assert_eq!(outcome.unwrap().output_tokens, 5);
    assert_eq!(fixture.rows().await.len(), 1);

    let (fixture, outcome) = with_expired_lease(MAX_COST - cost + 1).await;
    assert!(matches!(outcome, Err(MeterError::SpendingCapReached(_))), "{outcome:?}");
    assert_eq!(fixture.rows().await, []);
}

#[tokio::test]
async fn long_request_renews_its_spending_reservation() {
    let (fixture, begun, go) = gated(|sink| end(sink, StopReason::Complete, 5)).await;
    let call = fixture.spawn_request();
    begun.wait().await;
    // The meter renews its lease by a timer, independent of the test clock. Without that, the lease would expire below.
    fixture.clock.advance(LEASE_DURATION * 2 / 3);
    tokio::time::sleep(LEASE_DURATION / 3 + Duration::from_millis(500)).await;
    fixture.clock.advance(LEASE_DURATION * 2 / 3);
    assert_eq!(fixture.store.leases.reap_orphaned_reservations(fixture.clock.now(), 10).await.unwrap(), 0);
    go.send(()).unwrap();
    assert!(call.await.unwrap().is_ok());
}
