//! What is counted beside the bill: refusals by account, key, day and code, and each day's busiest minute.

use crate::protocol::end;
use crate::{Firm, LIMITS, NAME, call, new_key};
use chancery_domain::{
    AccountId, ApiKey, Asker, Clock, Day, KeyId, ManualClock, Month, Nanos, OsRandomness, RateLimits,
    RequestId, SeededRandomness, UnixMillis, WINDOW,
};
use chancery_engine::StopReason;
use chancery_metering::{Caller, GenerateRequest, MemoryLimiter, Meter, MeterError, Models};
use chancery_policy::{Asking, Policy, TheFirm};
use chancery_store::{
    ACTIVITY_LINES_AT_ONCE, CapChange, LimitsChange, NewAccount, PeakDay, RefusedOnDay, Store, UsageMonth,
    UsageReport,
};
use chancery_test_support::PostgresDatabase;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use std::sync::Arc;
use std::time::Duration;

async fn report(store: &Store, account: Option<AccountId>, at: UnixMillis) -> UsageReport {
    let asking = Asking { by: Asker::Operator, at, request_id: RequestId::from_stored("req_1".to_owned()) };
    let permit = Policy::load().unwrap().decide(&asking, TheFirm).unwrap();
    store.usage_reports.read_usage(permit, UsageMonth { account, month: Month::of(at) }).await.unwrap()
}

