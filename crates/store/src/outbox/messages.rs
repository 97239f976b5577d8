//! Queries of the outbox.
//!
//! 1. A message is enqueued in the transaction of what it is about.
//! 2. A process claims due messages in one statement, so that no two send the same message at the same time. The claim
//!    moves the next attempt to the end of the claim: if the process dies, another one sends the message then.
//! 3. The outcome is stored only while the claim is still this process's. So a message is sent at least once, and its
//!    event id is the same every time.
//! 4. A finished message loses its payload at once, and is deleted later.

use crate::db::{COMMAND_RETRY_LIMIT, Db, Dialect, FromRow, QueryError, Row, Tx, corrupt, query};
use crate::{ClaimedMessage, DbError, MessageKind, NewMessage, SendOutcome};
use chancery_domain::{EntryId, SecretToken, TokenHash, UnixMillis};
use std::sync::Arc;
use tokio::sync::Notify;

/// The longest error that is stored.
const MAX_ERROR_CHARS: usize = 500;
/// Of the hash of a code, enough to identify it.
const CODE_EMAIL_ID_BYTES: usize = 16;

const ENQUEUE: &str = "INSERT INTO outbox_messages \
    (event_id, destination, kind, payload, state, attempts, created_at_ms, next_attempt_at_ms, expires_at_ms) \
    VALUES ($1, $2, $3, $4, 'pending', 0, $5, $5, $6) ON CONFLICT (event_id, destination) DO NOTHING";

const CLAIM_SQLITE: &str = "UPDATE outbox_messages \
    SET claim = $1, next_attempt_at_ms = $2, attempts = attempts + 1 \
    WHERE (event_id, destination) IN (SELECT d.event_id, d.destination FROM outbox_messages d \
        WHERE d.state = 'pending' AND d.next_attempt_at_ms <= $3 AND d.kind = $5 \
        AND (CAST($6 AS TEXT) IS NULL OR d.destination = $6) ORDER BY d.next_attempt_at_ms LIMIT $4) \
    RETURNING *";
/// Skips messages that another node is claiming. Materialized, so that the limit applies once.
const CLAIM_POSTGRES: &str = "WITH due AS MATERIALIZED (SELECT d.event_id, d.destination FROM outbox_messages d \
        WHERE d.state = 'pending' AND d.next_attempt_at_ms <= $3 AND d.kind = $5 \
        AND (CAST($6 AS TEXT) IS NULL OR d.destination = $6) ORDER BY d.next_attempt_at_ms LIMIT $4 \
        FOR UPDATE SKIP LOCKED) \
    UPDATE outbox_messages m SET claim = $1, next_attempt_at_ms = $2, attempts = m.attempts + 1 FROM due \
    WHERE m.event_id = due.event_id AND m.destination = due.destination RETURNING m.*";

const RETRY: &str = "UPDATE outbox_messages SET claim = NULL, next_attempt_at_ms = $4, last_error = $5 \
    WHERE event_id = $1 AND destination = $2 AND claim = $3 AND state = 'pending'";
const FINISH: &str = "UPDATE outbox_messages SET claim = NULL, state = $4, last_error = $5, finished_at_ms = $6, \
    payload = '' WHERE event_id = $1 AND destination = $2 AND claim = $3 AND state = 'pending'";

const DUE_WEBHOOKS: &str = "SELECT DISTINCT destination FROM outbox_messages \
    WHERE state = 'pending' AND kind = 'webhook' AND next_attempt_at_ms <= $1 ORDER BY destination";
const POSTPONE: &str = "UPDATE outbox_messages \
    SET next_attempt_at_ms = CASE WHEN expires_at_ms < $3 THEN expires_at_ms ELSE $3 END \
    WHERE destination = $1 AND kind = 'webhook' AND state = 'pending' AND claim IS NULL AND next_attempt_at_ms <= $2";

/// Emails with a code that no longer works.
const DELETE_PENDING: &str = "DELETE FROM outbox_messages WHERE event_id = $1 AND state = 'pending'";

const NEXT_ATTEMPT: &str = "SELECT MIN(next_attempt_at_ms) FROM outbox_messages WHERE state = 'pending'";

const DELETE_FINISHED: &str = "DELETE FROM outbox_messages WHERE (event_id, destination) IN \
    (SELECT d.event_id, d.destination FROM outbox_messages d \
    WHERE d.state <> 'pending' AND d.finished_at_ms <= $1 LIMIT $2)";

const UNDELIVERED_LETTER: &str = "SELECT COUNT(*) FROM sent_letters s JOIN outbox_messages m ON m.event_id = s.event_id \
    WHERE s.entry_id = $1 AND m.state = 'failed'";

impl FromRow for ClaimedMessage {
    const ROW_LABEL_COLUMN: Option<&'static str> = Some("event_id");

    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let kind: String = row.get("kind")?;
        let kind = match kind.as_str() {
            "email" => MessageKind::Email,
            "webhook" => MessageKind::Webhook,
            _ => return Err(corrupt("a message's kind", kind)),
        };
        Ok(Self {
            message: NewMessage {
                kind,
                destination: row.get("destination")?,
                event_id: row.get("event_id")?,
                payload: row.get("payload")?,
                created_at: row.get("created_at_ms")?,
                expires_at: row.get("expires_at_ms")?,
            },
            attempt: row.capped_count("attempts")?,
            claim: row.or_default("claim")?,
        })
    }
}

