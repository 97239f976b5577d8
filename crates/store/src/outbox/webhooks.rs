//! Queries for webhooks. Adding, removing and testing one needs a permit and is audited.

use super::error::WebhookError;
use crate::audit::step::AuditedSteps;
use crate::db::{COMMAND_RETRY_LIMIT, Db, FromRow, Row, query};
use crate::{DbError, MAX_WEBHOOKS, Webhook, WebhookSecret};
use chancery_domain::UnixMillis;
use chancery_policy::{ManageAccounts, Permit};
use std::collections::HashMap;

const ADD: &str = "INSERT INTO webhooks (id, url, secret, created_at_ms) VALUES ($1, $2, $3, $4)";
const COUNT: &str = "SELECT COUNT(*) FROM webhooks";
const LIST: &str = "SELECT * FROM webhooks ORDER BY created_at_ms, id";
const BY_ID: &str = "SELECT * FROM webhooks WHERE id = $1";
const REMOVE: &str = "DELETE FROM webhooks WHERE id = $1";
/// Nobody receives them any more.
const REMOVE_MESSAGES: &str = "DELETE FROM outbox_messages WHERE destination = $1 AND kind = 'webhook'";
/// The newest last. A message that was sent has no error.
const ERRORS: &str = "SELECT destination, last_error FROM outbox_messages \
    WHERE kind = 'webhook' AND last_error IS NOT NULL ORDER BY created_at_ms, event_id";
const DISABLE: &str = "UPDATE webhooks SET disabled_at_ms = $2 WHERE id = $1 AND disabled_at_ms IS NULL";

impl FromRow for Webhook {
    const ROW_LABEL_COLUMN: Option<&'static str> = Some("id");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let disabled_at: Option<i64> = row.get("disabled_at_ms")?;
        Ok(Self {
            id: row.get("id")?,
            url: row.get("url")?,
            secret: WebhookSecret(row.get("secret")?),
            created_at: row.time("created_at_ms")?,
            disabled_at: disabled_at.map(UnixMillis),
        })
    }
}

struct UndeliveredMessage {
    webhook: String,
    error: String,
}

impl FromRow for UndeliveredMessage {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self { webhook: row.get("destination")?, error: row.get("last_error")? })
    }
}

/// Receivers of events.
#[derive(Clone)]
pub struct Webhooks {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
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
        self.audited
            .run::<Webhook, (), WebhookError>(&[permit.to_audit_row()], webhook, |conn, webhook| {
                Box::pin(async move {
                    let count: u64 = query(COUNT).fetch_one(conn).await?;
                    if count >= u64::from(MAX_WEBHOOKS) {
                        return Err(WebhookError::TooManyWebhooks.into());
                    }
                    let add = query(ADD)
                        .bind(webhook.id.as_str())
                        .bind(webhook.url.as_str())
                        .bind(webhook.secret.reveal())
                        .bind(webhook.created_at.0);
                    add.execute(conn).await?;
                    Ok(())
                })
            })
            .await
    }

    /// Messages that wait for it are deleted too.
    pub async fn remove_webhook(&self, permit: Permit<ManageAccounts>, id: &str) -> Result<(), WebhookError> {
        self.audited
            .run::<str, (), WebhookError>(&[permit.to_audit_row()], id, |conn, id| {
                Box::pin(async move {
                    if query(REMOVE).bind(id).execute(conn).await? == 0 {
                        return Err(WebhookError::NoSuchWebhook(id.to_owned()).into());
                    }
                    query(REMOVE_MESSAGES).bind(id).execute(conn).await?;
                    Ok(())
                })
            })
            .await
    }

    /// The webhook, for a test event that the caller sends.
    pub async fn webhook_to_test(
        &self,
        permit: Permit<ManageAccounts>,
        id: &str,
    ) -> Result<Webhook, WebhookError> {
        self.audited.record(&[permit.to_audit_row()]).await?;
        self.webhook_by_id(id).await?.ok_or_else(|| WebhookError::NoSuchWebhook(id.to_owned()))
    }

    /// Oldest first.
    pub async fn list_webhooks(&self) -> Result<Vec<Webhook>, DbError> {
        Ok(self.db.fetch_all(query(LIST)).await?)
    }

    /// The last error of each webhook that has messages which were not delivered, by its id.
    pub async fn webhook_errors(&self) -> Result<HashMap<String, String>, DbError> {
        let errors: Vec<UndeliveredMessage> = self.db.fetch_all(query(ERRORS)).await?;
        Ok(errors.into_iter().map(|message| (message.webhook, message.error)).collect())
    }

    pub async fn webhook_by_id(&self, id: &str) -> Result<Option<Webhook>, DbError> {
        Ok(self.db.fetch_optional(query(BY_ID).bind(id)).await?)
    }

    /// For a receiver that says that it is gone for good.
    pub async fn disable_webhook(&self, id: &str, now: UnixMillis) -> Result<(), DbError> {
        self.db.execute(query(DISABLE).bind(id).bind(now.0), COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }
}
