//! Queries for alerts: spending of accounts and keys with a cap, keys that expire, and which alerts were sent. Each is
//! recorded together with its messages, in one transaction, so it is sent once.

use super::messages::enqueue;
use crate::db::{COMMAND_RETRY_LIMIT, Db, FromRow, QueryError, Row, Tx, from_row, query};
use crate::{
    Alert, AlertNames, AlertPeriod, AlertSubject, CapRejection, CappedSpending, DbError, ExpiringKey,
    NewMessage,
};
use chancery_domain::{ContactEmail, KeyId, KeyPrefix, Month, UnixMillis};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// `key_id` is zero, which no key has.
const ACCOUNTS_WITH_CAP: &str = "SELECT CAST(0 AS BIGINT) AS key_id, a.id AS account_id, a.name AS account_name, \
    a.billing_email AS billing_email, CAST(NULL AS TEXT) AS key_prefix, CAST(NULL AS TEXT) AS key_label, \
    a.spend_per_month_nanos AS cap_nanos, \
    CAST(COALESCE((SELECT SUM(u.cost_nanos) FROM daily_usage u \
        WHERE u.account_id = a.id AND u.day BETWEEN $1 AND $2), 0) AS BIGINT) AS spent_nanos, \
    CAST((SELECT COUNT(*) FROM cap_rejections r WHERE r.scope = 'account' AND r.subject_id = a.id \
        AND r.month = $1 AND r.cap_nanos = a.spend_per_month_nanos) AS BIGINT) AS cap_rejections \
    FROM accounts a WHERE a.spend_per_month_nanos IS NOT NULL AND a.closed_at_ms IS NULL \
    AND a.id > $3 ORDER BY a.id LIMIT $4";
const KEYS_WITH_CAP: &str = "SELECT k.id AS key_id, k.account_id AS account_id, a.name AS account_name, \
    a.billing_email AS billing_email, k.prefix AS key_prefix, k.label AS key_label, \
    k.max_spend_per_month_nanos AS cap_nanos, \
    CAST(COALESCE((SELECT SUM(u.cost_nanos) FROM daily_usage u \
        WHERE u.key_id = k.id AND u.day BETWEEN $1 AND $2), 0) AS BIGINT) AS spent_nanos, \
    CAST((SELECT COUNT(*) FROM cap_rejections r WHERE r.scope = 'key' AND r.subject_id = k.id \
        AND r.month = $1 AND r.cap_nanos = k.max_spend_per_month_nanos) AS BIGINT) AS cap_rejections \
    FROM api_keys k LEFT JOIN accounts a ON a.id = k.account_id \
    WHERE k.max_spend_per_month_nanos IS NOT NULL AND k.revoked_at_ms IS NULL AND a.closed_at_ms IS NULL \
    AND k.id > $3 ORDER BY k.id LIMIT $4";
const EXPIRING_KEYS: &str = "SELECT k.id AS key_id, k.account_id AS account_id, a.name AS account_name, \
    a.billing_email AS billing_email, k.prefix AS key_prefix, k.label AS key_label, k.expires_at_ms AS expires_at_ms \
    FROM api_keys k LEFT JOIN accounts a ON a.id = k.account_id \
    WHERE k.expires_at_ms > $1 AND k.expires_at_ms <= $2 AND k.revoked_at_ms IS NULL AND a.closed_at_ms IS NULL \
    AND k.id > $3 ORDER BY k.id LIMIT $4";
const SENT: &str =
    "SELECT scope, subject_id, alert, period, cap_nanos FROM alerts_sent WHERE period BETWEEN $1 AND $2";
