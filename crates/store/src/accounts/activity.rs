//! Rejected requests and peaks of accounts by day, and the last uses of keys, for display. Nothing is billed from them.

use crate::DbError;
use crate::db::{Db, Query, QueryError, Statement, Tx, from_row, query};
use crate::ledger::batch::to_db_count;
use crate::outbox::alerts::record_rejected_caps;
use crate::{ActivityBatch, DailyPeak, DailyRejectionTotals, DailyRejections, KeyUse, MAX_ACTIVITY_ROWS};
use chancery_domain::{AccountId, Month};
use std::collections::BTreeMap;

/// The account id of rejections for keys without an account. No account has this id.
const NO_ACCOUNT: i64 = 0;

const PEAKS: &str =
    "SELECT * FROM daily_peaks WHERE day >= $1 AND day <= $2 AND account_id = $3 ORDER BY day";

from_row!(DailyRejectionTotals { day, code, rejections, last_at: "last_at_ms" });

from_row!(DailyPeak {
    account: "account_id",
    day,
    requests,
    requests_at: "requests_at_ms",
    tokens,
    tokens_at: "tokens_at_ms"
});

/// For one account, or for all.
pub(crate) fn rejections(month: Month, account: Option<AccountId>) -> Query {
    let mut read = Statement::new(
        "SELECT day, code, CAST(SUM(rejections) AS BIGINT) AS rejections, MAX(last_at_ms) AS last_at_ms \
         FROM daily_rejections WHERE day >= ",
    );
    read.push_bind(i64::from(month.first_day().0))
        .push(" AND day <= ")
        .push_bind(i64::from(month.last_day().0));
    if let Some(account) = account {
        read.push(" AND account_id = ").push_bind(account.0);
    }
    read.push(" GROUP BY day, code ORDER BY day, code");
    read.build()
}

pub(crate) fn peaks(month: Month, account: AccountId) -> Query {
    let (first_day, last_day) = (i64::from(month.first_day().0), i64::from(month.last_day().0));
    query(PEAKS).bind(first_day).bind(last_day).bind(account.0)
}

/// Merged and sorted by key, so that two nodes do not deadlock.
fn merge_rejections(rejected: &[DailyRejections]) -> Result<Vec<DailyRejections>, DbError> {
    let mut lines: BTreeMap<_, DailyRejections> = BTreeMap::new();
    for more in rejected {
        let line = (more.account.map_or(NO_ACCOUNT, |account| account.0), more.day, more.key, &more.code);
        match lines.get_mut(&line) {
            None => drop(lines.insert(line, more.clone())),
            Some(sum) => {
                sum.rejections = sum.rejections.checked_add(more.rejections).ok_or(DbError::SumTooLarge)?;
                sum.last_at = sum.last_at.max(more.last_at);
            }
        }
    }
    Ok(lines.into_values().collect())
}

