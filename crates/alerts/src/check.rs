//! Finds the alerts that are due, on one node at a time:
//!
//! 1. Spending of the month is compared with the caps of accounts and keys that have one, and keys that expire soon are
//!    read.
//! 2. An alert that was not sent yet is recorded together with its messages: emails to the billing contact and to all
//!    partners, and an event to every webhook. If several thresholds were passed at once, only the last is sent.

use crate::email_payload::email_message;
use crate::limits::{
    ALERT_LIFETIME, ALERT_RETENTION, CHECK_CLAIM, CHECK_INTERVAL, CHECK_PAGE_ROWS, DELETE_BATCH_ROWS,
    DELETE_INTERVAL, EXPIRY_WARNINGS_DAYS, LATE_MONTH, MESSAGE_RETENTION, SPENDING_THRESHOLDS,
};
use crate::texts::{AlertText, ExpiryAlert, SpendingAlert};
use crate::worker::ALERT_ID_PREFIX;
use chancery_domain::{Clock, Currency, Month, Nanos, Randomness, Role, SecretToken, UnixMillis};
use chancery_mail::{Email, Recipient};
use chancery_store::{
    Alert, AlertKind, AlertNames, AlertPeriod, AlertStore, AlertSubject, CappedSpending, DbError,
    ExpiringKey, MessageKind, NewMessage, PersonError, SentAlerts,
};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const CHECK_TASK: &str = "alerts";
const DELETE_TASK: &str = "delete-messages";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Database(#[from] DbError),
    #[error(transparent)]
    People(#[from] PersonError),
}

pub struct AlertChecker {
    store: AlertStore,
    currency: Currency,
    clock: Arc<dyn Clock>,
    randomness: Arc<dyn Randomness>,
}

/// An alert that is due, and what it says.
struct DueAlert<'a> {
    alert: Alert,
    /// Alerts that this one makes superfluous.
    replaced: Vec<Alert>,
    names: &'a AlertNames,
    email: AlertText,
    event: String,
}

