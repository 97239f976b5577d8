//! What accounts do, by day, for people to read: requests that were denied, and the busiest minutes. Counts only; nothing is
//! billed from them.

use crate::DbError;
use crate::db::{Conn, Db, FromRow, Query, Row, Statement, query};
use crate::ledger::batch::stored_count;
use crate::{ACTIVITY_LINES_AT_ONCE, PeakDay, RefusedDay, RefusedOnDay};
use chancery_domain::{AccountId, Month};
use std::collections::BTreeMap;

/// The account under which denials of keys are stored that bill none. No account has this number.
const NO_ACCOUNT: i64 = 0;

const PEAKS: &str = "SELECT * FROM peak_days WHERE day >= $1 AND day <= $2 AND account_id = $3 ORDER BY day";

impl FromRow for RefusedOnDay {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            day: row.day("day")?,
            code: row.get("code")?,
            refusals: row.count("refusals")?,
            last_at: row.time("last_at_ms")?,
        })
    }
}

impl FromRow for PeakDay {
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

/// Of one account, or of all.
pub(crate) fn denials<'q>(month: Month, account: Option<AccountId>) -> Query<'q> {
    let mut read = Statement::new(
        "SELECT day, code, CAST(SUM(refusals) AS BIGINT) AS refusals, MAX(last_at_ms) AS last_at_ms \
         FROM refusal_days WHERE day >= ",
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

/// Each line once and in the order of its keys, so that two nodes never wait for each other in a circle.
fn merged_denials(denied: &[RefusedDay]) -> Result<Vec<RefusedDay>, DbError> {
    let mut lines: BTreeMap<_, RefusedDay> = BTreeMap::new();
    for more in denied {
        let line = (more.account.map_or(NO_ACCOUNT, |account| account.0), more.day, more.key, &more.code);
        match lines.get_mut(&line) {
            None => drop(lines.insert(line, more.clone())),
            Some(sum) => {
                sum.refusals = sum.refusals.checked_add(more.refusals).ok_or(DbError::SumTooLarge)?;
                sum.last_at = sum.last_at.max(more.last_at);
            }
        }
    }
    Ok(lines.into_values().collect())
}

fn merged_peaks(peaks: &[PeakDay]) -> Vec<PeakDay> {
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

async fn add_denials(conn: &mut Conn<'_>, denied: &[RefusedDay]) -> Result<(), sqlx::Error> {
    for lines in denied.chunks(ACTIVITY_LINES_AT_ONCE) {
        let mut add = Statement::new(
            "INSERT INTO refusal_days AS d (account_id, day, key_id, code, refusals, last_at_ms) ",
        );
        add.push_values(lines, |line| {
            [
                line.account.map_or(NO_ACCOUNT, |account| account.0).into(),
                i64::from(line.day.0).into(),
                line.key.0.into(),
                line.code.as_str().into(),
                stored_count(line.refusals).into(),
                line.last_at.0.into(),
            ]
        });
        add.push(
            " ON CONFLICT (account_id, day, key_id, code) DO UPDATE SET \
             refusals = d.refusals + excluded.refusals, last_at_ms = \
             CASE WHEN excluded.last_at_ms > d.last_at_ms THEN excluded.last_at_ms ELSE d.last_at_ms END",
        );
        // Of every length there is another statement, and none is worth keeping.
        add.build().persistent(false).execute(conn).await?;
    }
    Ok(())
}

async fn raise_peaks(conn: &mut Conn<'_>, peaks: &[PeakDay]) -> Result<(), sqlx::Error> {
    for lines in peaks.chunks(ACTIVITY_LINES_AT_ONCE) {
        let mut raise = Statement::new(
            "INSERT INTO peak_days AS d (account_id, day, requests, requests_at_ms, tokens, tokens_at_ms) ",
        );
        raise.push_values(lines, |line| {
            [
                line.account.0.into(),
                i64::from(line.day.0).into(),
                stored_count(line.requests).into(),
                line.requests_at.0.into(),
                stored_count(line.tokens).into(),
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

/// All of it or nothing.
pub(crate) async fn record(db: &Db, denied: &[RefusedDay], peaks: &[PeakDay]) -> Result<(), DbError> {
    let lines = (merged_denials(denied)?, merged_peaks(peaks));
    if lines.0.is_empty() && lines.1.is_empty() {
        return Ok(());
    }
    let recorded = db.run(&lines, |conn, (denied, peaks)| {
        Box::pin(async move {
            add_denials(conn, denied).await?;
            Ok(raise_peaks(conn, peaks).await?)
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
    /// Adds refusals to those of their days, and raises the peaks of theirs. Counts for people to read: what a process that dies
    /// had not noted yet is lost. One step, all of it or nothing: whoever has more than `ACTIVITY_LINES_AT_ONCE` takes several.
    pub async fn note_activity(&self, refused: &[RefusedDay], peaks: &[PeakDay]) -> Result<(), DbError> {
        record(&self.db, refused, peaks).await
    }
}