const RECORD: &str = "INSERT INTO alerts_sent (scope, subject_id, alert, period, cap_nanos, sent_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (scope, subject_id, alert, period, cap_nanos) DO NOTHING";
const RECORD_REJECTION: &str = "INSERT INTO cap_rejections (scope, subject_id, month, cap_nanos, first_at_ms) \
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (scope, subject_id, month, cap_nanos) DO NOTHING";
/// A claim that ends later than any would now dates from before the clock was set back.
const CLAIM_TASK: &str = "INSERT INTO periodic_tasks AS t (name, claimed_until_ms) VALUES ($1, $3) \
    ON CONFLICT (name) DO UPDATE SET claimed_until_ms = excluded.claimed_until_ms \
    WHERE t.claimed_until_ms <= $2 OR t.claimed_until_ms > $3";
const DELETE_ALERTS: &str = "DELETE FROM alerts_sent WHERE sent_at_ms <= $1";
const DELETE_REJECTIONS: &str = "DELETE FROM cap_rejections WHERE first_at_ms <= $1";

impl FromRow for AlertNames {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let email: Option<String> = row.get("billing_email")?;
        let key = row.get::<Option<KeyPrefix>>("key_prefix")?.zip(row.get("key_label")?);
        let billing_email = email.filter(|email| !email.is_empty()).map(ContactEmail::from_stored);
        Ok(Self { account: row.get("account_name")?, billing_email, key })
    }
}

impl FromRow for CappedSpending {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let subject = match row.get::<i64>("key_id")? {
            0 => AlertSubject::Account(row.get("account_id")?),
            key => AlertSubject::Key(KeyId(key)),
        };
        Ok(Self {
            subject,
            names: AlertNames::from_row(row)?,
            cap: row.get("cap_nanos")?,
            spent: row.get("spent_nanos")?,
            has_rejected: row.get::<u64>("cap_rejections")? > 0,
        })
    }
}

from_row!(ExpiringKey { key: "key_id", names: AlertNames::from_row, expires_at: "expires_at_ms" });

fn record_alert(tx: &mut Tx<'_>, alert: &Alert, now: UnixMillis) -> Result<bool, QueryError> {
    let record = query(RECORD)
        .bind(alert.subject.scope().as_str())
        .bind(alert.subject.id())
        .bind(alert.kind.name())
        .bind(alert.period.to_db())
        .bind(alert.cap.0)
        .bind(now.0);
    Ok(record.execute(tx)? > 0)
}

#[derive(PartialEq, Eq, Hash)]
struct SentAlert {
    scope: String,
    subject_id: i64,
    alert: String,
    period: i64,
    cap_nanos: i64,
}

from_row!(SentAlert { scope, subject_id, alert, period, cap_nanos });

/// Alerts that were sent.
pub struct SentAlerts(HashSet<SentAlert>);

impl SentAlerts {
    pub fn contains(&self, alert: &Alert) -> bool {
        self.0.contains(&SentAlert {
            scope: alert.subject.scope().as_str().to_owned(),
            subject_id: alert.subject.id(),
            alert: alert.kind.name(),
            period: alert.period.to_db(),
            cap_nanos: alert.cap.0,
        })
    }
}

/// The first rejection of each cap and month. In the same order everywhere, so that two nodes do not deadlock.
pub(crate) fn record_rejected_caps(
    tx: &mut Tx<'_>,
    rejections: &[(CapRejection, UnixMillis)],
) -> Result<(), QueryError> {
    let mut rejections = rejections.to_vec();
    rejections.sort_by_key(|(CapRejection { subject, month, cap }, _)| {
        (subject.scope().as_str(), subject.id(), month.first_day().0, cap.0)
    });
    for (CapRejection { subject, month, cap }, at) in &rejections {
        let record = query(RECORD_REJECTION)
            .bind(subject.scope().as_str())
            .bind(subject.id())
            .bind(i64::from(month.first_day().0))
            .bind(cap.0)
            .bind(at.0);
        record.execute(tx)?;
    }
    Ok(())
}

/// What alerts are about, and which were sent.
#[derive(Clone)]
pub struct Alerts {
    pub(crate) db: Db,
    pub(crate) wake: Arc<Notify>,
}

