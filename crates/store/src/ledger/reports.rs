//! The queries about what was used in a month, and about refusals and peaks. They read sums by day, by an index that begins with
//! the account or the day, and never the ledger's rows: what a month costs to read is told by that month alone.

use crate::accounts::accounts::StoredAccount;
use crate::audit::chain::AuditChain;
use crate::audit::step::{Stopped, note, reading};
use crate::db::both::{Statement, for_both_connections, for_both_stores, stored_row};
use crate::db::error_codes::{STATEMENT_TIMEOUT, explain, long_answer};
use crate::db::retry::patiently;
use crate::db::transaction::{BeginReading, BeginWriting};
use crate::ledger::batch::stored_count;
use crate::ledger::queries::{StoredSums, UsageSums, count, day, usage_sums};
use crate::{
    ACTIVITY_LINES_AT_ONCE, AccountUsage, KeyUsage, MAX_ACCOUNTS_OFFERED, MAX_USAGE_LINES, PeakDay,
    RefusedDay, RefusedOnDay, StoreError, UsageBy, UsageMonth, UsageQuery, UsageReport, UsageReports,
    UsageTotals,
};
use chancery_domain::{Account, AccountId, AccountName, KeyPrefix, Month, UnixMillis};
use chancery_policy::{Permit, ReadUsage};
use sqlx::Connection;
use std::collections::BTreeMap;

/// The account under which the refusals of keys are kept that bill none. No account has this number.
const NO_ACCOUNT: i64 = 0;

/// The first day of all is at one end of an index.
const FIRST_DAY: &str = "SELECT MIN(day) FROM usage_days";

const OFFERED: &str = "SELECT * FROM accounts ORDER BY name LIMIT $1";
const ACCOUNT: &str = "SELECT * FROM accounts WHERE id = $1";
const ACCOUNTS: &str = "SELECT COUNT(*) FROM accounts";

/// Keys and accounts are looked up for sums that are made, not for every line that is summed. Of very many, those that have
/// spent most.
macro_rules! key_sums {
    ($limit:literal, $($whose:tt)*) => {
        concat!(
            "SELECT k.prefix, k.label, s.requests, s.input_tokens, s.output_tokens, s.cost_nanos FROM (",
            usage_sums!("u.key_id" as "id" from "usage_days u", $($whose)*),
            ") AS s JOIN api_keys k ON k.id = s.id ORDER BY s.cost_nanos DESC, k.prefix LIMIT ",
            $limit
        )
    };
}

const BY_KEY: &str = key_sums!("$3", of every account);
const BY_KEY_OF_ONE: &str = key_sums!("$4", of one account);
const BY_ACCOUNT: &str = concat!(
    "SELECT a.id, a.name, s.requests, s.input_tokens, s.output_tokens, s.cost_nanos FROM (",
    usage_sums!("u.account_id" as "id" from "usage_days u", of every account),
    ") AS s JOIN accounts a ON a.id = s.id ORDER BY s.cost_nanos DESC, a.name LIMIT $3"
);

macro_rules! refusals {
    ($whose:literal) => {
        concat!(
            "SELECT day, code, CAST(SUM(refusals) AS BIGINT) AS refusals, MAX(last_at_ms) AS last_at_ms \
             FROM refusal_days WHERE day >= $1 AND day <= $2",
            $whose,
            " GROUP BY day, code ORDER BY day, code"
        )
    };
}

const REFUSALS: &str = refusals!("");
const REFUSALS_OF_ONE: &str = refusals!(" AND account_id = $3");
const PEAKS: &str = "SELECT * FROM peak_days WHERE day >= $1 AND day <= $2 AND account_id = $3 ORDER BY day";

stored_row! {
    struct StoredKeyUsage named by prefix {
        prefix: String,
        label: String,
        ..sums: StoredSums,
    }
}

stored_row! {
    struct StoredAccountUsage named by name {
        id: i64,
        name: String,
        ..sums: StoredSums,
    }
}

stored_row! {
    struct StoredRefusals {
        day: i64,
        code: String,
        refusals: i64,
        last_at_ms: i64,
    }
}

stored_row! {
    struct StoredPeakDay {
        account_id: i64,
        day: i64,
        requests: i64,
        requests_at_ms: i64,
        tokens: i64,
        tokens_at_ms: i64,
    }
}

