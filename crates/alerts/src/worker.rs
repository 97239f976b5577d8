//! Sends the messages of the outbox. Every process runs one worker; a claim in the database keeps two of them from
//! sending the same message at the same time. A process that dies while it sends leaves the message to the others after
//! the claim, so a message is sent at least once.

use crate::email_payload::{message_id, parse_email};
use crate::limits::{
    CLAIM_TIME, EXPIRY_GRACE, MAX_CONCURRENT_EMAILS, MAX_CONCURRENT_EVENTS, POLL_INTERVAL, STOP_TIMEOUT,
    TIMED_OUT_PAUSE,
};
use crate::retry::next_attempt;
use crate::webhook_client::{WebhookClient, WebhookSendError};
use chancery_domain::{Clock, Randomness, SecretToken, UnixMillis};
use chancery_mail::Mailer;
use chancery_store::{AlertStore, ClaimedMessage, DbError, MessageKind, SendOutcome};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// What the ids of alerts begin with.
pub(crate) const ALERT_ID_PREFIX: &str = "evt_";

pub struct OutboxWorker {
    store: AlertStore,
    mailer: Arc<Mailer>,
    webhooks: WebhookClient,
    clock: Arc<dyn Clock>,
    randomness: Arc<dyn Randomness>,
    email_slots: Arc<Semaphore>,
    /// By webhook, so that a receiver that hangs delays neither emails nor other receivers.
    webhook_slots: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Why an attempt failed, and whether another one can succeed.
enum SendError {
    Temporary(String),
    Permanent(String),
}

impl OutboxWorker {
    pub fn new(
        store: AlertStore,
        mailer: Arc<Mailer>,
        webhooks: WebhookClient,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Self {
        let email_slots = Arc::new(Semaphore::new(MAX_CONCURRENT_EMAILS));
        let webhook_slots = Mutex::default();
        Self { store, mailer, webhooks, clock, randomness, email_slots, webhook_slots }
    }

    /// Runs until it is stopped, and then waits a little for what is being sent.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let wait = match self.start_due_sends().await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(%error, "reading the outbox failed, retrying");
                    POLL_INTERVAL
                }
            };
            tokio::select! {
                () = self.store.outbox.wait_for_wake() => {}
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => break,
            }
        }
        let _ = tokio::time::timeout(STOP_TIMEOUT, self.wait_for_sends()).await;
    }

    async fn wait_for_sends(&self) {
        let all = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let _ = self.email_slots.acquire_many(all(MAX_CONCURRENT_EMAILS)).await;
        let webhook_slots: Vec<Arc<Semaphore>> = {
            let slots = self.webhook_slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.values().cloned().collect()
        };
        for slots in webhook_slots {
            let _ = slots.acquire_many(all(MAX_CONCURRENT_EVENTS)).await;
        }
    }

    fn slots_of(&self, webhook: &str) -> Arc<Semaphore> {
        let mut slots = self.webhook_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Semaphore::new(MAX_CONCURRENT_EVENTS));
        Arc::clone(slots.entry(webhook.to_owned()).or_insert_with(new))
    }

    /// Starts sending what is due, as far as slots are free. Returns how long to wait for more.
    async fn start_due_sends(self: &Arc<Self>) -> Result<Duration, DbError> {
        let (outbox, now) = (&self.store.outbox, self.clock.now());
        // Claiming takes the write lock, so look first.
        match outbox.next_attempt_at().await? {
            None => return Ok(POLL_INTERVAL),
            Some(next) if next > now => {
                let wait = Duration::from_millis(u64::try_from(next.0 - now.0).unwrap_or(0));
                return Ok(wait.min(POLL_INTERVAL));
            }
            Some(_) => {}
        }
        self.start_sends((MessageKind::Email, None), &self.email_slots, now).await?;
        for webhook in outbox.due_webhooks(now).await? {
            let slots = self.slots_of(&webhook);
            self.start_sends((MessageKind::Webhook, Some(webhook.as_str())), &slots, now).await?;
        }
        Ok(POLL_INTERVAL)
    }

    async fn start_sends(
        self: &Arc<Self>,
        messages: (MessageKind, Option<&str>),
        slots: &Arc<Semaphore>,
        now: UnixMillis,
    ) -> Result<(), DbError> {
        let free = slots.available_permits();
        if free == 0 {
            // A send that ends wakes the worker.
            return Ok(());
        }
        let claim = SecretToken::generate(self.randomness.as_ref());
        let limit = u32::try_from(free).unwrap_or(u32::MAX);
        let claimed =
            self.store.outbox.claim_messages(messages, &claim, now, now.after(CLAIM_TIME), limit).await?;
        for claimed in claimed {
            let Ok(slot) = Arc::clone(slots).acquire_owned().await else { break };
            let worker = Arc::clone(self);
            tokio::spawn(async move {
                worker.process(&claimed).await;
                drop(slot);
                worker.store.outbox.wake_worker();
            });
        }
        Ok(())
    }

    async fn process(&self, claimed: &ClaimedMessage) {
        let (kind, attempt) = (claimed.message.kind.as_str(), claimed.attempt);
        let event_id = claimed.message.event_id.as_str();
        let outcome = self.outcome(claimed, self.send(claimed).await);
        let name = match &outcome {
            SendOutcome::Sent => "sent",
            SendOutcome::Retry { error, .. } => {
                tracing::warn!(kind, event_id, attempt, %error, "message not sent, retrying");
                "retried"
            }
            SendOutcome::Failed { error } => {
                tracing::warn!(kind, event_id, attempt, %error, "message not sent, given up");
                "failed"
            }
        };
        metrics::counter!("chancery_outbox_attempts_total", "kind" => kind, "outcome" => name).increment(1);
        match self.store.outbox.finish_message(claimed, &outcome, self.clock.now()).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    kind,
                    event_id,
                    attempt,
                    "message was claimed again or deleted while it was sent"
                );
            }
            Err(error) => tracing::warn!(kind, event_id, attempt, %error, "recording a sent message failed"),
        }
    }

    /// Each alert gets at least one attempt, however long no server ran. Other emails may contain a code that no longer
    /// works.
    async fn send(&self, claimed: &ClaimedMessage) -> Result<(), SendError> {
        let is_expired = self.clock.now() > claimed.message.expires_at.after(EXPIRY_GRACE);
        let is_alert = claimed.message.event_id.starts_with(ALERT_ID_PREFIX);
        if is_expired && (claimed.attempt > 1 || !is_alert) {
            return Err(SendError::Permanent("it expired before it could be sent".to_owned()));
        }
        match claimed.message.kind {
            MessageKind::Email => self.send_email(claimed).await,
            MessageKind::Webhook => self.send_event(claimed).await,
        }
    }

    async fn send_email(&self, claimed: &ClaimedMessage) -> Result<(), SendError> {
        let email = parse_email(&claimed.message);
        let (email, extras) =
            email.ok_or_else(|| SendError::Permanent("the message is no email".to_owned()))?;
        let sent = self.mailer.send_with(&email, &extras, &message_id(&claimed.message)).await;
        sent.map_err(|error| match error.is_permanent() {
            true => SendError::Permanent(error.to_string()),
            false => SendError::Temporary(error.to_string()),
        })
    }

    async fn send_event(&self, claimed: &ClaimedMessage) -> Result<(), SendError> {
        let message = &claimed.message;
        let webhook = self.store.webhooks.webhook_by_id(&message.destination).await;
        let webhook = webhook.map_err(|error| SendError::Temporary(error.to_string()))?;
        let Some(webhook) = webhook.filter(|webhook| webhook.disabled_at.is_none()) else {
            return Err(SendError::Permanent("the webhook was removed or disabled".to_owned()));
        };
        let now = self.clock.now();
        match self.webhooks.send(&webhook, &message.event_id, &message.payload, now).await {
            Ok(_) => Ok(()),
            Err(error @ WebhookSendError::Gone) => {
                tracing::warn!(webhook = webhook.id, "webhook disabled: its receiver replied with 410");
                if let Err(error) = self.store.webhooks.disable_webhook(&webhook.id, now).await {
                    tracing::warn!(webhook = webhook.id, %error, "disabling a webhook failed");
                }
                Err(SendError::Permanent(error.to_string()))
            }
            Err(error) => {
                if error == WebhookSendError::TimedOut {
                    self.postpone_others(&webhook.id).await;
                }
                Err(SendError::Temporary(error.to_string()))
            }
        }
    }

    /// A receiver that hangs gets no further events for a while.
    async fn postpone_others(&self, webhook: &str) {
        let now = self.clock.now();
        let until = now.after(TIMED_OUT_PAUSE);
        if let Err(error) = self.store.outbox.postpone_webhook_messages(webhook, now, until).await {
            tracing::warn!(webhook, %error, "postponing the events of a webhook failed");
        }
    }

    fn outcome(&self, claimed: &ClaimedMessage, sent: Result<(), SendError>) -> SendOutcome {
        let error = match sent {
            Ok(()) => return SendOutcome::Sent,
            Err(SendError::Permanent(error)) => return SendOutcome::Failed { error },
            Err(SendError::Temporary(error)) => error,
        };
        let expires_at = claimed.message.expires_at;
        match next_attempt(claimed.attempt, self.clock.now(), expires_at, self.randomness.as_ref()) {
            Some(at) => SendOutcome::Retry { at, error },
            None => SendOutcome::Failed { error },
        }
    }
}
