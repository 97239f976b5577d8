//! Queries on `usage_days`, the sums that the ledger's writer updates with its rows. All reports use them.

use crate::db::{FromRow, Query, QueryError, Row, Statement, Tx, from_row, query};
use crate::{DailyUsage, UsageBy, UsageGroup, UsageQuery, UsageSum, UsageTotals};
use chancery_domain::{AccountName, Day, KeyPrefix, Prices, TokenPrice};

const PAGE: &str = "SELECT * FROM daily_usage \
    WHERE (account_id, day, key_id, model, input_price_nanos, cached_price_nanos, output_price_nanos) \
        > ($1, $2, $3, $4, $5, $6, $7) \
    ORDER BY account_id, day, key_id, model, input_price_nanos, cached_price_nanos, output_price_nanos LIMIT $8";

from_row!(UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost: "cost_nanos" });

impl FromRow for (Day, UsageTotals) {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        Ok((row.get("day")?, UsageTotals::from_row(row)?))
    }
}

impl FromRow for (String, UsageTotals) {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        Ok((row.get("name")?, UsageTotals::from_row(row)?))
    }
}

from_row!(DailyUsage {
    account: "account_id",
    day,
    key: "key_id",
    model,
    prices: Prices::from_row,
    totals: UsageTotals::from_row
});

pub(crate) fn page(after: Option<&DailyUsage>, limit: u32) -> Query {
    let (account, day, key, model) = after.map_or((i64::MIN, 0, 0, ""), |last| {
        (last.account.0, i64::from(last.day.0), last.key.0, last.model.as_str())
    });
    let [input_price, cached_price, output_price] = after.map_or([0; 3], |DailyUsage { prices, .. }| {
        [prices.input, prices.cached_input, prices.output].map(TokenPrice::nanos_per_token)
    });
    query(PAGE)
        .bind(account)
        .bind(day)
        .bind(key)
        .bind(model)
        .bind(input_price)
        .bind(cached_price)
        .bind(output_price)
        .bind(i64::from(limit))
}

/// Which rows of `usage_days u` to sum, the joined tables, and the column to group by.
#[derive(Clone, Copy)]
pub(crate) struct UsageGrouping {
    pub(crate) column: &'static str,
    pub(crate) name: &'static str,
    pub(crate) tables: &'static str,
}

impl From<UsageBy> for UsageGrouping {
    fn from(by: UsageBy) -> Self {
        let (column, name, tables) = match by {
            UsageBy::Day => ("u.day", "day", "daily_usage u"),
            UsageBy::Model => ("u.model", "name", "daily_usage u"),
            UsageBy::Key => {
                ("api_keys.prefix", "name", "daily_usage u JOIN api_keys ON api_keys.id = u.key_id")
            }
            UsageBy::Account => {
                ("accounts.name", "name", "daily_usage u JOIN accounts ON accounts.id = u.account_id")
            }
        };
        Self { column, name, tables }
    }
}

/// Sums are cast back to 64 bits, which fails on overflow: PostgreSQL sums without a bound, while SQLite fails during
/// the sum. There are few different texts, so they stay prepared.
pub(crate) fn push_usage_sums(statement: &mut Statement, by: UsageGrouping, query: &UsageQuery) {
    let first_day = query.from.map_or(0, |day| i64::from(day.0));
    let last_day = query.to.map_or(i64::MAX, |day| i64::from(day.0));
    statement.push("SELECT ").push(by.column).push(" AS ").push(by.name);
    statement.push(
        ", CAST(SUM(u.requests) AS BIGINT) AS requests, CAST(SUM(u.input_tokens) AS BIGINT) AS input_tokens, \
         CAST(SUM(u.cached_input_tokens) AS BIGINT) AS cached_input_tokens, \
         CAST(SUM(u.output_tokens) AS BIGINT) AS output_tokens, CAST(SUM(u.cost_nanos) AS BIGINT) AS cost_nanos FROM ",
    );
    statement.push(by.tables).push(" WHERE u.day >= ").push_bind(first_day);
    statement.push(" AND u.day <= ").push_bind(last_day);
    if let Some(account) = query.account {
        statement.push(" AND u.account_id = ").push_bind(account.0);
    }
    statement.push(" GROUP BY ").push(by.column).push(" ORDER BY ").push(by.column);
}

pub(crate) fn sums(query: &UsageQuery) -> Query {
    let mut sums = Statement::new("");
    push_usage_sums(&mut sums, query.by.into(), query);
    sums.build()
}

/// In group order.
pub(crate) fn usage_sums(tx: &mut Tx<'_>, query: &UsageQuery) -> Result<Vec<UsageSum>, QueryError> {
    let read = sums(query);
    let group: fn(String) -> UsageGroup = match query.by {
        UsageBy::Day => {
            let sums: Vec<(Day, UsageTotals)> = read.fetch_all(tx)?;
            let sums = sums.into_iter().map(|(day, totals)| UsageSum::of(UsageGroup::Day(day), totals));
            return Ok(sums.collect());
        }
        UsageBy::Model => UsageGroup::Model,
        UsageBy::Key => |name| UsageGroup::Key(KeyPrefix::from_stored(name)),
        UsageBy::Account => |name| UsageGroup::Account(AccountName::from_stored(name)),
    };
    let sums: Vec<(String, UsageTotals)> = read.fetch_all(tx)?;
    Ok(sums.into_iter().map(|(name, totals)| UsageSum::of(group(name), totals)).collect())
}
