//! Activity counted beside the bill, through the binary: rejections and peaks reach the database while the server runs and when
//! it shuts down. A month's usage is the same everywhere it is reported.

use crate::server::{Firm, MODEL, Server, eventually, request};
use chancery_domain::{
    BilledTokens, Clock, Day, Month, Prices, Principal, RequestId, StopReason, SystemClock, UnixMillis,
    UsageRow,
};
use chancery_policy::{AuthzRequest, FirmResource, Policy};
use chancery_store::{MonthlyUsageQuery, Store, UsageGroup, UsageReport, UsageSum, UsageTotals};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

async fn opened(firm: &Firm) -> Arc<Store> {
    Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap())
}

async fn report(store: &Store, name: Option<&str>, month: Month) -> UsageReport {
    let account = match name {
        Some(name) => Some(store.account_lookup.account_by_name(&name.parse().unwrap()).await.unwrap().id),
        None => None,
    };
    let request_id = RequestId::from_stored("req_1".to_owned());
    let authz_request = AuthzRequest { by: Principal::Operator, at: SystemClock.now(), request_id };
    let permit = Policy::load().unwrap().decide(&authz_request, FirmResource).unwrap();
    store.usage_reports.read_usage(permit, MonthlyUsageQuery { account, month }).await.unwrap()
}

/// Covers this month and the last, because the month may end while the test runs.
async fn rejections(store: &Store) -> Vec<(String, u64)> {
    let month = Month::containing(SystemClock.now());
    let mut rejections: Vec<(String, u64)> = Vec::new();
    for month in [month.previous(), month] {
        for line in report(store, None, month).await.rejections {
            match rejections.iter_mut().find(|(code, _)| *code == line.code) {
                Some((_, count)) => *count += line.rejections,
                None => rejections.push((line.code, line.rejections)),
            }
        }
    }
    rejections.sort();
    rejections
}

async fn rejected_as(server: &Server, key: &str, path: &str, body: &Value) -> (u16, String) {
    let reply = server.post(path, key, body).await;
    (reply.status, reply.code().to_owned())
}

#[tokio::test]
async fn rejections_and_peaks_are_stored_promptly_and_flushed_at_shutdown() {
    let firm = Firm::new();
    let key = firm.limited_account_with_key("Hale & Ward", 2, 100_000);
    let unpaid = firm.run(&["key", "create"]).trim().to_owned();
    let mut server = firm.start();
    let body = request("", "Say hello.", 1);
    for _ in 0..2 {
        assert_eq!(server.generate(&key, &body).await.status, 200);
    }
    let chat =
        json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 1});
    let responses = json!({"model": MODEL, "input": "Hi", "max_output_tokens": 16});
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    for (path, body) in [
        ("/v1/generate", &body),
        ("/v1/generate", &streamed),
        ("/v1/responses", &responses),
        ("/v1/chat/completions", &chat),
    ] {
        assert_eq!(server.post(path, &key, body).await.status, 429, "{path}");
    }
    assert_eq!(
        server.post("/v1/tokens", &key, &body).await.status,
        200,
        "counting takes nothing from generation"
    );
    for path in ["/v1/generate", "/v1/tokens"] {
        let rejected = rejected_as(&server, &unpaid, path, &body).await;
        assert_eq!(rejected, (402, "no_billing_account".to_owned()), "{path}");
    }
    assert_eq!(server.get("/v1/nowhere", &unpaid).await.status, 404, "this is no refusal for want of money");
    assert_eq!(server.generate("ck_unknown", &body).await.status, 401);

    let store = opened(&firm).await;
    let counted = |limited, unpaid| {
        [("no_billing_account", unpaid), ("rate_limited", limited)]
            .map(|(code, count)| (code.to_owned(), count))
            .to_vec()
    };
    eventually("refusals are noted", Duration::from_secs(30), async || {
        rejections(&store).await == counted(4, 2)
    })
    .await;
    let month = Month::containing(SystemClock.now());
    let peaks = report(&store, Some("Hale & Ward"), month).await.peaks;
    assert_eq!(peaks.iter().map(|peak| peak.requests).max(), Some(2), "{peaks:?}");

    let last = rejected_as(&server, &unpaid, "/v1/generate", &body).await;
    assert_eq!(last, (402, "no_billing_account".to_owned()));
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    assert_eq!(rejections(&store).await, counted(4, 3));
    store.close().await;
}

fn random_rows() -> impl Strategy<Value = Vec<(i32, usize, usize, u32, u32)>> {
    let draw = (0..30_i32, 0..4_usize, 0..2_usize, 0..100_000_u32, 0..100_000_u32);
    proptest::collection::vec(draw, 40..60)
}

/// One usage line, in a form common to all reports.
type Line = (String, [u64; 4], i64);