impl AlertChecker {
    pub fn new(
        store: AlertStore,
        currency: Currency,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Self {
        Self { store, currency, clock, randomness }
    }

    /// Runs until it is stopped.
    pub async fn run(&self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.run_if_due() => {}
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// A part that fails does not keep the others from running.
    async fn run_if_due(&self) {
        if let Err(error) = self.check_if_due().await {
            tracing::warn!(%error, "alert check failed, retrying");
        }
        if let Err(error) = self.delete_if_due().await {
            tracing::warn!(%error, "deleting old messages failed, retrying");
        }
    }

    async fn check_if_due(&self) -> Result<(), CheckError> {
        if self.store.alerts.claim_periodic_task(CHECK_TASK, self.clock.now(), CHECK_CLAIM).await? {
            self.check_once().await?;
        }
        Ok(())
    }

    async fn delete_if_due(&self) -> Result<(), CheckError> {
        if self.store.alerts.claim_periodic_task(DELETE_TASK, self.clock.now(), DELETE_INTERVAL).await? {
            self.delete_old().await?;
        }
        Ok(())
    }

    /// Returns the number of alerts that were enqueued. Each part runs even if another one fails.
    pub async fn check_once(&self) -> Result<u64, CheckError> {
        let now = self.clock.now();
        let month = Month::containing(now);
        let expiry = self.check_expiries(now).await;
        let spending = self.check_spending(month, now).await;
        // The last requests of a month may be recorded after its end.
        let is_month_new = Month::containing(before(now, LATE_MONTH)) != month;
        let last_month = match is_month_new {
            true => self.check_spending(month.previous(), now).await,
            false => Ok(0),
        };
        Ok(expiry? + spending? + last_month?)
    }

    async fn check_spending(&self, month: Month, now: UnixMillis) -> Result<u64, CheckError> {
        let period = AlertPeriod::Month(month);
        let sent_alerts = self.store.alerts.sent_alerts(period, period).await?;
        let (mut sent, mut last) = (0, None);
        loop {
            let page = self.store.alerts.capped_spending(month, last, CHECK_PAGE_ROWS).await?;
            for spending in &page {
                for due in self.due_spending_alerts(spending, month, now) {
                    sent += u64::from(self.send(&due, &sent_alerts, now).await?);
                }
            }
            last = page.last().map(|spending| spending.subject);
            if is_last_page(page.len()) {
                return Ok(sent);
            }
        }
    }

    async fn check_expiries(&self, now: UnixMillis) -> Result<u64, CheckError> {
        let furthest = EXPIRY_WARNINGS_DAYS.into_iter().max().unwrap_or(0);
        let until = now.after(DAY * u32::from(furthest));
        let (first, last) = (AlertPeriod::Expiry(now), AlertPeriod::Expiry(until));
        let sent_alerts = self.store.alerts.sent_alerts(first, last).await?;
        let (mut sent, mut last) = (0, None);
        loop {
            let page = self.store.alerts.expiring_keys((now, until), last, CHECK_PAGE_ROWS).await?;
            for key in &page {
                if let Some(due) = due_expiry_alert(key, now) {
                    sent += u64::from(self.send(&due, &sent_alerts, now).await?);
                }
            }
            last = page.last().map(|key| key.key);
            if is_last_page(page.len()) {
                return Ok(sent);
            }
        }
    }

    fn due_spending_alerts<'a>(
        &self,
        spending: &'a CappedSpending,
        month: Month,
        now: UnixMillis,
    ) -> Vec<DueAlert<'a>> {
        let CappedSpending { subject, names, cap, spent, has_rejected } = spending;
        let alert = |kind| Alert { subject: *subject, kind, period: AlertPeriod::Month(month), cap: *cap };
        let due = |kind, replaced| {
            let text = SpendingAlert {
                names,
                scope: subject.scope(),
                kind,
                month,
                cap: *cap,
                spent: *spent,
                currency: self.currency,
            };
            DueAlert { alert: alert(kind), replaced, names, email: text.email(), event: text.event(now) }
        };
        let mut reached: Vec<AlertKind> = SPENDING_THRESHOLDS
            .into_iter()
            .filter(|percent| is_reached(*spent, *cap, *percent))
            .map(|percent| AlertKind::Spent { percent })
            .collect();
        let mut alerts = Vec::new();
        if let Some(highest) = reached.pop() {
            alerts.push(due(highest, reached.into_iter().map(alert).collect()));
        }
        if *has_rejected {
            alerts.push(due(AlertKind::CapRejection, Vec::new()));
        }
        alerts
    }

    /// Returns whether it was enqueued: each alert is, once.
    async fn send(
        &self,
        due: &DueAlert<'_>,
        sent_alerts: &SentAlerts,
        now: UnixMillis,
    ) -> Result<bool, CheckError> {
        if sent_alerts.contains(&due.alert) {
            return Ok(false);
        }
        let event_id =
            format!("{ALERT_ID_PREFIX}{}", SecretToken::generate(self.randomness.as_ref()).reveal());
        let expires_at = now.after(ALERT_LIFETIME);
        let mut messages = Vec::new();
        for to in self.recipients(due.names).await? {
            let AlertText { subject, text } = due.email.clone();
            messages.push(email_message(Email { to, subject, text }, event_id.clone(), now, expires_at));
        }
        for webhook in self.store.webhooks.list_webhooks().await? {
            if webhook.disabled_at.is_none() {
                messages.push(NewMessage {
                    kind: MessageKind::Webhook,
                    destination: webhook.id,
                    event_id: event_id.clone(),
                    payload: due.event.clone(),
                    created_at: now,
                    expires_at,
                });
            }
        }
        Ok(self.store.alerts.send_alert(&due.alert, &due.replaced, &messages, now).await?)
    }

    /// The billing contact and all partners, each address once.
    async fn recipients(&self, names: &AlertNames) -> Result<Vec<Recipient>, CheckError> {
        let mut recipients: Vec<Recipient> = billing_contact(names).into_iter().collect();
        for person in self.store.people.list_people().await? {
            let email = Recipient::from(person.email);
            let is_known = recipients.iter().any(|other| other.as_str().eq_ignore_ascii_case(email.as_str()));
            if person.role == Role::Partner && !is_known {
                recipients.push(email);
            }
        }
        Ok(recipients)
    }

