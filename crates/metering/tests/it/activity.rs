//! Statistics beside the bill: rejections by account, key, day and code, and each day's busiest minute.

use crate::protocol::end;
use crate::{Fixture, LIMITS, NAME, call, new_key};
use chancery_domain::{
    AccountId, ApiKey, Clock, Day, KeyId, KeyLimits, ManualClock, Month, Nanos, OsRandomness, Principal,
    RateLimits, RequestId, SeededRandomness, UnixMillis, WINDOW,
};
use chancery_engine::{Penalties, StopReason};
use chancery_metering::{Caller, GenerateRequest, MemoryLimiter, Meter, MeterError, Models};
use chancery_policy::{AuthzRequest, FirmResource, Policy};
use chancery_store::{
    CapChange, DailyPeak, DailyRejectionTotals, LimitsChange, MAX_ACTIVITY_ROWS, MonthlyUsageQuery,
    NewAccount, Store, UsageReport,
};
use chancery_test_support::PostgresDatabase;
use std::sync::Arc;
use std::time::Duration;

async fn report(store: &Store, account: Option<AccountId>, at: UnixMillis) -> UsageReport {
    let authz_request =
        AuthzRequest { by: Principal::Operator, at, request_id: RequestId::from_stored("req_1".to_owned()) };
    let permit = Policy::load().unwrap().decide(&authz_request, FirmResource).unwrap();
    store
        .usage_reports
        .read_usage(permit, MonthlyUsageQuery { account, month: Month::containing(at) })
        .await
        .unwrap()
}

/// All rejections as stored: account, key, code and count.
async fn rejections(fixture: &Fixture) -> Vec<(Option<AccountId>, KeyId, String, u64)> {
    let query = "SELECT account_id, key_id, code, rejections FROM daily_rejections ORDER BY day, account_id, key_id, code";
    let lines = fixture.raw_connection().await.rows(query).await;
    let line = |[account, key, code, rejections]: [String; 4]| {
        let account = account.parse().unwrap();
        let account = (account != 0).then_some(AccountId(account));
        (account, KeyId(key.parse().unwrap()), code, rejections.parse().unwrap())
    };
    lines.into_iter().map(line).collect()
}

async fn peaks(fixture: &Fixture) -> Vec<DailyPeak> {
    report(fixture.store.as_ref(), Some(fixture.caller.account), fixture.clock.now()).await.peaks
}

fn limited(fixture: &Fixture, requests_per_min: u32, tokens_per_min: u32) -> Caller {
    Caller { limits: RateLimits { requests_per_min, tokens_per_min }, ..fixture.caller.clone() }
}

async fn generate(fixture: &Fixture, caller: &Caller) -> Result<(), MeterError> {
    let (id, request) = fixture.new_request();
    fixture.meter.generate(call(caller, id, request)).await.map(drop)
}

async fn change_database(fixture: &Fixture, sql: &str) {
    fixture.raw_connection().await.run(sql).await.unwrap();
}

#[tokio::test]
async fn rejections_are_counted_once_by_account_key_and_code() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let account = fixture.caller.account;
    let [second, unpaid, of_closed] = [(); 3].map(|()| ApiKey::generate(&OsRandomness));
    let second_id = fixture.store.create_key(new_key(&second, Some(account))).await.unwrap().id;
    let unpaid_id = fixture.store.create_key(new_key(&unpaid, None)).await.unwrap().id;
    let closed =
        NewAccount { name: "Gone".parse().unwrap(), limits: LIMITS, created_at: fixture.clock.now() };
    let closed = fixture.store.create_account(closed).await.unwrap();
    let of_closed_id = fixture.store.create_key(new_key(&of_closed, Some(closed.id))).await.unwrap().id;
    fixture.store.close_account(&closed.name, fixture.clock.now()).await.unwrap();

    let tight = limited(&fixture, 1, 1_000);
    generate(&fixture, &tight).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(generate(&fixture, &tight).await, Err(MeterError::RateLimited { .. })));
    }
    // A stream is rejected and counted like a whole reply, even without a cap.
    for max_output_tokens in [Some(50), None] {
        let (id, request) = fixture.new_request();
        let request = GenerateRequest { max_output_tokens, ..request };
        let caller = Caller { key: second_id, ..tight.clone() };
        let rejected = fixture.meter.stream(call(&caller, id, request)).await.map(drop);
        assert!(matches!(rejected, Err(MeterError::RateLimited { .. })), "{rejected:?}");
    }
    for key in [&unpaid, &unpaid, &of_closed] {
        let rejected = fixture.meter.authenticate(Some(key.reveal())).await;
        assert!(matches!(rejected, Err(MeterError::NoBillingAccount)), "{rejected:?}");
    }
    // A public reply rejects no caller, so nothing is counted.
    assert_eq!(fixture.meter.try_authenticate(Some(unpaid.reveal())).await, None);
    let cap = LimitsChange { spend_per_month: CapChange::Set(Nanos(1)), ..LimitsChange::default() };
    fixture.store.set_limits(&NAME.parse().unwrap(), cap).await.unwrap();
    let capped = Caller { is_capped: true, ..fixture.caller.clone() };
    assert!(matches!(generate(&fixture, &capped).await, Err(MeterError::SpendingCapReached(_))));

    assert_eq!(rejections(&fixture).await, [], "nothing is written on the way of a request");
    fixture.meter.record_activity().await.unwrap();
    let counted = [
        (None, unpaid_id, "no_billing_account", 2),
        (Some(account), fixture.caller.key, "rate_limited", 2),
        (Some(account), fixture.caller.key, "spending_cap_reached", 1),
        (Some(account), second_id, "rate_limited", 2),
        (Some(closed.id), of_closed_id, "no_billing_account", 1),
    ]
    .map(|(account, key, code, count)| (account, key, code.to_owned(), count));
    assert_eq!(rejections(&fixture).await, counted);
    fixture.meter.record_activity().await.unwrap();
    assert_eq!(rejections(&fixture).await, counted, "noted once");
}

