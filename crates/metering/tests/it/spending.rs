//! The spending cap, from admission to settlement.

use crate::{Firm, NAME, call};
use chancery_domain::{Clock, Day, Nanos, UnixMillis};
use chancery_engine::{Ended, EngineError, GenerationSink, StopReason};
use chancery_metering::{CapReached, MeterError};
use chancery_store::{CapChange, LEASE, LimitsChange, Reserved, SpendingReservation};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// What the firm's request may cost: 6 tokens in and up to 50 out.
const MOST: i64 = 6 * 1_000 + 50 * 2_000;

fn end(sink: GenerationSink, reason: StopReason, output_tokens: u32) {
    sink.end(Ended { reason, output_tokens, cached_tokens: 0, input_tokens: None });
}

/// A firm whose engine tells when it has begun, and goes on with the script when it is told to.
async fn gated(script: fn(GenerationSink)) -> (Firm, Begun, Sender<()>) {
    let (go, wait) = channel::<()>();
    let (began, begun) = channel::<()>();
    let (wait, began) = (Mutex::new(wait), Mutex::new(began));
    let mut firm = Firm::with(move |_, sink| {
        began.lock().unwrap().send(()).unwrap();
        wait.lock().unwrap().recv().unwrap();
        script(sink);
    })
    .await;
    cap(&mut firm, MOST).await;
    (firm, Begun(begun), go)
}

struct Begun(Receiver<()>);

impl Begun {
    async fn wait(self) {
        tokio::task::spawn_blocking(move || self.0.recv()).await.unwrap().unwrap();
    }
}

async fn cap(firm: &mut Firm, nanos: i64) {
    let spend_per_month = CapChange::Set(Nanos(nanos));
    firm.store
        .set_limits(&NAME.parse().unwrap(), LimitsChange { spend_per_month, ..LimitsChange::default() })
        .await
        .unwrap();
    firm.caller = firm.meter.authenticate(Some(firm.key.reveal())).await.unwrap();
    assert!(firm.caller.is_capped);
}

/// What could still be set aside by somebody else.
async fn is_left(firm: &Firm, nanos: i64) -> bool {
    let request_id = firm.meter.new_request_id();
    let (at, account) = (firm.clock.now(), firm.caller.account);
    let expires_at = UnixMillis(at.0 + 1_000_000);
    let reservation = SpendingReservation {
        request_id: request_id.clone(),
        account,
        amount: Nanos(nanos),
        at,
        now: at,
        expires_at,
    };
    let outcome = firm.store.spending.reserve_spending(reservation).await.unwrap();
    firm.store.spending.release_spending(&request_id).await.unwrap();
    outcome == Reserved::Yes
}

async fn exactly_left(firm: &Firm, nanos: i64) -> bool {
    is_left(firm, nanos).await && !is_left(firm, nanos + 1).await
}

#[tokio::test]
async fn a_request_that_may_pass_the_cap_never_reaches_the_engine_and_is_told_when_it_resets() {
    let mut firm = Firm::with(|_, _| panic!("the engine was asked")).await;
    cap(&mut firm, MOST - 1).await;
    let (id, request) = firm.new_request();
    let refused = firm.meter.generate(call(firm.caller, id, request)).await.unwrap_err();
    let MeterError::SpendingCapReached(reached) = refused else { panic!("{refused}") };
    // The clock stands in January of 2027.
    let resets_at = "2027-02-01".parse::<Day>().unwrap().start();
    let (cap, asked) = (Nanos(MOST - 1), Nanos(MOST));
    assert_eq!(reached, CapReached { cap, spent: Nanos(0), set_aside: Nanos(0), asked, resets_at });
    assert!(exactly_left(&firm, MOST - 1).await);
}

#[tokio::test]
async fn a_reply_costs_its_true_cost_and_gives_the_rest_back() {
    let mut firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 5)).await;
    cap(&mut firm, MOST).await;
    let (id, request) = firm.new_request();
    firm.meter.generate(call(firm.caller, id, request)).await.unwrap();
    let cost = 6 * 1_000 + 5 * 2_000;
    assert!(exactly_left(&firm, MOST - cost).await);
    let (id, request) = firm.new_request();
    let refused = firm.meter.generate(call(firm.caller, id, request.clone())).await;
    assert!(matches!(refused, Err(MeterError::SpendingCapReached(reached)) if reached.spent == Nanos(cost)));
    // A smaller one fits, and the next month is another.
    let smaller = chancery_metering::GenerateRequest { max_output_tokens: Some(42), ..request.clone() };
    firm.meter.generate(call(firm.caller, firm.meter.new_request_id(), smaller)).await.unwrap();
    firm.clock.advance(Duration::from_secs(40 * 86_400));
    firm.meter.generate(call(firm.caller, firm.meter.new_request_id(), request)).await.unwrap();
}