fn merge_peaks(peaks: &[DailyPeak]) -> Vec<DailyPeak> {
    let mut lines: BTreeMap<_, DailyPeak> = BTreeMap::new();
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

fn add_rejections(tx: &mut Tx<'_>, rejected: &[DailyRejections]) -> Result<(), QueryError> {
    for lines in rejected.chunks(MAX_ACTIVITY_ROWS) {
        let mut add = Statement::new(
            "INSERT INTO daily_rejections AS d (account_id, day, key_id, code, rejections, last_at_ms) ",
        );
        add.push_values(lines, |line| {
            [
                line.account.map_or(NO_ACCOUNT, |account| account.0).into(),
                i64::from(line.day.0).into(),
                line.key.0.into(),
                line.code.as_str().into(),
                to_db_count(line.rejections).into(),
                line.last_at.0.into(),
            ]
        });
        add.push(
            " ON CONFLICT (account_id, day, key_id, code) DO UPDATE SET \
             rejections = d.rejections + excluded.rejections, last_at_ms = \
             CASE WHEN excluded.last_at_ms > d.last_at_ms THEN excluded.last_at_ms ELSE d.last_at_ms END",
        );
        // The SQL differs for every length, so caching it is not worthwhile.
        add.build().persistent(false).execute(tx)?;
    }
    Ok(())
}

fn raise_peaks(tx: &mut Tx<'_>, peaks: &[DailyPeak]) -> Result<(), QueryError> {
    for lines in peaks.chunks(MAX_ACTIVITY_ROWS) {
        let mut raise = Statement::new(
            "INSERT INTO daily_peaks AS d (account_id, day, requests, requests_at_ms, tokens, tokens_at_ms) ",
        );
        raise.push_values(lines, |line| {
            [
                line.account.0.into(),
                i64::from(line.day.0).into(),
                to_db_count(line.requests).into(),
                line.requests_at.0.into(),
                to_db_count(line.tokens).into(),
                line.tokens_at.0.into(),
            ]
        });
        raise.push(
            " ON CONFLICT (account_id, day) DO UPDATE SET requests_at_ms = \
             CASE WHEN excluded.requests > d.requests THEN excluded.requests_at_ms ELSE d.requests_at_ms END, \
             requests = CASE WHEN excluded.requests > d.requests THEN excluded.requests ELSE d.requests END, \
             tokens_at_ms = \
             CASE WHEN excluded.tokens > d.tokens THEN excluded.tokens_at_ms ELSE d.tokens_at_ms END, \
             tokens = CASE WHEN excluded.tokens > d.tokens THEN excluded.tokens ELSE d.tokens END",
        );
        raise.build().persistent(false).execute(tx)?;
    }
    Ok(())
}

fn record_key_uses(tx: &mut Tx<'_>, key_uses: &[KeyUse]) -> Result<(), QueryError> {
    for lines in key_uses.chunks(MAX_ACTIVITY_ROWS) {
        let mut record = Statement::new("INSERT INTO key_uses AS d (key_id, last_at_ms) ");
        record.push_values(lines, |line| [line.key.0.into(), line.at.0.into()]);
        record.push(
            " ON CONFLICT (key_id) DO UPDATE SET last_at_ms = \
             CASE WHEN excluded.last_at_ms > d.last_at_ms THEN excluded.last_at_ms ELSE d.last_at_ms END",
        );
        record.build().persistent(false).execute(tx)?;
    }
    Ok(())
}

/// Sorted by key, so that two nodes do not deadlock; the last use of each.
fn merge_key_uses(key_uses: &[KeyUse]) -> Vec<KeyUse> {
    let mut lines: BTreeMap<_, KeyUse> = BTreeMap::new();
    for more in key_uses {
        let last = lines.entry(more.key).or_insert(*more);
        last.at = last.at.max(more.at);
    }
    lines.into_values().collect()
}

/// Atomic.
pub(crate) async fn record(db: &Db, batch: ActivityBatch<'_>) -> Result<(), DbError> {
    let ActivityBatch { rejections, peaks, key_uses, cap_rejections } = batch;
    let (rejected, peaks) = (merge_rejections(rejections)?, merge_peaks(peaks));
    let (key_uses, cap_rejections) = (merge_key_uses(key_uses), cap_rejections.to_vec());
    if rejected.is_empty() && peaks.is_empty() && key_uses.is_empty() && cap_rejections.is_empty() {
        return Ok(());
    }
    db.write(move |tx| {
        add_rejections(tx, &rejected)?;
        raise_peaks(tx, &peaks)?;
        record_key_uses(tx, &key_uses)?;
        Ok(record_rejected_caps(tx, &cap_rejections)?)
    })
    .await
}

/// Counts of rejected requests and peaks, by day.
#[derive(Clone)]
pub struct Activity {
    pub(crate) db: Db,
}

impl Activity {
    /// Adds rejections to their days, raises peaks and advances the last uses of keys, in one transaction. All of it is
    /// for display: a process that dies loses what it has not recorded yet. Callers with more than `MAX_ACTIVITY_ROWS`
    /// rows make several calls.
    pub async fn record_activity(&self, batch: ActivityBatch<'_>) -> Result<(), DbError> {
        record(&self.db, batch).await
    }
}