fn line(name: &str, totals: UsageTotals) -> Line {
    let UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost } = totals;
    (name.to_owned(), [requests, input_tokens, cached_input_tokens, output_tokens], cost.0)
}

fn lines_of_json(data: &Value, name: &str) -> Vec<Line> {
    let number = |entry: &Value, field: &str| entry[field].as_u64().unwrap();
    let line = |entry: &Value| {
        let group = entry[name].as_str().unwrap().to_owned();
        let counts = ["requests", "input_tokens", "cached_input_tokens", "output_tokens"]
            .map(|field| number(entry, field));
        (group, counts, entry["cost_nanos"].as_i64().unwrap())
    };
    data.as_array().unwrap().iter().map(line).collect()
}

fn lines_of_sums(sums: &[UsageSum]) -> Vec<Line> {
    let line = |sum: &UsageSum| {
        let name = match &sum.group {
            UsageGroup::Day(day) => day.to_string(),
            UsageGroup::Model(model) => model.clone(),
            other => panic!("{other:?}"),
        };
        let UsageSum { requests, input_tokens, cached_input_tokens, output_tokens, cost, .. } = *sum;
        (name, [requests, input_tokens, cached_input_tokens, output_tokens], cost.0)
    };
    sums.iter().map(line).collect()
}

#[tokio::test]
async fn api_command_and_report_show_the_same_usage() {
    const MONTH: &str = "2026-04";
    let firm = Firm::new();
    let keys = ["One", "Two"].map(|name| firm.account_with_key(name));
    for name in ["One", "Two"] {
        firm.run(&["key", "create", "--account", name]);
    }
    let server = firm.start();
    let store = opened(&firm).await;
    let mut owners = Vec::new();
    for owner in store.account_lookup.list_keys().await.unwrap() {
        // The portal has its own key.
        if let Some(account) = owner.account.filter(|account| ["One", "Two"].contains(&account.name.as_str()))
        {
            owners.push((account.id, owner.key.id));
        }
    }
    assert_eq!(owners.len(), 4);
    let month: Month = MONTH.parse().unwrap();
    let rows = random_rows().new_tree(&mut TestRunner::deterministic()).unwrap().current();
    for (index, (day, owner, model, input_tokens, output_tokens)) in rows.into_iter().enumerate() {
        let (account, key) = owners[owner];
        let prices = Prices::new("0.10".parse().unwrap(), "0.40".parse().unwrap()).unwrap();
        let prices = prices.with_cached_input("0.025".parse().unwrap()).unwrap();
        let cached_input_tokens = input_tokens / 3;
        let billed = BilledTokens::new(input_tokens, cached_input_tokens, output_tokens).unwrap();
        let row = UsageRow {
            request_id: RequestId::from_stored(format!("req_{index:04}")),
            account,
            key,
            model: ["small", "large"][model].to_owned(),
            input_tokens,
            cached_input_tokens,
            output_tokens,
            prices,
            cost: prices.cost(billed).unwrap(),
            at: UnixMillis(Day(month.first_day().0 + day).start().0 + index as i64),
            stop_reason: StopReason::Complete,
        };
        store.ledger.settle(row.into()).await.unwrap();
    }
    let (from, to) = (month.first_day().to_string(), month.last_day().to_string());
    let command = |options: &[&str]| {
        let arguments = [&["usage", "--json", "--from", &from, "--to", &to], options].concat();
        lines_of_json(&firm.json(&arguments)["data"], "group")
    };
    for (name, key) in ["One", "Two"].into_iter().zip(&keys) {
        let report = report(&store, Some(name), month).await;
        let by_key: Vec<Line> =
            report.keys.iter().map(|key| line(&key.prefix.to_string(), key.totals)).collect();
        for (by, reported) in
            [("day", lines_of_sums(&report.days)), ("model", lines_of_sums(&report.models)), ("key", by_key)]
        {
            assert!(!reported.is_empty());
            assert_eq!(command(&["--account", name, "--by", by]), reported, "{name} by {by}");
            let reply = server.get(&format!("/v1/usage?from={from}&to={to}&by={by}"), key).await;
            assert_eq!(lines_of_json(&reply.body["data"], by), reported, "{name} by {by}");
        }
    }
    let report = report(&store, None, month).await;
    assert_eq!(command(&["--by", "day"]), lines_of_sums(&report.days));
    let by_account: Vec<Line> =
        report.by_account.iter().map(|usage| line(usage.name.as_str(), usage.totals)).collect();
    assert_eq!(by_account.len(), 2);
    assert_eq!(command(&["--by", "account"]), by_account);
    let rejected = server.get("/v1/usage?by=account", &keys[0]).await;
    assert_eq!((rejected.status, rejected.code()), (400, "invalid_value"));
    store.close().await;
}
