//! `chancery usage`: tokens and cost, summed from the ledger by the same query that the API's `/v1/usage` uses.

use super::{IfMissing, open};
use crate::cli::{GlobalArgs, Usage};
use crate::output::{print_json, print_table};
use anyhow::bail;
use chancery_domain::{Currency, Nanos, group_thousands};
use chancery_store::{UsageGroup, UsageQuery, UsageSum, UsageTotals};

#[derive(serde::Serialize)]
struct Row {
    group: String,
    requests: u64,
    input_tokens: u64,
    /// The part of the input that is billed at the price of cached input.
    cached_input_tokens: u64,
    output_tokens: u64,
    cost: String,
    cost_nanos: Nanos,
}

#[derive(serde::Serialize)]
struct Report<'a> {
    currency: &'a str,
    by: &'static str,
    data: Vec<Row>,
    total: Row,
}

pub async fn run(global_args: &GlobalArgs, options: Usage) -> anyhow::Result<()> {
    if let (Some(from), Some(to)) = (options.from, options.to)
        && from > to
    {
        bail!("--from {from} must not be after --to {to}");
    }
    let (config, store) = open(global_args, IfMissing::Fail).await?;
    let admin = store.admin();
    let account = match &options.account {
        Some(name) => Some(admin.account_lookup.account_by_name(name).await?.id),
        None => None,
    };
    let sums = admin
        .ledger
        .usage(UsageQuery { account, from: options.from, to: options.to, by: options.by })
        .await?;
    store.close().await;
    let UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost } =
        UsageTotals::of(&sums)?;
    let total = Row {
        group: "total".to_owned(),
        requests,
        input_tokens,
        cached_input_tokens,
        output_tokens,
        cost: cost.to_string(),
        cost_nanos: cost,
    };
    let rows: Vec<Row> = sums.iter().map(row).collect();
    let by = options.by.as_str();
    if options.json {
        return print_json(&Report { currency: config.billing.currency.as_str(), by, data: rows, total });
    }
    print_report(&by.to_uppercase(), &rows, &total, config.billing.currency);
    Ok(())
}

fn print_report(heading: &str, rows: &[Row], total: &Row, currency: Currency) {
    let cells = |row: &Row| {
        let counts = [row.requests, row.input_tokens, row.cached_input_tokens, row.output_tokens];
        let mut cells = vec![row.group.clone()];
        cells.extend(counts.map(group_thousands));
        cells.push(row.cost.clone());
        cells
    };
    let mut lines: Vec<Vec<String>> = rows.iter().map(cells).collect();
    lines.push(cells(total));
    let cost = format!("COST {currency}");
    print_table(&[heading, "REQUESTS", "INPUT TOKENS", "CACHED INPUT", "OUTPUT TOKENS", &cost], &lines);
}

fn row(sum: &UsageSum) -> Row {
    Row {
        group: match &sum.group {
            UsageGroup::Day(day) => day.to_string(),
            UsageGroup::Model(model) => model.clone(),
            UsageGroup::Key(prefix) => prefix.to_string(),
            UsageGroup::Account(name) => name.to_string(),
        },
        requests: sum.requests,
        input_tokens: sum.input_tokens,
        cached_input_tokens: sum.cached_input_tokens,
        output_tokens: sum.output_tokens,
        cost: sum.cost.to_string(),
        cost_nanos: sum.cost,
    }
}