/// Everybody's refusals: whose, by which key, why and how many, as they are kept.
async fn refusals(firm: &Firm) -> Vec<(Option<AccountId>, KeyId, String, u64)> {
    let url = format!("sqlite:{}", firm.database_file().display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    let lines: Vec<(i64, i64, String, i64)> = sqlx::query_as(
        "SELECT account_id, key_id, code, refusals FROM refusal_days ORDER BY day, account_id, key_id, code",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    let line = |(account, key, code, refusals): (i64, i64, String, i64)| {
        ((account != 0).then_some(AccountId(account)), KeyId(key), code, refusals as u64)
    };
    lines.into_iter().map(line).collect()
}

async fn peaks(firm: &Firm) -> Vec<PeakDay> {
    report(firm.store.as_ref(), Some(firm.caller.account), firm.clock.now()).await.peaks
}

fn limited(firm: &Firm, requests_per_min: u32, tokens_per_min: u32) -> Caller {
    Caller { limits: RateLimits { requests_per_min, tokens_per_min }, ..firm.caller }
}

async fn generate(firm: &Firm, caller: Caller) -> Result<(), MeterError> {
    let (id, request) = firm.new_request();
    firm.meter.generate(call(caller, id, request)).await.map(drop)
}

async fn change_database(firm: &Firm, sql: impl Into<String>) {
    let url = format!("sqlite:{}", firm.database_file().display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn refusals_are_counted_once_by_account_key_and_code() {
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let account = firm.caller.account;
    let [second, unpaid, of_closed] = [(); 3].map(|()| ApiKey::generate(&OsRandomness));
    let second_id = firm.store.create_key(new_key(&second, Some(account))).await.unwrap().id;
    let unpaid_id = firm.store.create_key(new_key(&unpaid, None)).await.unwrap().id;
    let closed = NewAccount { name: "Gone".parse().unwrap(), limits: LIMITS, created_at: firm.clock.now() };
    let closed = firm.store.create_account(closed).await.unwrap();
    let of_closed_id = firm.store.create_key(new_key(&of_closed, Some(closed.id))).await.unwrap().id;
    firm.store.close_account(&closed.name, firm.clock.now()).await.unwrap();

    let tight = limited(&firm, 1, 1_000);
    generate(&firm, tight).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(generate(&firm, tight).await, Err(MeterError::RateLimited { .. })));
    }
    // A stream is refused and counted like a whole reply, also where its caller set no cap.
    for max_output_tokens in [Some(50), None] {
        let (id, request) = firm.new_request();
        let request = GenerateRequest { max_output_tokens, ..request };
        let caller = Caller { key: second_id, ..tight };
        let refused = firm.meter.stream(call(caller, id, request)).await.map(drop);
        assert!(matches!(refused, Err(MeterError::RateLimited { .. })), "{refused:?}");
    }
    for key in [&unpaid, &unpaid, &of_closed] {
        let refused = firm.meter.authenticate(Some(key.reveal())).await;
        assert!(matches!(refused, Err(MeterError::NoBillingAccount)), "{refused:?}");
    }
    // On a reply that everybody gets, nobody is refused.
    assert_eq!(firm.meter.recognise(Some(unpaid.reveal())).await, None);
    let cap = LimitsChange { spend_per_month: CapChange::Set(Nanos(1)), ..LimitsChange::default() };
    firm.store.set_limits(&NAME.parse().unwrap(), cap).await.unwrap();
    let capped = Caller { is_capped: true, ..firm.caller };
    assert!(matches!(generate(&firm, capped).await, Err(MeterError::SpendingCapReached(_))));

    assert_eq!(refusals(&firm).await, [], "nothing is written on the way of a request");
    firm.meter.note_activity().await.unwrap();
    let counted = [
        (None, unpaid_id, "no_billing_account", 2),
        (Some(account), firm.caller.key, "rate_limited", 2),
        (Some(account), firm.caller.key, "spending_cap_reached", 1),
        (Some(account), second_id, "rate_limited", 2),
        (Some(closed.id), of_closed_id, "no_billing_account", 1),
    ]
    .map(|(account, key, code, count)| (account, key, code.to_owned(), count));
    assert_eq!(refusals(&firm).await, counted);
    firm.meter.note_activity().await.unwrap();
    assert_eq!(refusals(&firm).await, counted, "noted once");
}

#[tokio::test]
async fn what_is_no_refusal_by_limit_or_money_is_not_counted() {
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let stranger = ApiKey::generate(&OsRandomness);
    firm.store.revoke_key(&firm.key.prefix(), firm.clock.now()).await.unwrap();
    for presented in [None, Some("nonsense"), Some(stranger.reveal()), Some(firm.key.reveal())] {
        let refused = firm.meter.authenticate(presented).await;
        assert!(matches!(refused, Err(MeterError::InvalidKey)), "{refused:?}");
    }
    assert!(matches!(generate(&firm, limited(&firm, 1, 5)).await, Err(MeterError::NeverFits { .. })));
    let (id, request) = firm.new_request();
    let request = GenerateRequest { model: "none".to_owned(), ..request };
    assert!(firm.meter.generate(call(firm.caller, id, request)).await.is_err());
    // Counting tokens takes nothing of any limit, so it is neither refused by one nor part of a peak.
    firm.meter.count(firm.caller, &firm.new_request().1).await.unwrap();
    firm.meter.note_activity().await.unwrap();
    assert_eq!(refusals(&firm).await, []);
    assert_eq!(peaks(&firm).await, []);
}

#[tokio::test]
async fn a_days_peak_rises_with_what_is_admitted_and_never_falls() {
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let begin = firm.clock.now();
    // 6 tokens in; up to 50 out while it runs, 4 once it is settled.
    for _ in 0..3 {
        generate(&firm, firm.caller).await.unwrap();
    }
    let peak = |day: Day, requests, tokens, at| {
        let (requests_at, tokens_at) = (at, at);
        PeakDay { account: firm.caller.account, day, requests, requests_at, tokens, tokens_at }
    };
    let highest = peak(Day::of(begin), 3, 10 + 10 + 56, begin);
    firm.meter.note_activity().await.unwrap();
    assert_eq!(peaks(&firm).await, [highest]);

    firm.clock.advance(WINDOW);
    generate(&firm, firm.caller).await.unwrap();
    // Refused, so it is part of no peak, though its limit had room for it.
    let cap = LimitsChange { spend_per_month: CapChange::Set(Nanos(1)), ..LimitsChange::default() };
    firm.store.set_limits(&NAME.parse().unwrap(), cap).await.unwrap();
    let capped = Caller { is_capped: true, ..firm.caller };
    for _ in 0..5 {
        assert!(generate(&firm, capped).await.is_err());
    }
    firm.meter.note_activity().await.unwrap();
    assert_eq!(peaks(&firm).await, [highest]);

    firm.clock.advance(Duration::from_secs(86_400));
    generate(&firm, firm.caller).await.unwrap();
    firm.meter.note_activity().await.unwrap();
    let now = firm.clock.now();
    assert_eq!(peaks(&firm).await, [highest, peak(Day::of(now), 1, 56, now)]);
}

#[tokio::test]
async fn what_the_store_did_not_take_is_noted_the_next_time() {
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let tight = limited(&firm, 1, 1_000);
    generate(&firm, tight).await.unwrap();
    assert!(generate(&firm, tight).await.is_err());
    // Refusals go, peaks do not: what is noted is not noted again.
    change_database(&firm, "ALTER TABLE peak_days RENAME TO gone").await;
    for _ in 0..3 {
        assert!(firm.meter.note_activity().await.is_err());
        assert!(generate(&firm, tight).await.is_err());
    }
    change_database(&firm, "ALTER TABLE gone RENAME TO peak_days").await;
    firm.meter.note_activity().await.unwrap();
    assert_eq!(
        refusals(&firm).await,
        [(Some(firm.caller.account), firm.caller.key, "rate_limited".to_owned(), 4)]
    );
    assert_eq!(peaks(&firm).await.len(), 1);
}

#[tokio::test]
async fn more_than_is_noted_at_once_goes_in_parts_and_only_what_did_not_is_kept() {
    const KEYS: usize = ACTIVITY_LINES_AT_ONCE + 1;
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let mut last = None;
    for _ in 0..KEYS {
        let key = ApiKey::generate(&OsRandomness);
        last = Some(firm.store.create_key(new_key(&key, None)).await.unwrap().id);
        assert!(firm.meter.authenticate(Some(key.reveal())).await.is_err());
    }
    // Of two parts, the one with this key does not go.
    let guard = format!(
        "CREATE TRIGGER refusing BEFORE INSERT ON refusal_days WHEN NEW.key_id = {} \
         BEGIN SELECT RAISE(ABORT, 'not now'); END",
        last.unwrap().0
    );
    change_database(&firm, guard).await;
    for _ in 0..5 {
        assert!(firm.meter.note_activity().await.is_err());
    }
    change_database(&firm, "DROP TRIGGER refusing").await;
    firm.meter.note_activity().await.unwrap();
    let counted = refusals(&firm).await;
    assert_eq!((counted.len(), counted.iter().map(|line| line.3).max()), (KEYS, Some(1)));
}

#[tokio::test]
async fn it_is_noted_every_few_seconds_until_the_process_stops_taking_work() {
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let tight = limited(&firm, 1, 1_000);
    generate(&firm, tight).await.unwrap();
    assert!(generate(&firm, tight).await.is_err());
    let meter = Arc::clone(&firm.meter);
    let noting = tokio::spawn(async move { meter.keep_noting_activity().await });
    let noted = async {
        while refusals(&firm).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), noted).await.unwrap();
    firm.meter.stop_admitting();
    noting.await.unwrap();
}

#[tokio::test]
async fn the_refusals_of_two_nodes_add_up_and_the_higher_peak_holds() {
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
    let turns = chancery_engine::Turn::instructions_and_input("Answer briefly.", "What is a ledger?");
    for ((meter, _), admitted) in nodes.iter().zip([3_u64, 2]) {
        let limits = RateLimits { requests_per_min: admitted as u32, tokens_per_min: 10_000 };
        let caller = Caller { account, key, limits, is_capped: false };
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
                seed: None,
                stop: Vec::new(),
            };
            let outcome = meter.generate(call(caller, meter.new_request_id(), request)).await;
            served += u64::from(outcome.is_ok());
        }
        assert_eq!(served, admitted);
    }
    let (one, two) = tokio::join!(nodes[0].0.note_activity(), nodes[1].0.note_activity());
    one.unwrap();
    two.unwrap();
    let (day, last_at, code) = (Day::of(clock.now()), clock.now(), "rate_limited".to_owned());
    let report = report(store.as_ref(), Some(account), clock.now()).await;
    let together = RefusedOnDay { day, code, refusals: 2 + 3, last_at };
    assert_eq!(report.refusals, [together]);
    assert_eq!(report.peaks.iter().map(|peak| (peak.requests, peak.tokens)).collect::<Vec<_>>(), [(3, 76)]);
    for (_, store) in &nodes {
        store.close().await;
    }
}