#[tokio::test]
async fn only_limit_and_billing_rejections_are_counted() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let stranger = ApiKey::generate(&OsRandomness);
    fixture.store.revoke_key(&fixture.key.prefix(), fixture.clock.now()).await.unwrap();
    for presented in [None, Some("nonsense"), Some(stranger.reveal()), Some(fixture.key.reveal())] {
        let rejected = fixture.meter.authenticate(presented).await;
        assert!(matches!(rejected, Err(MeterError::InvalidKey)), "{rejected:?}");
    }
    assert!(matches!(
        generate(&fixture, &limited(&fixture, 1, 5)).await,
        Err(MeterError::ExceedsTokenLimit { .. })
    ));
    let (id, request) = fixture.new_request();
    let request = GenerateRequest { model: "none".to_owned(), ..request };
    assert!(fixture.meter.generate(call(&fixture.caller, id, request)).await.is_err());
    // Counting tokens generates nothing, so it is part of no peak.
    fixture.meter.count(&fixture.caller, &fixture.new_request().1).await.unwrap();
    fixture.meter.record_activity().await.unwrap();
    assert_eq!(rejections(&fixture).await, []);
    assert_eq!(peaks(&fixture).await, []);
}

#[tokio::test]
async fn daily_peak_rises_with_admissions_and_never_falls() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let begin = fixture.clock.now();
    // 6 tokens in; up to 50 out while it runs, 4 once it is settled.
    for _ in 0..3 {
        generate(&fixture, &fixture.caller).await.unwrap();
    }
    let peak = |day: Day, requests, tokens, at| {
        let (requests_at, tokens_at) = (at, at);
        DailyPeak { account: fixture.caller.account, day, requests, requests_at, tokens, tokens_at }
    };
    let highest = peak(Day::containing(begin), 3, 10 + 10 + 56, begin);
    fixture.meter.record_activity().await.unwrap();
    assert_eq!(peaks(&fixture).await, [highest]);

    fixture.clock.advance(WINDOW);
    generate(&fixture, &fixture.caller).await.unwrap();
    // Rejected by the cap, so part of no peak, although the rate limit had room.
    let cap = LimitsChange { spend_per_month: CapChange::Set(Nanos(1)), ..LimitsChange::default() };
    fixture.store.set_limits(&NAME.parse().unwrap(), cap).await.unwrap();
    let capped = Caller { is_capped: true, ..fixture.caller.clone() };
    for _ in 0..5 {
        assert!(generate(&fixture, &capped).await.is_err());
    }
    fixture.meter.record_activity().await.unwrap();
    assert_eq!(peaks(&fixture).await, [highest]);

    fixture.clock.advance(Duration::from_secs(86_400));
    generate(&fixture, &fixture.caller).await.unwrap();
    fixture.meter.record_activity().await.unwrap();
    let now = fixture.clock.now();
    assert_eq!(peaks(&fixture).await, [highest, peak(Day::containing(now), 1, 56, now)]);
}

#[tokio::test]
async fn unstored_activity_is_recorded_by_the_next_write() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let tight = limited(&fixture, 1, 1_000);
    generate(&fixture, &tight).await.unwrap();
    assert!(generate(&fixture, &tight).await.is_err());
    // Rejections are stored and peaks fail. What was stored is not stored again.
    change_database(&fixture, "ALTER TABLE daily_peaks RENAME TO gone").await;
    for _ in 0..3 {
        assert!(fixture.meter.record_activity().await.is_err());
        assert!(generate(&fixture, &tight).await.is_err());
    }
    change_database(&fixture, "ALTER TABLE gone RENAME TO daily_peaks").await;
    fixture.meter.record_activity().await.unwrap();
    assert_eq!(
        rejections(&fixture).await,
        [(Some(fixture.caller.account), fixture.caller.key, "rate_limited".to_owned(), 4)]
    );
    assert_eq!(peaks(&fixture).await.len(), 1);
}

