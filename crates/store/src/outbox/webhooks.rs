//! Queries for webhooks. Adding, removing and testing one needs a permit and is audited.

use super::error::WebhookError;
use crate::audit::step::AuditedSteps;
use crate::db::{COMMAND_RETRY_LIMIT, Db, from_row, query};
use crate::secrets::column::WEBHOOK_SECRET;
use crate::secrets::keyring::Keyring;
use crate::{DbError, ListedWebhook, MAX_WEBHOOKS, Webhook, WebhookSecret};
use chancery_domain::UnixMillis;
use chancery_policy::{ManageAccounts, Permit};
use std::collections::HashMap;

const ADD: &str = "INSERT INTO webhooks (id, url, secret, created_at_ms) VALUES ($1, $2, $3, $4)";
const COUNT: &str = "SELECT COUNT(*) FROM webhooks";
const LIST: &str = "SELECT id, url, created_at_ms, disabled_at_ms FROM webhooks ORDER BY created_at_ms, id";
const BY_ID: &str = "SELECT * FROM webhooks WHERE id = $1";
const REMOVE: &str = "DELETE FROM webhooks WHERE id = $1";
/// Nobody receives them any more.
const REMOVE_MESSAGES: &str = "DELETE FROM outbox_messages WHERE destination = $1 AND kind = 'webhook'";
/// The newest last. A message that was sent has no error.
const ERRORS: &str = "SELECT destination, last_error FROM outbox_messages \
    WHERE kind = 'webhook' AND last_error IS NOT NULL ORDER BY created_at_ms, event_id";
const DISABLE: &str = "UPDATE webhooks SET disabled_at_ms = $2 WHERE id = $1 AND disabled_at_ms IS NULL";

from_row!(ListedWebhook { id, url, created_at: "created_at_ms", disabled_at: "disabled_at_ms" }, "id");

/// A webhook whose secret is still encrypted.
struct StoredWebhook {
    listed: ListedWebhook,
    secret: Vec<u8>,
}

from_row!(StoredWebhook { listed: ListedWebhook::from_row, secret }, "id");

impl StoredWebhook {
    fn open(self, keyring: &Keyring) -> Result<Webhook, DbError> {
        let Self { listed: ListedWebhook { id, url, created_at, disabled_at }, secret } = self;
        let secret = WebhookSecret(keyring.open_text(WEBHOOK_SECRET, id.as_bytes(), &secret)?);
        Ok(Webhook { id, url, secret, created_at, disabled_at })
    }
}

struct UndeliveredMessage {
    webhook: String,
    error: String,
}

from_row!(UndeliveredMessage { webhook: "destination", error: "last_error" });

/// Receivers of events.
#[derive(Clone)]
pub struct Webhooks {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
    pub(crate) keyring: Keyring,
}

impl Webhooks {
    pub async fn add_webhook(
        &self,
        permit: Permit<ManageAccounts>,
        webhook: &Webhook,
    ) -> Result<(), WebhookError> {
        if webhook.url.contains('\0') {
            return Err(DbError::NulCharacter { what: "the URL" }.into());
        }
        let (keyring, webhook) = (self.keyring.clone(), webhook.clone());
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let count: u64 = query(COUNT).fetch_one(tx)?;
                if count >= u64::from(MAX_WEBHOOKS) {
                    return Err(WebhookError::TooManyWebhooks);
                }
                let (row, secret) = (webhook.id.as_bytes(), webhook.secret.reveal().as_bytes());
                let sealed = keyring.seal(tx, WEBHOOK_SECRET, row, secret)?;
                let add = query(ADD)
                    .bind(webhook.id.as_str())
                    .bind(webhook.url.as_str())
                    .bind(sealed)
                    .bind(webhook.created_at.0);
                add.execute(tx)?;
                Ok(())
            })
            .await
    }

    /// Messages that wait for it are deleted too.
    pub async fn remove_webhook(&self, permit: Permit<ManageAccounts>, id: &str) -> Result<(), WebhookError> {
        let id = id.to_owned();
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                if query(REMOVE).bind(id.as_str()).execute(tx)? == 0 {
                    return Err(WebhookError::NoSuchWebhook(id.clone()));
                }
                query(REMOVE_MESSAGES).bind(id.as_str()).execute(tx)?;
                Ok(())
            })
            .await
    }

    /// The webhook, for a test event that the caller sends.
    pub async fn webhook_to_test(
        &self,
        permit: Permit<ManageAccounts>,
        id: &str,
    ) -> Result<Webhook, WebhookError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        self.webhook_by_id(id).await?.ok_or_else(|| WebhookError::NoSuchWebhook(id.to_owned()))
    }

    /// Oldest first.
    pub async fn list_webhooks(&self) -> Result<Vec<ListedWebhook>, DbError> {
        Ok(self.db.fetch_all(query(LIST)).await?)
    }

    /// The last error of each webhook that has messages which were not delivered, by its id.
    pub async fn webhook_errors(&self) -> Result<HashMap<String, String>, DbError> {
        let errors: Vec<UndeliveredMessage> = self.db.fetch_all(query(ERRORS)).await?;
        Ok(errors.into_iter().map(|message| (message.webhook, message.error)).collect())
    }

    pub async fn webhook_by_id(&self, id: &str) -> Result<Option<Webhook>, DbError> {
        let stored: Option<StoredWebhook> = self.db.fetch_optional(query(BY_ID).bind(id)).await?;
        stored.map(|webhook| webhook.open(&self.keyring)).transpose()
    }

    /// For a receiver that says that it is gone for good.
    pub async fn disable_webhook(&self, id: &str, now: UnixMillis) -> Result<(), DbError> {
        self.db.execute(query(DISABLE).bind(id).bind(now.0), COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }
}
