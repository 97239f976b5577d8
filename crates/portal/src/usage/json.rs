//! A month's usage as JSON. Amounts are given as decimal strings and as integers in nano-units.

use super::breakdown::others;
use super::limits_card::peaks;
use super::rejections::Rejections;
use chancery_domain::{Account, Currency, Day, Month};
use chancery_store::{UsageGroup, UsageReport, UsageSum, UsageTotals};
use serde_json::{Value, json};

pub(super) fn report(report: &UsageReport, total: &UsageTotals, month: Month, currency: Currency) -> Value {
    let keys = report
        .keys
        .iter()
        .map(|key| with(json!({"key": key.prefix.as_str(), "label": key.label}), &key.totals));
    let accounts = report
        .by_account
        .iter()
        .map(|account| with(json!({"id": account.account, "name": account.name.as_str()}), &account.totals));
    let other_keys = others(report.keys.iter().map(|key| &key.totals), total);
    // The report of a single account contains no others.
    let is_of_all = report.account.is_none();
    let other_accounts = others(report.by_account.iter().map(|account| &account.totals), total);
    let rejections = Rejections::of(&report.rejections);
    let rejections = rejections.by_day_and_code().map(
        |(day, code, rejections): (Day, &str, u64)| json!({"day": day, "code": code, "refusals": rejections}),
    );
    json!({
        "account": report.account.as_ref().map(|account| json!({"id": account.id, "name": account.name.as_str()})),
        "month": month.to_string(),
        "currency": currency.as_str(),
        "days": report.days.iter().map(sum).collect::<Vec<_>>(),
        "models": report.models.iter().map(sum).collect::<Vec<_>>(),
        "keys": keys.collect::<Vec<_>>(),
        "other_keys": other_keys.map(|totals| with(json!({}), &totals)),
        "accounts": accounts.collect::<Vec<_>>(),
        "other_accounts": other_accounts.filter(|_| is_of_all).map(|totals| with(json!({}), &totals)),
        "total": with(json!({}), total),
        "previous": with(json!({}), &report.previous),
        "refusals": rejections.collect::<Vec<_>>(),
        "limits": report.account.as_ref().map(|account| limits(account, report)),
    })
}

fn sum(sum: &UsageSum) -> Value {
    let UsageSum { group, requests, input_tokens, cached_input_tokens, output_tokens, cost } = sum.clone();
    let subject = match group {
        UsageGroup::Day(day) => json!({"day": day}),
        UsageGroup::Model(model) => json!({"model": model}),
        UsageGroup::Key(key) => json!({"key": key.as_str()}),
        UsageGroup::Account(account) => json!({"account": account.as_str()}),
    };
    with(subject, &UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost })
}

fn with(mut subject: Value, totals: &UsageTotals) -> Value {
    let UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost } = totals;
    subject["requests"] = json!(requests);
    subject["input_tokens"] = json!(input_tokens);
    subject["cached_input_tokens"] = json!(cached_input_tokens);
    subject["output_tokens"] = json!(output_tokens);
    subject["cost"] = json!(cost.to_string());
    subject["cost_nanos"] = json!(cost);
    subject
}

fn limits(account: &Account, report: &UsageReport) -> Value {
    let (requests, tokens) = peaks(&report.peaks);
    json!({
        "spend_per_month": account.spend_per_month.map(|cap| cap.to_string()),
        "rpm": account.limits.requests_per_min,
        "tpm": account.limits.tokens_per_min,
        "peak_requests": requests.map(|peak| peak.count),
        "peak_requests_at": requests.map(|peak| peak.at.to_iso()),
        "peak_tokens": tokens.map(|peak| peak.count),
        "peak_tokens_at": tokens.map(|peak| peak.at.to_iso()),
    })
}