impl Alerts {
    /// Spending in the month of the open accounts and then the active keys that have a cap: up to `limit` that come
    /// after `after`. Fewer than `limit` are the last.
    pub async fn capped_spending(
        &self,
        month: Month,
        after: Option<AlertSubject>,
        limit: u32,
    ) -> Result<Vec<CappedSpending>, DbError> {
        let (first_day, last_day) = (i64::from(month.first_day().0), i64::from(month.last_day().0));
        let page = |sql: &'static str, after: i64, limit: usize| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            query(sql).bind(first_day).bind(last_day).bind(after).bind(limit)
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (after_account, after_key) = match after {
            None => (Some(0), 0),
            Some(AlertSubject::Account(account)) => (Some(account.0), 0),
            Some(AlertSubject::Key(key)) => (None, key.0),
        };
        let mut spending: Vec<CappedSpending> = match after_account {
            Some(after) => self.db.fetch_all(page(ACCOUNTS_WITH_CAP, after, limit)).await?,
            None => Vec::new(),
        };
        let left = limit.saturating_sub(spending.len());
        if left > 0 {
            let keys: Vec<CappedSpending> = self.db.fetch_all(page(KEYS_WITH_CAP, after_key, left)).await?;
            spending.extend(keys);
        }
        Ok(spending)
    }

    /// Active keys that expire after `now` and no later than `until`: up to `limit`, by id, that come after `after`.
    pub async fn expiring_keys(
        &self,
        (now, until): (UnixMillis, UnixMillis),
        after: Option<KeyId>,
        limit: u32,
    ) -> Result<Vec<ExpiringKey>, DbError> {
        let after = after.map_or(0, |key| key.0);
        let page = query(EXPIRING_KEYS).bind(now.0).bind(until.0).bind(after).bind(i64::from(limit));
        Ok(self.db.fetch_all(page).await?)
    }

    /// The alerts of a month, or of all expiries from the first to the last, that were sent.
    pub async fn sent_alerts(&self, first: AlertPeriod, last: AlertPeriod) -> Result<SentAlerts, DbError> {
        let sent: Vec<SentAlert> =
            self.db.fetch_all(query(SENT).bind(first.to_db()).bind(last.to_db())).await?;
        Ok(SentAlerts(sent.into_iter().collect()))
    }

    /// Enqueues the messages unless the alert was sent before, and returns whether it did. The alerts that this one
    /// replaces count as sent too.
    pub async fn send_alert(
        &self,
        alert: &Alert,
        replaced: &[Alert],
        messages: &[NewMessage],
        now: UnixMillis,
    ) -> Result<bool, DbError> {
        let (alert, replaced, messages) = (*alert, replaced.to_vec(), messages.to_vec());
        let sent = self.db.write(move |tx| {
            if !record_alert(tx, &alert, now)? {
                return Ok(false);
            }
            for other in &replaced {
                record_alert(tx, other, now)?;
            }
            enqueue(tx, &messages)?;
            Ok::<_, DbError>(true)
        });
        let is_sent = sent.await?;
        if is_sent {
            self.wake.notify_one();
        }
        Ok(is_sent)
    }

    /// Returns whether this process runs the task now. No other one does until the time is over.
    pub async fn claim_periodic_task(
        &self,
        name: &str,
        now: UnixMillis,
        time: Duration,
    ) -> Result<bool, DbError> {
        let claim = query(CLAIM_TASK).bind(name).bind(now.0).bind(now.after(time).0);
        Ok(self.db.execute(claim, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// Deletes the alerts and rejections recorded by then. Their months are over, so none of them is sent again.
    pub async fn delete_old_alerts(&self, until: UnixMillis) -> Result<u64, DbError> {
        let alerts = self.db.execute(query(DELETE_ALERTS).bind(until.0), COMMAND_RETRY_LIMIT).await?;
        let rejections = self.db.execute(query(DELETE_REJECTIONS).bind(until.0), COMMAND_RETRY_LIMIT).await?;
        Ok(alerts + rejections)
    }
}