#[tokio::test]
async fn what_bills_nothing_gives_everything_back() {
    let scripts: [fn(GenerationSink); 2] = [
        |sink| sink.fail(EngineError::Failed("broken".to_owned())),
        |sink| end(sink, StopReason::Cancelled, 0),
    ];
    for script in scripts {
        let mut firm = Firm::with(move |_, sink| script(sink)).await;
        cap(&mut firm, MOST).await;
        let (id, request) = firm.new_request();
        let _ = firm.meter.generate(call(firm.caller, id, request)).await;
        assert!(exactly_left(&firm, MOST).await);
        assert_eq!(firm.rows().await, []);
    }
}

#[tokio::test]
async fn a_caller_who_hangs_up_spends_what_was_generated() {
    let (firm, begun, go) = gated(|sink| {
        sink.text("Dear");
        while !sink.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(sink, StopReason::Cancelled, 1);
    })
    .await;
    let call = firm.spawn_request();
    begun.wait().await;
    call.abort();
    go.send(()).unwrap();
    firm.settled().await;
    assert_eq!(firm.rows().await, [(6, 1, "cancelled")]);
    assert!(exactly_left(&firm, MOST - 6 * 1_000 - 2_000).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_race_the_bill_never_passes_the_cap() {
    let mut firm = Firm::with(|_, sink| end(sink, StopReason::MaxOutputTokens, 50)).await;
    cap(&mut firm, 10 * MOST + MOST / 2).await;
    let calls: Vec<_> = (0..40).map(|_| firm.spawn_request()).collect();
    let mut replies = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => replies += 1,
            Err(MeterError::SpendingCapReached(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(replies, 10);
    assert_eq!(firm.rows().await.len(), 10);
    assert!(exactly_left(&firm, MOST / 2).await);
}

/// Runs a request that another process takes for dead meanwhile, and uses some of the cap itself.
async fn thought_dead(used_by_other: i64) -> (Firm, Result<chancery_metering::Reply, MeterError>) {
    let (firm, begun, go) = gated(|sink| end(sink, StopReason::Complete, 5)).await;
    let call = firm.spawn_request();
    begun.wait().await;
    let other = firm.another_process().await;
    let now = UnixMillis(firm.clock.now().0 + LEASE.as_millis() as i64);
    let (request_id, account) = (firm.meter.new_request_id(), firm.caller.account);
    let amount = Nanos(used_by_other);
    let expires_at = UnixMillis(now.0 + 1_000_000);
    let taken = SpendingReservation { request_id, account, amount, at: firm.clock.now(), now, expires_at };
    assert_eq!(other.spending.reserve_spending(taken).await.unwrap(), Reserved::Yes);
    go.send(()).unwrap();
    let outcome = call.await.unwrap();
    other.close().await;
    (firm, outcome)
}

#[tokio::test]
async fn a_process_that_was_thought_dead_bills_only_what_still_fits() {
    let cost = 6 * 1_000 + 5 * 2_000;
    let (firm, outcome) = thought_dead(MOST - cost).await;
    assert_eq!(outcome.unwrap().output_tokens, 5);
    assert_eq!(firm.rows().await.len(), 1);

    let (firm, outcome) = thought_dead(MOST - cost + 1).await;
    assert!(matches!(outcome, Err(MeterError::SpendingCapReached(_))), "{outcome:?}");
    assert_eq!(firm.rows().await, []);
}

#[tokio::test]
async fn a_long_request_keeps_what_it_has_set_aside() {
    let (firm, begun, go) = gated(|sink| end(sink, StopReason::Complete, 5)).await;
    let call = firm.spawn_request();
    begun.wait().await;
    // The meter says that it lives by a timer, whatever the clock says; without that, the lease would be over below.
    firm.clock.advance(LEASE * 2 / 3);
    tokio::time::sleep(LEASE / 3 + Duration::from_millis(500)).await;
    firm.clock.advance(LEASE * 2 / 3);
    assert_eq!(firm.store.leases.forget_dead(firm.clock.now(), 10).await.unwrap(), 0);
    go.send(()).unwrap();
    assert!(call.await.unwrap().is_ok());
}
