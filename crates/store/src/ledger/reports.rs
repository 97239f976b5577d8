//! What was used in a month, with denials and peaks, for the page about usage. It is read from sums by day, by an index that
//! begins with the account or the day, and never from the ledger's rows: what a month costs to read is told by that month alone.

use crate::accounts::{activity, lookup};
use crate::audit::step::AuditedSteps;
use crate::db::Db;
use crate::db::{Conn, FromRow, Query, Row, Statement, TxError, query, values};
use crate::ledger::day_sums::{SumsBy, push_sums, usage_sums};
use crate::{
    AccountUsage, KeyUsage, LedgerError, MAX_ACCOUNTS_OFFERED, MAX_USAGE_LINES, PeakDay, UsageBy, UsageMonth,
    UsageQuery, UsageReport, UsageTotals,
};
use chancery_domain::{Account, AccountId, AccountName, KeyPrefix, Month};
use chancery_policy::{Permit, ReadUsage};

/// The first day of all is at one end of an index.
const FIRST_DAY: &str = "SELECT MIN(day) FROM usage_days";

const OFFERED: &str = "SELECT * FROM accounts ORDER BY name LIMIT $1";
const ACCOUNTS: &str = "SELECT COUNT(*) FROM accounts";

impl FromRow for KeyUsage {
    const NAMED_BY: Option<&'static str> = Some("prefix");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let totals = UsageTotals::from_row(row)?;
        Ok(Self { prefix: KeyPrefix::from_stored(row.get("prefix")?), label: row.get("label")?, totals })
    }
}

impl FromRow for AccountUsage {
    const NAMED_BY: Option<&'static str> = Some("name");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (account, name) = (AccountId(row.get("id")?), AccountName::from_stored(row.get("name")?));
        Ok(Self { account, name, totals: UsageTotals::from_row(row)? })
    }
}

fn whole_month(UsageMonth { account, month }: UsageMonth, by: UsageBy) -> UsageQuery {
    UsageQuery { account, from: Some(month.first_day()), to: Some(month.last_day()), by }
}

/// Keys are looked up for sums that are made, not for every line that is summed. Of very many, those that have spent most.
fn key_sums<'q>(month: UsageMonth) -> Query<'q> {
    let mut sums = Statement::new(
        "SELECT k.prefix, k.label, s.requests, s.input_tokens, s.output_tokens, s.cost_nanos FROM (",
    );
    let by = SumsBy { column: "u.key_id", name: "id", tables: "usage_days u" };
    push_sums(&mut sums, by, &whole_month(month, UsageBy::Key));
    sums.push(") AS s JOIN api_keys k ON k.id = s.id ORDER BY s.cost_nanos DESC, k.prefix LIMIT ");
    sums.push_bind(i64::from(MAX_USAGE_LINES));
    sums.build()
}

/// Likewise of accounts.
fn account_sums<'q>(month: UsageMonth) -> Query<'q> {
    let mut sums = Statement::new(
        "SELECT a.id, a.name, s.requests, s.input_tokens, s.output_tokens, s.cost_nanos FROM (",
    );
    let by = SumsBy { column: "u.account_id", name: "id", tables: "usage_days u" };
    push_sums(&mut sums, by, &whole_month(month, UsageBy::Account));
    sums.push(") AS s JOIN accounts a ON a.id = s.id ORDER BY s.cost_nanos DESC, a.name LIMIT ");
    sums.push_bind(i64::from(MAX_USAGE_LINES));
    sums.build()
}

