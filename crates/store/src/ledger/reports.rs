//! The monthly usage report, with rejected requests and peaks. It reads sums by day through an index that begins with
//! the account or the day, never the ledger's rows. So its cost depends only on that month.

use crate::accounts::{activity, lookup};
use crate::audit::principal::ensure_principal_unchanged;
use crate::audit::step::AuditedSteps;
use crate::db::{Db, Query, Statement, Tx, from_row, query, values};
use crate::ledger::daily_usage::{UsageGrouping, push_usage_sums, usage_sums};
use crate::{
    AccountUsage, DailyPeak, KeyUsage, LedgerError, MAX_ACCOUNT_OPTIONS, MAX_USAGE_ROWS, MonthlyUsageQuery,
    UsageBy, UsageQuery, UsageReport, UsageTotals,
};
use chancery_domain::{Account, Month};
use chancery_policy::{Permit, ReadUsage};

/// The minimum is one end of an index.
const FIRST_DAY: &str = "SELECT MIN(day) FROM daily_usage";

const ACCOUNT_OPTIONS: &str = "SELECT * FROM accounts ORDER BY name LIMIT $1";
const ACCOUNTS: &str = "SELECT COUNT(*) FROM accounts";

from_row!(KeyUsage { prefix, label, totals: UsageTotals::from_row }, "prefix");

from_row!(AccountUsage { account: "id", name, totals: UsageTotals::from_row }, "name");

fn whole_month(MonthlyUsageQuery { account, month }: MonthlyUsageQuery, by: UsageBy) -> UsageQuery {
    UsageQuery { account, from: Some(month.first_day()), to: Some(month.last_day()), by }
}

/// Joins keys after summing, not for every summed row. If there are too many, those with the highest cost.
fn key_sums(month: MonthlyUsageQuery) -> Query {
    let mut sums = Statement::new(
        "SELECT k.prefix, k.label, s.requests, s.input_tokens, s.cached_input_tokens, s.output_tokens, s.cost_nanos FROM (",
    );
    let by = UsageGrouping { column: "u.key_id", name: "id", tables: "daily_usage u" };
    push_usage_sums(&mut sums, by, &whole_month(month, UsageBy::Key));
    sums.push(") AS s JOIN api_keys k ON k.id = s.id ORDER BY s.cost_nanos DESC, k.prefix LIMIT ");
    sums.push_bind(i64::from(MAX_USAGE_ROWS));
    sums.build()
}

/// The same for accounts.
fn account_sums(month: MonthlyUsageQuery) -> Query {
    let mut sums = Statement::new(
        "SELECT a.id, a.name, s.requests, s.input_tokens, s.cached_input_tokens, s.output_tokens, s.cost_nanos FROM (",
    );
    let by = UsageGrouping { column: "u.account_id", name: "id", tables: "daily_usage u" };
    push_usage_sums(&mut sums, by, &whole_month(month, UsageBy::Account));
    sums.push(") AS s JOIN accounts a ON a.id = s.id ORDER BY s.cost_nanos DESC, a.name LIMIT ");
    sums.push_bind(i64::from(MAX_USAGE_ROWS));
    sums.build()
}

fn report(tx: &mut Tx<'_>, usage_query: MonthlyUsageQuery) -> Result<UsageReport, LedgerError> {
    let MonthlyUsageQuery { account, month } = usage_query;
    let all: u64 = query(ACCOUNTS).fetch_one(tx)?;
    let mut accounts: Vec<Account> =
        query(ACCOUNT_OPTIONS).bind(i64::from(MAX_ACCOUNT_OPTIONS)).fetch_all(tx)?;
    let chosen: Option<Account> = match account {
        None => None,
        Some(id) => {
            let found = query(lookup::BY_ID).bind(id.0).fetch_optional(tx)?;
            Some(found.ok_or(LedgerError::NoSuchAccountId(id))?)
        }
    };
    if let Some(chosen) = chosen.iter().find(|chosen| accounts.iter().all(|account| account.id != chosen.id))
    {
        accounts.push(chosen.clone());
    }
    let first_day: Option<i64> = query(FIRST_DAY).fetch_one(tx)?;
    let first_month = first_day.map(values::day).transpose()?.map(|day| Month::containing(day.start()));
    let days = usage_sums(tx, &whole_month(usage_query, UsageBy::Day))?;
    let models = usage_sums(tx, &whole_month(usage_query, UsageBy::Model))?;
    let before = MonthlyUsageQuery { account, month: month.previous() };
    let previous = usage_sums(tx, &whole_month(before, UsageBy::Day))?;

    let mut keys: Vec<KeyUsage> = key_sums(usage_query).fetch_all(tx)?;
    keys.sort_by(|one, other| one.prefix.cmp(&other.prefix));
    let rejections = activity::rejections(month, account).fetch_all(tx)?;
    let (mut by_account, mut peaks): (Vec<AccountUsage>, Vec<DailyPeak>) = Default::default();
    match account {
        None => {
            by_account = account_sums(usage_query).fetch_all(tx)?;
            by_account.sort_by(|one, other| one.name.cmp(&other.name));
        }
        Some(account) => peaks = activity::peaks(month, account).fetch_all(tx)?,
    }
    Ok(UsageReport {
        account: chosen,
        accounts_omitted: all.saturating_sub(accounts.len() as u64),
        accounts,
        first_month,
        days,
        models,
        keys,
        by_account,
        previous: UsageTotals::of(&previous)?,
        rejections,
        peaks,
    })
}