impl StoredKeyUsage {
    fn into_key_usage(self) -> Result<KeyUsage, StoreError> {
        let totals = self.sums.into_totals()?;
        Ok(KeyUsage { prefix: KeyPrefix::from_stored(self.prefix), label: self.label, totals })
    }
}

impl StoredAccountUsage {
    fn into_account_usage(self) -> Result<AccountUsage, StoreError> {
        let (account, name) = (AccountId(self.id), AccountName::from_stored(self.name));
        Ok(AccountUsage { account, name, totals: self.sums.into_totals()? })
    }
}

impl StoredRefusals {
    fn into_refused_on_day(self) -> Result<RefusedOnDay, StoreError> {
        Ok(RefusedOnDay {
            day: day(self.day)?,
            code: self.code,
            refusals: count(self.refusals)?,
            last_at: UnixMillis(self.last_at_ms),
        })
    }
}

impl StoredPeakDay {
    fn into_peak_day(self) -> Result<PeakDay, StoreError> {
        Ok(PeakDay {
            account: AccountId(self.account_id),
            day: day(self.day)?,
            requests: count(self.requests)?,
            requests_at: UnixMillis(self.requests_at_ms),
            tokens: count(self.tokens)?,
            tokens_at: UnixMillis(self.tokens_at_ms),
        })
    }
}

/// What is noted, each line once and in the order of its keys, so that two nodes never wait for each other in a circle.
fn in_order(refused: &[RefusedDay]) -> Result<Vec<RefusedDay>, StoreError> {
    let mut lines: BTreeMap<_, RefusedDay> = BTreeMap::new();
    for more in refused {
        let line = (more.account.map_or(NO_ACCOUNT, |account| account.0), more.day, more.key, &more.code);
        match lines.get_mut(&line) {
            None => drop(lines.insert(line, more.clone())),
            Some(sum) => {
                sum.refusals = sum.refusals.checked_add(more.refusals).ok_or(StoreError::SumTooLarge)?;
                sum.last_at = sum.last_at.max(more.last_at);
            }
        }
    }
    Ok(lines.into_values().collect())
}

fn highest(peaks: &[PeakDay]) -> Vec<PeakDay> {
    let mut lines: BTreeMap<_, PeakDay> = BTreeMap::new();
    for more in peaks {
        let highest = lines.entry((more.account, more.day)).or_insert(*more);
        if more.requests > highest.requests {
            (highest.requests, highest.requests_at) = (more.requests, more.requests_at);
        }
        if more.tokens > highest.tokens {
            (highest.tokens, highest.tokens_at) = (more.tokens, more.tokens_at);
        }
    }
    lines.into_values().collect()
}

#[async_trait::async_trait]
trait UsagePages {
    async fn usage_report(&mut self, query: UsageMonth) -> Result<UsageReport, Stopped>;

    async fn add_refusals(&mut self, refused: &[RefusedDay]) -> Result<(), sqlx::Error>;

    async fn raise_peaks(&mut self, peaks: &[PeakDay]) -> Result<(), sqlx::Error>;
}