    async fn delete_old(&self) -> Result<(), CheckError> {
        let now = self.clock.now();
        let (outbox, full) = (&self.store.outbox, u64::from(DELETE_BATCH_ROWS));
        while outbox.delete_finished_messages(before(now, MESSAGE_RETENTION), DELETE_BATCH_ROWS).await?
            >= full
        {}
        self.store.alerts.delete_old_alerts(before(now, ALERT_RETENTION)).await?;
        Ok(())
    }
}

fn before(now: UnixMillis, time: Duration) -> UnixMillis {
    UnixMillis(now.0.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)))
}

fn is_last_page(rows: usize) -> bool {
    u32::try_from(rows).is_ok_and(|rows| rows < CHECK_PAGE_ROWS)
}

/// An address that was stored before it was checked may be one that no email can be sent to.
fn billing_contact(names: &AlertNames) -> Option<Recipient> {
    let email = names.billing_email.as_ref()?;
    match email.as_str().parse() {
        Ok(recipient) => Some(recipient),
        Err(error) => {
            let account = names.account.as_ref().map(ToString::to_string);
            tracing::warn!(account, %error, "alert not emailed to the billing contact, correct the address");
            None
        }
    }
}

/// The last warning whose time has come.
fn due_expiry_alert(key: &ExpiringKey, now: UnixMillis) -> Option<DueAlert<'_>> {
    let ExpiringKey { key: id, names, expires_at } = key;
    let alert = |days| Alert {
        subject: AlertSubject::Key(*id),
        kind: AlertKind::ExpiresWithin { days },
        period: AlertPeriod::Expiry(*expires_at),
        cap: Nanos(0),
    };
    let mut reached: Vec<u8> = EXPIRY_WARNINGS_DAYS
        .into_iter()
        .filter(|days| *expires_at <= now.after(DAY * u32::from(*days)))
        .collect();
    let days = reached.pop()?;
    let text = ExpiryAlert { names, days, expires_at: *expires_at };
    let (email, event) = (text.email(), text.event(now));
    Some(DueAlert {
        alert: alert(days),
        replaced: reached.into_iter().map(alert).collect(),
        names,
        email,
        event,
    })
}

/// A cap of zero has no part to warn about: the first request is rejected.
fn is_reached(spent: Nanos, cap: Nanos, percent: u8) -> bool {
    cap.0 > 0 && i128::from(spent.0) * 100 >= i128::from(cap.0) * i128::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_is_reached_at_exactly_its_percentage() {
        let reached = |spent, cap, percent| is_reached(Nanos(spent), Nanos(cap), percent);
        assert!(!reached(49, 100, 50) && reached(50, 100, 50));
        assert!(!reached(79, 100, 80) && reached(80, 100, 80));
        assert!(reached(i64::MAX, i64::MAX, 80));
        assert!(!reached(0, 0, 50), "a cap of zero");
    }

    #[test]
    fn late_check_sends_the_last_warning_before_an_expiry() {
        let names = AlertNames { account: None, billing_email: None, key: None };
        let now = UnixMillis(1_800_000_000_000);
        let due = |hours: u64| {
            let expires_at = now.after(Duration::from_secs(hours * 3_600));
            let key = ExpiringKey { key: chancery_domain::KeyId(1), names: names.clone(), expires_at };
            due_expiry_alert(&key, now).map(|due| (due.alert.kind, due.replaced.len()))
        };
        assert_eq!(due(8 * 24), None);
        assert_eq!(due(7 * 24), Some((AlertKind::ExpiresWithin { days: 7 }, 0)));
        assert_eq!(due(25), Some((AlertKind::ExpiresWithin { days: 7 }, 0)));
        assert_eq!(due(24), Some((AlertKind::ExpiresWithin { days: 1 }, 1)));
        assert_eq!(due(1), Some((AlertKind::ExpiresWithin { days: 1 }, 1)));
    }
}