#[tokio::test]
async fn activity_is_stored_in_batches_and_only_failed_batches_are_retried() {
    const KEYS: usize = MAX_ACTIVITY_ROWS + 1;
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let mut last = None;
    for _ in 0..KEYS {
        let key = ApiKey::generate(&OsRandomness);
        last = Some(fixture.store.create_key(new_key(&key, None)).await.unwrap().id);
        assert!(fixture.meter.authenticate(Some(key.reveal())).await.is_err());
    }
    // Of two batches, the one with this key fails.
    let guard = format!(
        "CREATE TRIGGER refusing BEFORE INSERT ON daily_rejections WHEN NEW.key_id = {} \
         BEGIN SELECT RAISE(ABORT, 'not now'); END",
        last.unwrap().0
    );
    change_database(&fixture, &guard).await;
    for _ in 0..5 {
        assert!(fixture.meter.record_activity().await.is_err());
    }
    change_database(&fixture, "DROP TRIGGER refusing").await;
    fixture.meter.record_activity().await.unwrap();
    let counted = rejections(&fixture).await;
    assert_eq!((counted.len(), counted.iter().map(|line| line.3).max()), (KEYS, Some(1)));
}

#[tokio::test]
async fn activity_is_recorded_periodically_until_draining() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let tight = limited(&fixture, 1, 1_000);
    generate(&fixture, &tight).await.unwrap();
    assert!(generate(&fixture, &tight).await.is_err());
    let meter = Arc::clone(&fixture.meter);
    let flush_task = tokio::spawn(async move { meter.run_activity_flush().await });
    let flushed = async {
        while rejections(&fixture).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), flushed).await.unwrap();
    fixture.meter.stop_admitting();
    flush_task.await.unwrap();
}

#[tokio::test]
async fn rejections_of_two_nodes_add_up_and_the_higher_peak_wins() {
    let database = PostgresDatabase::create("metering");
    let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let store = Arc::new(Store::open(&database.url().parse().unwrap()).await.unwrap());
        let limiter = Arc::new(MemoryLimiter::new(clock.clone()));
        let engine = Arc::new(chancery_engine::ScriptedEngine::new(100, |_, sink| {
            end(sink, StopReason::Complete, 4);
        }));
        let prices = chancery_domain::Prices::new("1".parse().unwrap(), "2".parse().unwrap()).unwrap();
        let models = Models::new([chancery_metering::Model { name: "words".to_owned(), engine, prices }]);
        let randomness = Arc::new(SeededRandomness::new(nodes.len() as u64));
        let meter = Meter::new(models, Arc::new(store.metering()), limiter, clock.clone(), randomness);
        nodes.push((Arc::new(meter), store));
    }
    let store = Arc::clone(&nodes[0].1);
    let new = NewAccount { name: NAME.parse().unwrap(), limits: LIMITS, created_at: clock.now() };
    let account = store.create_account(new).await.unwrap().id;
    let key = store.create_key(new_key(&ApiKey::generate(&OsRandomness), Some(account))).await.unwrap().id;
    let turns = chancery_engine::Turn::from_instructions_and_input("Answer briefly.", "What is a ledger?");
    for ((meter, _), admitted) in nodes.iter().zip([3_u64, 2]) {
        let limits = RateLimits { requests_per_min: admitted as u32, tokens_per_min: 10_000 };
        let caller = Caller { account, key, limits, key_limits: KeyLimits::default(), is_capped: false };
        let mut served = 0;
        for _ in 0..5 {
            let request = GenerateRequest {
                model: "words".to_owned(),
                turns: turns.clone(),
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
            let outcome = meter.generate(call(&caller, meter.new_request_id(), request)).await;
            served += u64::from(outcome.is_ok());
        }
        assert_eq!(served, admitted);
    }
    let (one, two) = tokio::join!(nodes[0].0.record_activity(), nodes[1].0.record_activity());
    one.unwrap();
    two.unwrap();
    let (day, last_at, code) = (Day::containing(clock.now()), clock.now(), "rate_limited".to_owned());
    let report = report(store.as_ref(), Some(account), clock.now()).await;
    let together = DailyRejectionTotals { day, code, rejections: 2 + 3, last_at };
    assert_eq!(report.rejections, [together]);
    assert_eq!(report.peaks.iter().map(|peak| (peak.requests, peak.tokens)).collect::<Vec<_>>(), [(3, 76)]);
    for (_, store) in &nodes {
        store.close().await;
    }
}