for_both_connections! {
    impl UsagePages {
        async fn usage_report(&mut self, query: UsageMonth) -> Result<UsageReport, Stopped> {
            let UsageMonth { account, month } = query;
            let (first_day, last_day) = (i64::from(month.first_day().0), i64::from(month.last_day().0));
            let all: i64 = sqlx::query_scalar(ACCOUNTS).fetch_one(&mut *self).await?;
            let accounts: Vec<StoredAccount> =
                sqlx::query_as(OFFERED).bind(i64::from(MAX_ACCOUNTS_OFFERED)).fetch_all(&mut *self).await?;
            let accounts: Result<Vec<Account>, _> =
                accounts.into_iter().map(StoredAccount::into_account).collect();
            let mut accounts = accounts?;
            let chosen = match account {
                None => None,
                Some(id) => {
                    let found: Option<StoredAccount> =
                        sqlx::query_as(ACCOUNT).bind(id.0).fetch_optional(&mut *self).await?;
                    Some(found.ok_or(StoreError::NoSuchAccountId(id))?.into_account()?)
                }
            };
            if let Some(chosen) = chosen.iter().find(|chosen| accounts.iter().all(|account| account.id != chosen.id)) {
                accounts.push(chosen.clone());
            }
            let accounts_left_out = count(all)?.saturating_sub(accounts.len() as u64);
            let first: Option<i64> = sqlx::query_scalar(FIRST_DAY).fetch_one(&mut *self).await?;
            let first_month = first.map(day).transpose()?.map(|day| Month::of(day.start()));
            let of = |month: Month, by| {
                let (from, to) = (Some(month.first_day()), Some(month.last_day()));
                UsageQuery { account, from, to, by }
            };
            let days: Result<Vec<_>, _> = self.usage_sums(&of(month, UsageBy::Day)).await?.into_iter().collect();
            let models: Result<Vec<_>, _> =
                self.usage_sums(&of(month, UsageBy::Model)).await?.into_iter().collect();
            let previous: Result<Vec<_>, _> =
                self.usage_sums(&of(month.previous(), UsageBy::Day)).await?.into_iter().collect();

            let mut keys = sqlx::query_as(if account.is_some() { BY_KEY_OF_ONE } else { BY_KEY });
            let mut refusals = sqlx::query_as(if account.is_some() { REFUSALS_OF_ONE } else { REFUSALS });
            (keys, refusals) =
                (keys.bind(first_day).bind(last_day), refusals.bind(first_day).bind(last_day));
            if let Some(account) = account {
                (keys, refusals) = (keys.bind(account.0), refusals.bind(account.0));
            }
            let keys = keys.bind(i64::from(MAX_USAGE_LINES));
            let mut keys: Vec<StoredKeyUsage> = keys.fetch_all(&mut *self).await?;
            keys.sort_by(|one, other| one.prefix.cmp(&other.prefix));
            let keys: Result<Vec<_>, _> = keys.into_iter().map(StoredKeyUsage::into_key_usage).collect();
            let refusals: Vec<StoredRefusals> = refusals.fetch_all(&mut *self).await?;
            let refusals: Result<Vec<_>, _> =
                refusals.into_iter().map(StoredRefusals::into_refused_on_day).collect();

            let (mut by_account, mut peaks): (Vec<StoredAccountUsage>, Vec<StoredPeakDay>) = Default::default();
            match account {
                None => {
                    let sums = sqlx::query_as(BY_ACCOUNT).bind(first_day).bind(last_day);
                    by_account = sums.bind(i64::from(MAX_USAGE_LINES)).fetch_all(&mut *self).await?;
                    by_account.sort_by(|one, other| one.name.cmp(&other.name));
                }
                Some(account) => {
                    let found = sqlx::query_as(PEAKS).bind(first_day).bind(last_day).bind(account.0);
                    peaks = found.fetch_all(&mut *self).await?;
                }
            }
            let by_account: Result<Vec<_>, _> =
                by_account.into_iter().map(StoredAccountUsage::into_account_usage).collect();
            let peaks: Result<Vec<_>, _> = peaks.into_iter().map(StoredPeakDay::into_peak_day).collect();
            Ok(UsageReport {
                account: chosen,
                accounts,
                accounts_left_out,
                first_month,
                days: days?,
                models: models?,
                keys: keys?,
                by_account: by_account?,
                previous: UsageTotals::of(&previous?)?,
                refusals: refusals?,
                peaks: peaks?,
            })
        }

        async fn add_refusals(&mut self, refused: &[RefusedDay]) -> Result<(), sqlx::Error> {
            for lines in refused.chunks(ACTIVITY_LINES_AT_ONCE) {
                let mut add = Statement::<Self>::new(
                    "INSERT INTO refusal_days AS d (account_id, day, key_id, code, refusals, last_at_ms) ",
                );
                add.push_values(lines, |mut values, line| {
                    values
                        .push_bind(line.account.map_or(NO_ACCOUNT, |account| account.0))
                        .push_bind(i64::from(line.day.0))
                        .push_bind(line.key.0)
                        .push_bind(line.code.clone())
                        .push_bind(stored_count(line.refusals))
                        .push_bind(line.last_at.0);
                });
                add.push(
                    " ON CONFLICT (account_id, day, key_id, code) DO UPDATE SET \
                     refusals = d.refusals + excluded.refusals, last_at_ms = \
                     CASE WHEN excluded.last_at_ms > d.last_at_ms THEN excluded.last_at_ms ELSE d.last_at_ms END",
                );
                // Of every length there is another statement, and none is worth keeping.
                add.build().persistent(false).execute(&mut *self).await?;
            }
            Ok(())
        }

        async fn raise_peaks(&mut self, peaks: &[PeakDay]) -> Result<(), sqlx::Error> {
            for lines in peaks.chunks(ACTIVITY_LINES_AT_ONCE) {
                let mut raise = Statement::<Self>::new(
                    "INSERT INTO peak_days AS d \
                     (account_id, day, requests, requests_at_ms, tokens, tokens_at_ms) ",
                );
                raise.push_values(lines, |mut values, line| {
                    values
                        .push_bind(line.account.0)
                        .push_bind(i64::from(line.day.0))
                        .push_bind(stored_count(line.requests))
                        .push_bind(line.requests_at.0)
                        .push_bind(stored_count(line.tokens))
                        .push_bind(line.tokens_at.0);
                });
                raise.push(
                    " ON CONFLICT (account_id, day) DO UPDATE SET requests_at_ms = \
                     CASE WHEN excluded.requests > d.requests THEN excluded.requests_at_ms ELSE d.requests_at_ms END, \
                     requests = CASE WHEN excluded.requests > d.requests THEN excluded.requests ELSE d.requests END, \
                     tokens_at_ms = \
                     CASE WHEN excluded.tokens > d.tokens THEN excluded.tokens_at_ms ELSE d.tokens_at_ms END, \
                     tokens = CASE WHEN excluded.tokens > d.tokens THEN excluded.tokens ELSE d.tokens END",
                );
                raise.build().persistent(false).execute(&mut *self).await?;
            }
            Ok(())
        }
    }
}