#[derive(Clone)]
pub struct UsageReports {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl UsageReports {
    /// Fails with `NoSuchAccountId`.
    pub async fn read_usage(
        &self,
        permit: Permit<ReadUsage>,
        query: MonthlyUsageQuery,
    ) -> Result<UsageReport, LedgerError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        // Runs outside the audited step, so that sums over many accounts do not block audited writes.
        let by = permit.by();
        self.db
            .read_report(move |tx| {
                ensure_principal_unchanged::<LedgerError>(tx, by)?;
                report(tx, query)
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::db::{Dialect, FromRow, QueryError, Row};
    use crate::ledger::daily_usage;
    use chancery_domain::AccountId;

    struct PlanStep(String);

    impl FromRow for PlanStep {
        fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
            row.get("detail").map(Self)
        }
    }

    /// For PostgreSQL, `tests/it/postgres_only.rs` measures the reads instead, because its plans depend on table size.
    #[tokio::test]
    async fn monthly_queries_use_account_or_day_index() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let searches_of_all = ["(day>? AND day<?)", "u USING INDEX daily_usage_day"];
        let searches_of_one = ["(account_id=? AND day>? AND day<?)", "u USING PRIMARY KEY"];
        let month: Month = "2026-11".parse().unwrap();
        let of_all = MonthlyUsageQuery { account: None, month };
        let of_one = MonthlyUsageQuery { account: Some(AccountId(1)), month };
        let sums = |of, by| daily_usage::sums(&whole_month(of, by));
        let cases = [
            (key_sums(of_all), searches_of_all),
            (key_sums(of_one), searches_of_one),
            (account_sums(of_all), searches_of_all),
            (
                activity::rejections(month, None),
                ["(day>? AND day<?)", "daily_rejections USING INDEX daily_rejections_day"],
            ),
            (
                activity::rejections(month, Some(AccountId(1))),
                [searches_of_one[0], "daily_rejections USING PRIMARY KEY"],
            ),
            (activity::peaks(month, AccountId(1)), [searches_of_one[0], "daily_peaks USING PRIMARY KEY"]),
            (query(FIRST_DAY), ["", "SEARCH daily_usage USING COVERING INDEX daily_usage_day"]),
            (sums(of_all, UsageBy::Day), searches_of_all),
            (sums(of_all, UsageBy::Model), searches_of_all),
            (sums(of_one, UsageBy::Day), searches_of_one),
            (sums(of_one, UsageBy::Model), searches_of_one),
        ];
        for (read, expected) in cases {
            let sql = read.sql(Dialect::Postgres);
            let mut explain = Statement::new(&format!("EXPLAIN QUERY PLAN {sql}")).build();
            for _ in 0..sql.matches('$').count() {
                explain = explain.bind(1_i64);
            }
            let steps: Vec<PlanStep> = store.db.fetch_all(explain).await.unwrap();
            let steps: Vec<String> = steps.into_iter().map(|step| step.0).collect();
            let is_met =
                |step: &String| step.starts_with("SEARCH") && expected.iter().all(|part| step.contains(part));
            assert!(steps.iter().any(is_met), "{sql}: {steps:#?}");
            let sums = |step: &String| step.contains(" u") || step.contains("daily_");
            assert!(!steps.iter().any(|step| step.starts_with("SCAN") && sums(step)), "{sql}: {steps:#?}");
        }
        store.close().await;
    }
}
