//! Rejected requests and peaks of accounts by day, and the last uses of keys, for display. Nothing is billed from them.

use crate::DbError;
use crate::db::{Conn, Db, FromRow, Query, Row, Statement, query};
use crate::ledger::batch::to_db_count;
use crate::outbox::alerts::record_rejected_caps;
use crate::{ActivityBatch, DailyPeak, DailyRejectionTotals, DailyRejections, KeyUse, MAX_ACTIVITY_ROWS};
use chancery_domain::{AccountId, Month};
use std::collections::BTreeMap;

/// The account id of rejections for keys without an account. No account has this id.
const NO_ACCOUNT: i64 = 0;

const PEAKS: &str =
    "SELECT * FROM daily_peaks WHERE day >= $1 AND day <= $2 AND account_id = $3 ORDER BY day";

impl FromRow for DailyRejectionTotals {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            day: row.day("day")?,
            code: row.get("code")?,
            rejections: row.count("rejections")?,
            last_at: row.time("last_at_ms")?,
        })
    }
}

impl FromRow for DailyPeak {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            account: AccountId(row.get("account_id")?),
            day: row.day("day")?,
            requests: row.count("requests")?,
            requests_at: row.time("requests_at_ms")?,
            tokens: row.count("tokens")?,
            tokens_at: row.time("tokens_at_ms")?,
        })
    }
}

/// For one account, or for all.
pub(crate) fn rejections<'q>(month: Month, account: Option<AccountId>) -> Query<'q> {
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

pub(crate) fn peaks<'q>(month: Month, account: AccountId) -> Query<'q> {
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

async fn add_rejections(conn: &mut Conn<'_>, rejected: &[DailyRejections]) -> Result<(), sqlx::Error> {
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
        add.build().persistent(false).execute(conn).await?;
    }
    Ok(())
}

async fn raise_peaks(conn: &mut Conn<'_>, peaks: &[DailyPeak]) -> Result<(), sqlx::Error> {
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
        raise.build().persistent(false).execute(conn).await?;
    }
    Ok(())
}

async fn record_key_uses(conn: &mut Conn<'_>, key_uses: &[KeyUse]) -> Result<(), sqlx::Error> {
    for lines in key_uses.chunks(MAX_ACTIVITY_ROWS) {
        let mut record = Statement::new("INSERT INTO key_uses AS d (key_id, last_at_ms) ");
        record.push_values(lines, |line| [line.key.0.into(), line.at.0.into()]);
        record.push(
            " ON CONFLICT (key_id) DO UPDATE SET last_at_ms = \
             CASE WHEN excluded.last_at_ms > d.last_at_ms THEN excluded.last_at_ms ELSE d.last_at_ms END",
        );
        record.build().persistent(false).execute(conn).await?;
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
    let lines = (merge_rejections(rejections)?, merge_peaks(peaks), merge_key_uses(key_uses), cap_rejections);
    if lines.0.is_empty() && lines.1.is_empty() && lines.2.is_empty() && cap_rejections.is_empty() {
        return Ok(());
    }
    let recorded = db.run(&lines, |conn, (rejected, peaks, key_uses, cap_rejections)| {
        Box::pin(async move {
            add_rejections(conn, rejected).await?;
            raise_peaks(conn, peaks).await?;
            record_key_uses(conn, key_uses).await?;
            Ok(record_rejected_caps(conn, cap_rejections).await?)
        })
    });
    recorded.await
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