for_both_stores! {
    impl UsageReports {
        async fn read_usage(
            &self,
            permit: Permit<ReadUsage>,
            query: UsageMonth,
        ) -> Result<UsageReport, StoreError> {
            note!(self, permit);
            // Nobody's record waits for sums over many accounts.
            reading!(self.long_reader, long_answer, |moment| moment.usage_report(query))
        }

        async fn note_activity(&self, refused: &[RefusedDay], peaks: &[PeakDay]) -> Result<(), StoreError> {
            let (refused, peaks) = (in_order(refused)?, highest(peaks));
            if refused.is_empty() && peaks.is_empty() {
                return Ok(());
            }
            let noted = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| async {
                let mut transaction = connection.begin_with(Self::BEGIN).await?;
                transaction.add_refusals(&refused).await?;
                transaction.raise_peaks(&peaks).await?;
                transaction.commit().await
            });
            noted.map_err(|error| explain(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::sqlite::SqliteStore;
    use sqlx::{AssertSqlSafe, Row};

    /// PostgreSQL is watched at work instead (`tests/it/postgres_only.rs`): it chooses anew for each size of a table.
    #[tokio::test]
    async fn sqlite_reads_a_month_by_an_index_that_begins_with_the_account_or_the_day() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("chancery.db")).await.unwrap();
        let of_all = ["(day>? AND day<?)", "u USING INDEX usage_days_day"];
        let of_one = ["(account_id=? AND day>? AND day<?)", "u USING PRIMARY KEY"];
        let mut cases = vec![
            (BY_KEY, of_all),
            (BY_KEY_OF_ONE, of_one),
            (BY_ACCOUNT, of_all),
            (REFUSALS, ["(day>? AND day<?)", "refusal_days USING INDEX refusal_days_day"]),
            (REFUSALS_OF_ONE, [of_one[0], "refusal_days USING PRIMARY KEY"]),
            (PEAKS, [of_one[0], "peak_days USING PRIMARY KEY"]),
            (FIRST_DAY, ["", "SEARCH usage_days USING COVERING INDEX usage_days_day"]),
        ];
        cases.extend(crate::ledger::queries::MONTH_SUMS.map(|sql| (sql, of_all)));
        cases.extend(crate::ledger::queries::MONTH_SUMS_OF_ONE.map(|sql| (sql, of_one)));
        for (sql, expected) in cases {
            let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
            let mut explain = sqlx::query(explain);
            for _ in 0..sql.matches('$').count() {
                explain = explain.bind(1);
            }
            let steps = explain.fetch_all(&store.reader).await.unwrap();
            let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
            let is_met =
                |step: &String| step.starts_with("SEARCH") && expected.iter().all(|part| step.contains(part));
            assert!(steps.iter().any(is_met), "{sql}: {steps:#?}");
            let sums = |step: &String| step.contains(" u") || step.contains("_days");
            assert!(!steps.iter().any(|step| step.starts_with("SCAN") && sums(step)), "{sql}: {steps:#?}");
        }
        crate::Health::close(&store).await;
    }
}