/// The event id of the email with this code. It comes from the hash, so that whoever replaces or uses the code can delete
/// the email.
pub fn code_email_id(code: &TokenHash) -> String {
    let hex: String = code.0.iter().take(CODE_EMAIL_ID_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("eml_{hex}")
}

/// Deletes the email with this code if it was not sent yet, in the caller's transaction.
pub(crate) fn delete_code_email(tx: &mut Tx<'_>, code: &TokenHash) -> Result<(), QueryError> {
    query(DELETE_PENDING).bind(code_email_id(code)).execute(tx)?;
    Ok(())
}

/// In the caller's transaction. Wake the worker after the commit.
pub(crate) fn enqueue(tx: &mut Tx<'_>, messages: &[NewMessage]) -> Result<(), QueryError> {
    for message in messages {
        let enqueue = query(ENQUEUE)
            .bind(message.event_id.as_str())
            .bind(message.destination.as_str())
            .bind(message.kind.as_str())
            .bind(message.payload.as_str())
            .bind(message.created_at.0)
            .bind(message.expires_at.0);
        enqueue.execute(tx)?;
    }
    Ok(())
}

/// Messages that wait to be sent. All handles of one process share the signal that wakes its worker.
#[derive(Clone)]
pub struct Outbox {
    pub(crate) db: Db,
    pub(crate) wake: Arc<Notify>,
}

impl Outbox {
    /// All of them or none. A message that is already there is not added again.
    pub async fn enqueue_messages(&self, messages: &[NewMessage]) -> Result<(), DbError> {
        if messages.iter().any(|message| message.payload.contains('\0')) {
            return Err(DbError::NulCharacter { what: "the message" });
        }
        let messages = messages.to_vec();
        self.db.write(move |tx| enqueue(tx, &messages)).await?;
        self.wake_worker();
        Ok(())
    }

    /// Claims up to `limit` due messages of this kind, or of one destination, until `claim_ends_at`. Each goes to one
    /// caller only.
    pub async fn claim_messages(
        &self,
        (kind, destination): (MessageKind, Option<&str>),
        claim: &SecretToken,
        now: UnixMillis,
        claim_ends_at: UnixMillis,
        limit: u32,
    ) -> Result<Vec<ClaimedMessage>, DbError> {
        let sql = match self.db.dialect() {
            Dialect::Sqlite => CLAIM_SQLITE,
            Dialect::Postgres => CLAIM_POSTGRES,
        };
        let claim = query(sql)
            .bind(claim.reveal())
            .bind(claim_ends_at.0)
            .bind(now.0)
            .bind(i64::from(limit))
            .bind(kind.as_str())
            .bind(destination);
        Ok(self.db.write_returning(claim, COMMAND_RETRY_LIMIT).await?)
    }

    /// The webhooks that have due messages.
    pub async fn due_webhooks(&self, now: UnixMillis) -> Result<Vec<String>, DbError> {
        Ok(self.db.fetch_all(query(DUE_WEBHOOKS).bind(now.0)).await?)
    }

    /// Postpones the due messages of a webhook that are not claimed, at most to their expiry.
    pub async fn postpone_webhook_messages(
        &self,
        webhook: &str,
        now: UnixMillis,
        until: UnixMillis,
    ) -> Result<u64, DbError> {
        let postpone = query(POSTPONE).bind(webhook).bind(now.0).bind(until.0);
        Ok(self.db.execute(postpone, COMMAND_RETRY_LIMIT).await?)
    }

    /// Returns false if the claim had ended and another process has claimed the message, or if it was deleted.
    pub async fn finish_message(
        &self,
        claimed: &ClaimedMessage,
        outcome: &SendOutcome,
        now: UnixMillis,
    ) -> Result<bool, DbError> {
        let ClaimedMessage { message, claim, .. } = claimed;
        let shortened =
            |error: &str| error.replace('\0', " ").chars().take(MAX_ERROR_CHARS).collect::<String>();
        let update = |sql: &'static str| {
            query(sql).bind(message.event_id.as_str()).bind(message.destination.as_str()).bind(claim.as_str())
        };
        let update = match outcome {
            SendOutcome::Sent => update(FINISH).bind("sent").bind(None::<&str>).bind(now.0),
            SendOutcome::Retry { at, error } => update(RETRY).bind(at.0).bind(shortened(error)),
            SendOutcome::Failed { error } => update(FINISH).bind("failed").bind(shortened(error)).bind(now.0),
        };
        Ok(self.db.execute(update, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// Whether the email of a sent letter was given up. Known for as long as finished messages stay.
    pub async fn is_letter_undelivered(&self, letter: EntryId) -> Result<bool, DbError> {
        let failed: u64 = self.db.fetch_one(query(UNDELIVERED_LETTER).bind(letter.0)).await?;
        Ok(failed > 0)
    }

    /// When the next message is due; `None` if no message waits.
    pub async fn next_attempt_at(&self) -> Result<Option<UnixMillis>, DbError> {
        let next: Option<i64> = self.db.fetch_one(query(NEXT_ATTEMPT)).await?;
        Ok(next.map(UnixMillis))
    }

    /// Deletes up to `limit` messages that were sent or given up by then, and returns how many.
    pub async fn delete_finished_messages(&self, until: UnixMillis, limit: u32) -> Result<u64, DbError> {
        let delete = query(DELETE_FINISHED).bind(until.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }

    /// Waits until this process has enqueued something, or `wake_worker` was called.
    pub async fn wait_for_wake(&self) {
        self.wake.notified().await;
    }

    pub fn wake_worker(&self) {
        self.wake.notify_one();
    }
}