async fn report(conn: &mut Conn<'_>, asked: UsageMonth) -> Result<UsageReport, TxError<LedgerError>> {
    let UsageMonth { account, month } = asked;
    let all: u64 = query(ACCOUNTS).fetch_one(conn).await?;
    let mut accounts: Vec<Account> =
        query(OFFERED).bind(i64::from(MAX_ACCOUNTS_OFFERED)).fetch_all(conn).await?;
    let chosen: Option<Account> = match account {
        None => None,
        Some(id) => {
            let found = query(lookup::WITH_ID).bind(id.0).fetch_optional(conn).await?;
            Some(found.ok_or(LedgerError::NoSuchAccountId(id))?)
        }
    };
    if let Some(chosen) = chosen.iter().find(|chosen| accounts.iter().all(|account| account.id != chosen.id))
    {
        accounts.push(chosen.clone());
    }
    let first_day: Option<i64> = query(FIRST_DAY).fetch_one(conn).await?;
    let first_month = first_day.map(values::day).transpose()?.map(|day| Month::of(day.start()));
    let days = usage_sums(conn, &whole_month(asked, UsageBy::Day)).await?;
    let models = usage_sums(conn, &whole_month(asked, UsageBy::Model)).await?;
    let before = UsageMonth { account, month: month.previous() };
    let previous = usage_sums(conn, &whole_month(before, UsageBy::Day)).await?;

    let mut keys: Vec<KeyUsage> = key_sums(asked).fetch_all(conn).await?;
    keys.sort_by(|one, other| one.prefix.cmp(&other.prefix));
    let refusals = activity::denials(month, account).fetch_all(conn).await?;
    let (mut by_account, mut peaks): (Vec<AccountUsage>, Vec<PeakDay>) = Default::default();
    match account {
        None => {
            by_account = account_sums(asked).fetch_all(conn).await?;
            by_account.sort_by(|one, other| one.name.cmp(&other.name));
        }
        Some(account) => peaks = activity::peaks(month, account).fetch_all(conn).await?,
    }
    Ok(UsageReport {
        account: chosen,
        accounts_left_out: all.saturating_sub(accounts.len() as u64),
        accounts,
        first_month,
        days,
        models,
        keys,
        by_account,
        previous: UsageTotals::of(&previous)?,
        refusals,
        peaks,
    })
}

/// What was used in a month.
#[derive(Clone)]
pub struct UsageReports {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl UsageReports {
    /// `NoSuchAccountId`.
    pub async fn read_usage(
        &self,
        permit: Permit<ReadUsage>,
        query: UsageMonth,
    ) -> Result<UsageReport, LedgerError> {
        self.audited.record(&[permit.to_audit_row()]).await?;
        // Nobody's record waits for sums over many accounts.
        self.db.long_snapshot(&query, |conn, query| Box::pin(report(conn, *query))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::db::Dialect;
    use crate::ledger::day_sums;

    struct PlanStep(String);

    impl FromRow for PlanStep {
        fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
            row.get("detail").map(Self)
        }
    }

    /// PostgreSQL is watched at work instead (`tests/it/postgres_only.rs`): it chooses anew for each size of a table.
    #[tokio::test]
    async fn sqlite_reads_a_month_by_an_index_that_begins_with_the_account_or_the_day() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let searches_of_all = ["(day>? AND day<?)", "u USING INDEX usage_days_day"];
        let searches_of_one = ["(account_id=? AND day>? AND day<?)", "u USING PRIMARY KEY"];
        let month: Month = "2026-11".parse().unwrap();
        let of_all = UsageMonth { account: None, month };
        let of_one = UsageMonth { account: Some(AccountId(1)), month };
        let sums = |of, by| day_sums::sums(&whole_month(of, by));
        let cases = [
            (key_sums(of_all), searches_of_all),
            (key_sums(of_one), searches_of_one),
            (account_sums(of_all), searches_of_all),
            (
                activity::denials(month, None),
                ["(day>? AND day<?)", "refusal_days USING INDEX refusal_days_day"],
            ),
            (
                activity::denials(month, Some(AccountId(1))),
                [searches_of_one[0], "refusal_days USING PRIMARY KEY"],
            ),
            (activity::peaks(month, AccountId(1)), [searches_of_one[0], "peak_days USING PRIMARY KEY"]),
            (query(FIRST_DAY), ["", "SEARCH usage_days USING COVERING INDEX usage_days_day"]),
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
            let sums = |step: &String| step.contains(" u") || step.contains("_days");
            assert!(!steps.iter().any(|step| step.starts_with("SCAN") && sums(step)), "{sql}: {steps:#?}");
        }
        store.close().await;
    }
}
